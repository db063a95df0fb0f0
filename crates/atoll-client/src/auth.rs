//! Grants and tokens: who may do what.

use std::sync::Arc;
use std::time::Duration;

use ring::rand::SecureRandom;

use crate::connections::{Connections, Repeat};
use crate::error::{Error, Failure};
use crate::options::Token;
use crate::proto::auth_service_client::AuthServiceClient;
use crate::proto::{
    CheckReply, CheckRequest, CreateTokenRequest, GrantRequest, ListAuthReply, ListAuthRequest, Reason,
    RevokeRequest, RevokeTokenRequest,
};

/// A change goes through the log.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// The grants and tokens of a cluster. Cheap to clone. How `who`, `right` and `on` are written is in `atoll/v1/auth.proto`.
#[derive(Clone, Debug)]
pub struct Auth {
    connections: Arc<Connections>,
}

/// Performs a call. All calls are idempotent.
macro_rules! call {
    ($self:ident, $within:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = $self.connections.call(Repeat::Idempotent, $within, |channel| {
            let request = request.clone();
            async move { AuthServiceClient::new(channel).$method(request).await }
        });
        call.await
    }};
}

impl Auth {
    pub(crate) fn new(connections: Arc<Connections>) -> Self {
        Auth { connections }
    }

    fn attempt(&self) -> Duration {
        self.connections.options.attempt_timeout
    }

    /// Grants a right, instead of the one that `who` had on exactly this. Returns whether that changed anything.
    pub async fn grant(&self, who: &str, right: &str, on: &str) -> Result<bool, Error> {
        let request = GrantRequest { who: who.to_owned(), right: right.to_owned(), on: on.to_owned() };
        Ok(call!(self, CHANGE_TIMEOUT, grant, request)?.changed)
    }

    /// Takes back what `who` has on exactly this. Returns whether it had anything.
    pub async fn revoke(&self, who: &str, on: &str) -> Result<bool, Error> {
        let request = RevokeRequest { who: who.to_owned(), on: on.to_owned() };
        Ok(call!(self, CHANGE_TIMEOUT, revoke, request)?.changed)
    }

    /// Returns all grants and the names of all tokens.
    pub async fn list(&self) -> Result<ListAuthReply, Error> {
        call!(self, self.attempt(), list, ListAuthRequest {})
    }

    /// Returns whether `who` may do something; if `who` is empty, whether this client may. With all three empty, only who this client is.
    pub async fn check(&self, who: &str, right: &str, on: &str) -> Result<CheckReply, Error> {
        let request = CheckRequest { who: who.to_owned(), right: right.to_owned(), on: on.to_owned() };
        call!(self, self.attempt(), check, request)
    }

    /// Creates a token with this name and returns it. The cluster keeps only its hash, so nobody can show it again.
    pub async fn create_token(&self, name: &str) -> Result<Token, Error> {
        let no_random = |_| {
            let failure = Failure::new(Reason::Unavailable, "the system has no random bytes", "");
            Error::DidNotHappen(failure)
        };
        let (token, hash) = new_token().map_err(no_random)?;
        let request = CreateTokenRequest { name: name.to_owned(), hash: hash.to_vec().into() };
        call!(self, CHANGE_TIMEOUT, create_token, request)?;
        Ok(token)
    }

    /// Removes a token, and what was granted to its bearer. Returns whether there was any.
    pub async fn revoke_token(&self, name: &str) -> Result<bool, Error> {
        let request = RevokeTokenRequest { name: name.to_owned() };
        Ok(call!(self, CHANGE_TIMEOUT, revoke_token, request)?.changed)
    }
}

/// Draws a token, and returns it with its hash.
fn new_token() -> Result<(Token, [u8; 32]), ring::error::Unspecified> {
    let mut random = [0; 32];
    ring::rand::SystemRandom::new().fill(&mut random)?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let token = Token::new(&format!("atoll_{digits}"));
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.text().as_bytes()).as_ref());
    Ok((token, hash))
}

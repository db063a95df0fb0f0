//! The service of grants and tokens.

use std::sync::Arc;
use std::time::Duration;

use atoll_auth::command::{Command, Done, Rejection};
use atoll_auth::{Asking, Auth, Kind, Pattern, Resource, Right, Who};
use atoll_client::Reason;
use atoll_client::proto::auth_service_server::AuthService;
use atoll_client::proto::{
    AuthReply, CheckReply, CheckRequest, CreateTokenRequest, GrantRequest, ListAuthReply, ListAuthRequest,
    RevokeRequest, RevokeTokenRequest, list_auth_reply as list,
};
use atoll_core::codec::{Decode, Encode};
use atoll_core::level::since;
use atoll_db::{Engine, ProposeError};
use atoll_door::backend::{DATABASE_LOG, no_database};
use atoll_door::{Caller, Gate, Refusal, caller_of};
use tokio::time::{Instant, timeout_at};
use tonic::{Request, Response, Status};

use crate::{Cell, follow};

/// How long a proposal waits for room in the engine.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// What to do if the database does not answer.
const NOT_ENOUGH: &str = "`atoll status` shows whether enough servers are up";

/// The service of this node.
pub(crate) struct AuthApi {
    gate: Arc<Gate>,
    engine: Cell,
}

impl AuthApi {
    pub(crate) fn new(gate: Arc<Gate>, engine: Cell) -> Self {
        AuthApi { gate, engine }
    }

    fn engine(&self) -> Result<&Engine<Auth>, Refusal> {
        self.engine.get().ok_or_else(no_database)
    }

    /// Proposes a command, and returns once this node decides by it.
    async fn change(&self, command: &Command) -> Result<Response<AuthReply>, Status> {
        let engine = self.engine()?;
        if engine.level() < since::AUTHORISATION {
            let words = "not all nodes of the cluster can read grants yet";
            return Err(
                Refusal::no(Reason::Refused, words, "finish the upgrade: atoll cluster upgrade").into()
            );
        }
        let changed = propose(engine, command).await?;
        follow::read(engine, &self.gate).await.map_err(Refusal::although_it_happened)?;
        Ok(Response::new(AuthReply { changed }))
    }

    /// Returns whether somebody may do something.
    fn may(&self, asking: &Asking, right: Right, on: &Pattern) -> Result<bool, Refusal> {
        let what = match on {
            Pattern::Cluster => Resource::Cluster,
            Pattern::Exactly(Kind::Log, name) if name == DATABASE_LOG => Resource::Cluster,
            Pattern::Exactly(kind, name) => Resource::Named(*kind, name),
            Pattern::Everything | Pattern::Beginning(..) => {
                let words = format!("{on} stands for many");
                return Err(Refusal::no(
                    Reason::Invalid,
                    words,
                    "name one: cluster, log:NAME, table:NAME, keyspace:NAME",
                ));
            }
        };
        let is_operator =
            asking.certificate.as_ref().is_some_and(|name| self.gate.operators().contains(name));
        Ok(!self.gate.is_required() || is_operator || self.gate.policy()?.may(asking, right, &what))
    }

    fn check(&self, caller: &Caller, request: &CheckRequest) -> Result<CheckReply, Refusal> {
        let invalid = |error: atoll_auth::NameError| Refusal::no(Reason::Invalid, error.to_string(), "");
        let (asking, who) = if request.who.is_empty() {
            let asking = caller.asking().clone();
            let who = asking.who().filter(|_| self.gate.is_required());
            (asking, who.map_or_else(|| "everybody".to_owned(), |who| who.to_string()))
        } else {
            caller.on_cluster(Right::Operate)?;
            let who: Who = request.who.parse().map_err(invalid)?;
            (asking_as(&who), who.to_string())
        };
        if request.right.is_empty() && request.on.is_empty() {
            return Ok(CheckReply { who, allowed: false });
        }
        let (right, on) = (request.right.parse().map_err(invalid)?, request.on.parse().map_err(invalid)?);
        Ok(CheckReply { who, allowed: self.may(&asking, right, &on)? })
    }
}

/// Returns what a client shows that has exactly the grants of `who`.
fn asking_as(who: &Who) -> Asking {
    match who {
        Who::Certificate(name) => Asking { certificate: Some(name.clone()), token: None },
        Who::Token(name) => Asking { certificate: None, token: Some(name.clone()) },
        // No certificate has this name.
        Who::Any => Asking { certificate: Some(String::new()), token: None },
    }
}

/// Proposes a command, and waits until this node has applied it. Returns whether it changed anything.
async fn propose(engine: &Engine<Auth>, command: &Command) -> Result<bool, Refusal> {
    let command = command.to_bytes();
    let until = Instant::now() + BUSY_FOR;
    let proposed = loop {
        let busy = match engine.propose(command.clone()) {
            Ok(proposed) => break proposed,
            Err(busy) => busy,
        };
        if timeout_at(until, engine.room(&busy)).await.is_err() {
            let words = "too many commands are in progress on this node";
            return Err(Refusal::no(Reason::Busy, words, "try again later"));
        }
    };
    let gone = || Refusal::unknown(Reason::Stopping, "this node is stopping", "use another node");
    let failed = |error: ProposeError| match error.did_not_happen() {
        true => Refusal::no(Reason::Unavailable, error.to_string(), NOT_ENOUGH),
        false => Refusal::unknown(Reason::Unavailable, error.to_string(), NOT_ENOUGH),
    };
    let unreadable = |error: atoll_core::codec::DecodeError| {
        Refusal::unknown(Reason::Damaged, format!("the answer of the replica is unreadable: {error}"), "")
    };
    match proposed.await.map_err(|_| gone())?.map_err(failed)?.reply {
        Ok(done) => Ok(Done::from_bytes(done).map_err(|e| unreadable(e).although_it_happened())?.changed),
        Err(rejected) => {
            let rejection = Rejection::from_bytes(rejected.0).map_err(unreadable)?;
            let reason = match rejection {
                Rejection::Invalid { .. } => Reason::Invalid,
                Rejection::TooMany { .. } => Reason::TooLarge,
                Rejection::Exists { .. } => Reason::Conflict,
            };
            let next = match rejection {
                Rejection::Invalid { .. } => "",
                Rejection::TooMany { .. } => "grant to a NAME that ends in *, or revoke what nobody needs",
                Rejection::Exists { .. } => "revoke it first, or choose another name",
            };
            Err(Refusal::no(reason, rejection.words(), next))
        }
    }
}

#[tonic::async_trait]
impl AuthService for AuthApi {
    async fn grant(&self, request: Request<GrantRequest>) -> Result<Response<AuthReply>, Status> {
        let caller = caller_of(&request)?;
        let GrantRequest { who, right, on } = request.into_inner();
        caller.detail(format_args!("{who} {right} {on}"));
        self.change(&Command::Grant { who, right, on }).await
    }

    async fn revoke(&self, request: Request<RevokeRequest>) -> Result<Response<AuthReply>, Status> {
        let caller = caller_of(&request)?;
        let RevokeRequest { who, on } = request.into_inner();
        caller.detail(format_args!("{who} {on}"));
        self.change(&Command::Revoke { who, on }).await
    }

    async fn list(&self, _request: Request<ListAuthRequest>) -> Result<Response<ListAuthReply>, Status> {
        let engine = self.engine()?;
        let failed =
            |error: atoll_db::BarrierError| Refusal::no(Reason::Unavailable, error.to_string(), NOT_ENOUGH);
        engine.barrier().await.map_err(|_| Refusal::stopping())?.map_err(failed)?;
        let (grants, tokens) = follow::read(engine, &self.gate).await?;
        let grant = |grant: atoll_auth::Grant| list::Grant {
            who: grant.who.to_string(),
            right: grant.right.to_string(),
            on: grant.on.to_string(),
        };
        let token = |token: atoll_auth::Token| list::Token { name: token.name, created_ms: token.created_ms };
        Ok(Response::new(ListAuthReply {
            grants: grants.into_iter().map(grant).collect(),
            tokens: tokens.into_iter().map(token).collect(),
            required: self.gate.is_required(),
            operators: self.gate.operators().iter().cloned().collect(),
        }))
    }

    async fn check(&self, request: Request<CheckRequest>) -> Result<Response<CheckReply>, Status> {
        let caller = caller_of(&request)?;
        Ok(Response::new(self.check(&caller, &request.into_inner())?))
    }

    async fn create_token(
        &self,
        request: Request<CreateTokenRequest>,
    ) -> Result<Response<AuthReply>, Status> {
        let caller = caller_of(&request)?;
        let CreateTokenRequest { name, hash } = request.into_inner();
        caller.detail(format_args!("token:{name}"));
        self.change(&Command::AddToken { name, hash }).await
    }

    async fn revoke_token(
        &self,
        request: Request<RevokeTokenRequest>,
    ) -> Result<Response<AuthReply>, Status> {
        let caller = caller_of(&request)?;
        let name = request.into_inner().name;
        caller.detail(format_args!("token:{name}"));
        self.change(&Command::RemoveToken { name }).await
    }
}

//! The request `sasl`: a client authenticates with DIGEST-MD5. Each connection has one attempt. If it fails, the connection ends,
//! as in ZooKeeper.

use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::digest_md5::Exchange;
use super::frame;
use super::handshake::Ended;
use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::records::ReplyHeader;
use crate::jute::request::SaslRequest;

/// The progress of a connection's SASL exchange.
#[derive(Debug, Default)]
pub(crate) enum Sasl {
    /// The exchange has not begun.
    #[default]
    Idle,
    /// The challenge was sent.
    Asked(Exchange),
    /// The exchange is over.
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Handles the next message of the exchange. What it proves counts for all later requests.
    pub(crate) fn sasl(&mut self, xid: i32, body: &[u8]) -> Result<(), Ended> {
        let shared = self.shared.clone();
        if shared.options.sasl_users.is_empty() {
            self.refuse(xid, ErrorCode::Unimplemented);
            return Ok(());
        }
        let Ok(SaslRequest { token }) = SaslRequest::parse(body) else {
            self.refuse(xid, ErrorCode::MarshallingError);
            return Ok(());
        };
        match std::mem::replace(&mut self.sasl, Sasl::Over) {
            Sasl::Idle => {
                let mut nonce = [0; 24];
                let random = SystemRandom::new();
                random.fill(&mut nonce).map_err(|_| Ended::Log("the system has no random bytes".into()))?;
                let exchange = Exchange::begin(nonce);
                self.say(xid, &exchange.challenge());
                self.sasl = Sasl::Asked(exchange);
                Ok(())
            }
            Sasl::Asked(exchange) => {
                match exchange.judge(token.unwrap_or_default(), &shared.options.sasl_users) {
                    Ok(proved) => {
                        if shared.options.sasl_super.as_ref() == Some(&proved.user) {
                            self.add_id(acl::SUPER, "");
                        }
                        self.add_id("sasl", &proved.user);
                        self.say(xid, &proved.answer);
                        Ok(())
                    }
                    Err(refused) => self.turn_away(xid, &refused.to_string()),
                }
            }
            Sasl::Over => self.turn_away(xid, "the exchange is over"),
        }
    }

    fn say(&mut self, xid: i32, token: &[u8]) {
        self.reply_in_turn(|out, zxid| frame::reply(out, xid, zxid, |out| Some(token).write(out)));
    }

    fn turn_away(&mut self, xid: i32, words: &str) -> Result<(), Ended> {
        let zxid = self.shared.zxid();
        // This reply has a body because clients read one even if the header reports a failure.
        frame::write(&mut self.out, |out| {
            ReplyHeader { xid, zxid, err: ErrorCode::AuthFailed.number() }.write(out);
            None::<&[u8]>.write(out);
        });
        Err(Ended::NotAuthenticated(format!("SASL: {words}")))
    }
}

//! Requests `sasl`: a client proves its identity by DIGEST-MD5. Each connection gets one attempt: a wrong one ends it, as in
//! ZooKeeper.

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

/// How far a connection's exchange is.
#[derive(Debug, Default)]
pub(crate) enum Sasl {
    /// It has not begun.
    #[default]
    Idle,
    /// The client was asked.
    Asked(Exchange),
    /// It was judged.
    Over,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// The next message of the mechanism. What it proves counts for the requests behind it.
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
        // With a body: clients read it even where the header reports a failure.
        frame::write(&mut self.out, |out| {
            ReplyHeader { xid, zxid, err: ErrorCode::AuthFailed.number() }.write(out);
            None::<&[u8]>.write(out);
        });
        Err(Ended::NotAuthenticated(format!("SASL: {words}")))
    }
}

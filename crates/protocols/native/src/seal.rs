//! Seals a loglet (native §4): the client's part. A server's part is in `log_server/store.rs`. The seal is sent to all servers, repeatedly,
//! with jitter (native-T13), and is done once a majority is sealed.

use atoll_contract::LogletError;
use atoll_core::Tick;
use atoll_core::testing::{Place, hit};

use super::loglet::{ServerSet, failure};
use super::message::{Seal, Verdict};
use crate::roles::LOG_SERVER;

impl ServerSet {
    /// Seals a majority of the servers. The seal is durable there when this returns.
    pub(crate) async fn seal(&self) -> Result<(), LogletError> {
        let until = self.op_deadline();
        let quorum = self.config.quorum();
        let mut place = Place::at("native.seal.died_early");
        let done = self.seal_rounds(until, quorum, &mut place).await;
        place.ends();
        done
    }

    async fn seal_rounds(&self, until: Tick, quorum: usize, place: &mut Place) -> Result<(), LogletError> {
        loop {
            let request = Seal { loglet: self.id, config: self.config_bytes.clone() };
            let sealed =
                |answer: &super::message::Answer| answer.verdict == Verdict::Done {} && answer.state.sealed;
            let replies = self
                .env
                .gather_role(&self.nodes, LOG_SERVER, request, self.round_end(), |r| {
                    let n = r.ok().filter(|(_, a)| sealed(a)).count();
                    if n > 0 && n < quorum {
                        place.moves("native.seal.died_with_a_minority");
                    }
                    n >= quorum
                })
                .await;
            if replies.ok().filter(|(_, a)| sealed(a)).count() >= quorum {
                return Ok(());
            }
            let error = failure(replies.ok().map(|(_, a)| &a.verdict));
            if error == LogletError::Gone {
                return Err(error);
            }
            hit("native.seal.retry");
            if !self.pause(until).await {
                return Err(error);
            }
        }
    }
}

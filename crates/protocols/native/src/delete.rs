//! Deletion (native-T10, vlog-V6): tombstones on every server that answers.

use atoll_contract::LogletError;

use super::loglet::{ServerSet, failure};
use super::message::{Delete, Verdict};
use crate::roles::LOG_SERVER;

impl ServerSet {
    /// Deletes the loglet on all servers that answer. Tombstones are durable on a majority when this returns, so the id can never be used
    /// again.
    pub(crate) async fn delete(&self) -> Result<(), LogletError> {
        let until = self.op_deadline();
        loop {
            let request = Delete { loglet: self.id };
            let replies =
                self.env.gather_role(&self.nodes, LOG_SERVER, request, self.round_end(), |_| false).await;
            let done = replies.ok().filter(|(_, a)| a.verdict == Verdict::Done {}).count();
            if done >= self.config.quorum() {
                return Ok(());
            }
            let error = failure(replies.ok().map(|(_, a)| &a.verdict));
            if !self.pause(until).await {
                return Err(error);
            }
        }
    }
}

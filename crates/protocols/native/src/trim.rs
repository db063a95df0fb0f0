//! prefixTrim (native §4): sent to all servers, and durable on a majority. Servers that are away get it again in the background.

use std::time::Duration;

use atoll_contract::{LogletError, Offset};
use atoll_core::NodeId;
use atoll_core::testing::hit;

use super::loglet::{ServerSet, failure};
use super::message::{Trim, Verdict};
use crate::roles::LOG_SERVER;

/// How often the trim is sent again to a server that was away, with growing pauses. If the server misses them all, the next trim covers
/// this one.
const BACKGROUND_TRIES: u32 = 8;

impl ServerSet {
    /// Permanently gives up the offsets below `to`, which is at most a tail that the caller obtained. The trim is durable on a majority
    /// when this returns.
    pub(crate) async fn prefix_trim(&self, to: Offset) -> Result<(), LogletError> {
        if to == Offset::ZERO {
            return Ok(());
        }
        let until = self.op_deadline();
        let mut left = self.nodes.as_ref().clone();
        let mut done = 0;
        loop {
            let replies = self.send_trim(&mut left, to).await;
            done += replies.done;
            if let Some(LogletError::Gone) = replies.error {
                return Err(LogletError::Gone);
            }
            if done >= self.config.quorum() {
                break;
            }
            if !self.pause(until).await {
                return Err(replies.error.unwrap_or(failure([])));
            }
        }
        if !left.is_empty() {
            hit("native.trim.background");
            let group = self.clone();
            self.env.spawn("native.trim", Box::pin(async move { group.trim_later(left, to).await }));
        }
        Ok(())
    }

    async fn trim_later(&self, mut left: Vec<NodeId>, to: Offset) {
        for n in 0..BACKGROUND_TRIES {
            let pause = Duration::from_millis(200) * (1 << n);
            self.env.sleep(self.env.jitter(pause)).await;
            self.send_trim(&mut left, to).await;
            if left.is_empty() {
                return;
            }
        }
    }

    /// Sends the trim once, and removes the servers that did it from `left`.
    async fn send_trim(&self, left: &mut Vec<NodeId>, to: Offset) -> TrimOutcome {
        let request = Trim { loglet: self.id, config: self.config_bytes.clone(), to };
        let replies = self.env.gather_role(left, LOG_SERVER, request, self.round_end(), |_| false).await;
        let mut outcome = TrimOutcome { done: 0, error: None };
        let error = failure(replies.ok().map(|(_, a)| &a.verdict));
        for (node, answer) in replies.ok() {
            if answer.verdict == (Verdict::Done {}) {
                outcome.done += 1;
                left.retain(|n| *n != node);
            }
        }
        if outcome.done == 0 || error == LogletError::Gone {
            outcome.error = Some(error);
        }
        outcome
    }
}

struct TrimOutcome {
    done: usize,
    error: Option<LogletError>,
}

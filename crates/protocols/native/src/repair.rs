//! Repair (native §4, native-S3): copies entries that a member of a sealed majority has to the members that lack them.

use atoll_contract::{LogletError, Offset, Unavailability};
use atoll_core::NodeId;

use super::check_tail::Majority;
use super::loglet::{ServerSet, failure};
use super::message::{Entries, Read, Repair, Verdict};
use crate::roles::LOG_SERVER;

impl ServerSet {
    /// Brings every member of a sealed majority to `tail`, from `known` on, in order. Then a majority of all servers, each
    /// sealed, holds every offset of `[known, tail)`.
    pub(crate) async fn repair(
        &self,
        majority: &Majority,
        known: Offset,
        tail: Offset,
    ) -> Result<(), LogletError> {
        // A member with local tail X has all of [known, X), because everything that it lacks below its own tail is below a known tail
        // (native-N7).
        let mut behind: Vec<(NodeId, Offset)> = majority
            .iter()
            .filter(|(_, s)| s.local_tail < tail)
            .map(|(node, s)| (*node, s.local_tail.max(known)))
            .collect();
        let sources: Vec<NodeId> =
            majority.iter().filter(|(_, s)| s.local_tail == tail).map(|(node, _)| *node).collect();
        let mut at = behind.iter().map(|(_, from)| *from).min().unwrap_or(tail);
        while at < tail {
            let entries = self.fetch(&sources, at, tail).await?;
            let mut first = entries.first;
            let mut calls = Vec::new();
            for (count, batch) in entries.counts.iter().zip(&entries.batches) {
                let end = first.plus((*count).into());
                for (node, from) in &mut behind {
                    if *from < end {
                        let message = Repair {
                            loglet: self.id,
                            config: self.config_bytes.clone(),
                            first,
                            count: *count,
                            known_tail: known,
                            batch: batch.clone(),
                        };
                        calls.push(self.env.call_role(*node, LOG_SERVER, message));
                    }
                }
                first = end;
            }
            let until = self.round_end();
            for call in calls {
                let left = until.since(self.env.now());
                match self.env.within(left, call).await {
                    Ok(Ok(answer)) if answer.verdict == (Verdict::Done {}) => {}
                    Ok(Ok(answer)) => return Err(failure([&answer.verdict])),
                    _ => return Err(LogletError::Unavailable(Unavailability::NoQuorum)),
                }
            }
            at = first;
        }
        Ok(())
    }

    /// Fetches entries from exactly `at` on, from any of these servers. All returned entries are below `to`.
    pub(crate) async fn fetch(
        &self,
        sources: &[NodeId],
        at: Offset,
        to: Offset,
    ) -> Result<Entries, LogletError> {
        let mut error = LogletError::Unavailable(Unavailability::NoQuorum);
        for node in sources {
            let request = Read { loglet: self.id, from: at, to, max_bytes: self.options.step_bytes };
            match self
                .env
                .within(self.options.round_timeout, self.env.call_role(*node, LOG_SERVER, request))
                .await
            {
                Ok(Ok(entries)) if entries.verdict == (Verdict::Done {}) && entries.first == at => {
                    return Ok(entries);
                }
                Ok(Ok(entries)) if entries.verdict == (Verdict::Gone {}) => return Err(LogletError::Gone),
                Ok(Ok(entries)) => error = failure([&entries.verdict]),
                _ => {}
            }
        }
        Err(error)
    }
}

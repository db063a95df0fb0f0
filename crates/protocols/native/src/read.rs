//! readNext (native §4): exactly the requested offset, from the node's own server or else from any other. One copy suffices.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::task::Poll;

use atoll_contract::{Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Call, CallError, Elapsed, NodeId};
use atoll_loglet_store::decode_entries;

use super::loglet::ServerSet;
use super::message::{Entries, Read, Verdict};
use crate::roles::LOG_SERVER;

/// A server that has not answered within this fraction of a round (1/6) counts as slow, and the next one is also asked.
const SLOW_PART: u32 = 6;

impl ServerSet {
    /// Reads entries from `range.start` on. The caller has obtained a tail, or a stop, above the range (vlog-L6).
    pub(crate) async fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        let own = self.env.node();
        let nodes: Vec<NodeId> = match from {
            ReadFrom::Anywhere => self.readers(),
            ReadFrom::LocalOnly => self.nodes.iter().copied().filter(|n| *n == own).collect(),
        };
        let until = self.op_deadline();
        let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX);
        let request = Read { loglet: self.id, from: range.start, to: range.end, max_bytes };
        loop {
            let mut damaged = None;
            if let Some(found) = self.first_copy(&nodes, &request, &mut damaged).await {
                return found;
            }
            // The entry is on a majority; the servers that have it may return soon.
            let again = from == ReadFrom::Anywhere && self.pause(until).await;
            if !again {
                return Err(match damaged {
                    Some(what) => ReadError::Damaged(what),
                    None => ReadError::Unavailable(Unavailability::NoQuorum),
                });
            }
        }
    }

    /// Returns the first copy that one of these servers sends. Each server is asked when the one before has no copy or is slow. The answer
    /// of a slow server still counts, because it may have the only reachable copy.
    async fn first_copy(
        &self,
        nodes: &[NodeId],
        request: &Read,
        damaged: &mut Option<String>,
    ) -> Option<Result<ReadBatch, ReadError>> {
        let mut left = nodes.iter();
        let mut asked: Vec<(NodeId, Call<Read>)> = Vec::with_capacity(1);
        loop {
            if let Some(node) = left.next() {
                asked.push((*node, self.env.call_role(*node, LOG_SERVER, request.clone())));
            } else if asked.is_empty() {
                return None;
            }
            let is_last = left.len() == 0;
            let patience =
                if is_last { self.options.round_timeout } else { self.options.round_timeout / SLOW_PART };
            match self.env.within(patience, any_answer(&mut asked)).await {
                Ok((node, Ok(entries))) => {
                    if let Some(found) = self.judge_copy(node, entries, damaged) {
                        return Some(found);
                    }
                }
                Ok((_, Err(_))) => {}
                Err(Elapsed) => {
                    hit("native.read.slow");
                    asked.iter().for_each(|(node, _)| self.was_slow(*node));
                    if is_last {
                        return None;
                    }
                }
            }
        }
    }

    /// Interprets a server's answer. Returns None if another server must be asked.
    fn judge_copy(
        &self,
        node: NodeId,
        entries: Entries,
        damaged: &mut Option<String>,
    ) -> Option<Result<ReadBatch, ReadError>> {
        match entries.verdict {
            Verdict::Done {} => match decode_entries(entries) {
                Some(got) => {
                    let remote = if node == self.env.node() { 0 } else { got.len() as u64 };
                    if remote > 0 {
                        hit("native.read.remote");
                    }
                    return Some(Ok(ReadBatch { entries: got, remote }));
                }
                None => *damaged = Some(format!("node {node} sent a malformed batch")),
            },
            Verdict::Trimmed {} => return Some(Err(ReadError::Trimmed(entries.state.trim))),
            Verdict::Gone {} => return Some(Err(ReadError::Gone)),
            Verdict::Damaged { reason } => *damaged = Some(format!("node {node}: {reason}")),
            // An entry that one server lacks is not the end of the log, because another server has it (native-T11).
            _ => hit("native.read.not_here"),
        }
        None
    }
}

/// Waits for the next answer to one of these calls, and removes that call.
async fn any_answer(asked: &mut Vec<(NodeId, Call<Read>)>) -> (NodeId, Result<Entries, CallError>) {
    std::future::poll_fn(|cx| {
        for i in 0..asked.len() {
            if let Poll::Ready(answer) = Pin::new(&mut asked[i].1).poll(cx) {
                return Poll::Ready((asked.swap_remove(i).0, answer));
            }
        }
        Poll::Pending
    })
    .await
}

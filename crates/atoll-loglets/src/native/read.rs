//! readNext (native §4): exactly the offset asked for, from the own server, else from any other. One copy suffices.

use std::ops::Range;

use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_log::{Batch, Entry, Offset, ReadBatch, ReadError, ReadFrom, Why};

use super::loglet::Group;
use super::message::{Entries, Read, Verdict};
use crate::store::parse_counted;

/// The first look at each server takes at most this part of a round: a server that is cut off gives no answer, and the next one has the
/// same entries. Only if no server answers that fast does each get a whole round.
const FIRST_LOOK_PART: u32 = 6;

impl Group {
    /// Entries from `range.start` on. The caller has obtained a tail, or a stop, above the range (L6).
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
        let mut patience = match nodes.len() {
            0 | 1 => self.options.round_timeout,
            _ => self.options.round_timeout / FIRST_LOOK_PART,
        };
        loop {
            let mut damaged = None;
            for node in &nodes {
                let max_bytes = u32::try_from(max_bytes).unwrap_or(u32::MAX);
                let request = Read { loglet: self.id, from: range.start, to: range.end, max_bytes };
                let call = self.env.call(*node, request);
                let Ok(Ok(entries)) = self.env.within(patience, call).await else {
                    continue;
                };
                match entries.verdict {
                    Verdict::Done {} => match decode(entries) {
                        Some(got) => {
                            let remote = if *node == own { 0 } else { got.len() as u64 };
                            if remote > 0 {
                                hit("native.read.remote");
                            }
                            return Ok(ReadBatch { entries: got, remote });
                        }
                        None => damaged = Some(format!("node {node} sent a malformed batch")),
                    },
                    Verdict::Trimmed {} => return Err(ReadError::Trimmed(entries.state.trim)),
                    Verdict::Gone {} => return Err(ReadError::Gone),
                    Verdict::Damaged { reason } => damaged = Some(format!("node {node}: {reason}")),
                    // T11: not here is not the end of the log; another server has it.
                    _ => hit("native.read.not_here"),
                }
            }
            patience = self.options.round_timeout;
            // A copy is on a majority; the servers that have it may be back in a moment.
            let again = from == ReadFrom::Anywhere && self.pause(until).await;
            if !again {
                return Err(match damaged {
                    Some(what) => ReadError::Damaged(what),
                    None => ReadError::Unavailable(Why::NoQuorum),
                });
            }
        }
    }
}

/// The entries of an answer; None if it is malformed or empty.
pub(crate) fn decode(entries: Entries) -> Option<Vec<Entry>> {
    let mut out = Vec::new();
    for (count, bytes) in entries.counts.into_iter().zip(entries.batches) {
        let batch: Batch = parse_counted(bytes, count).ok()?;
        out.extend(batch.entries());
    }
    (!out.is_empty()).then_some(out)
}

//! readNext (virtuallog §3; vlog-V3, vlog-V7, vlog-V12).

use std::ops::Range;
use std::sync::Arc;

use atoll_core::testing::{hit, mutant};

use super::{LogError, LogReadError, Shared};
use crate::chain::{Segment, VersionedChain};
use crate::mutants;
use atoll_contract::entry::Entry;
use atoll_contract::loglet::{ReadError, ReadFrom, Unavailability};
use atoll_contract::position::LogPos;

/// Number of chain changes that one read follows before it fails as unavailable.
const ATTEMPTS: u32 = 8;

/// The result of a read: consecutive entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRead {
    /// The position of the first entry.
    pub first: LogPos,
    /// The entries; at least one. Some may be pads, which hold no record; [`LogRead::records`] leaves them out.
    pub entries: Vec<Entry>,
    /// How many of them came from another node.
    pub remote: u64,
}

impl LogRead {
    /// Returns the position after the last entry, where the next read continues.
    pub fn next(&self) -> LogPos {
        self.first.plus(self.entries.len() as u64)
    }

    /// Returns the records with their positions. There may be none, if all of these positions hold pads.
    pub fn records(&self) -> impl Iterator<Item = (LogPos, &Entry)> {
        let placed = self.entries.iter().enumerate().map(|(i, entry)| (self.first.plus(i as u64), entry));
        placed.filter(|(_, entry)| !entry.is_pad())
    }
}

impl Shared {
    pub(super) async fn read(
        self: &Arc<Self>,
        range: Range<LogPos>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<LogRead, LogReadError> {
        for _ in 0..ATTEMPTS {
            let chain = self.some_chain().await?;
            if range.start < chain.chain.trim() {
                return Err(LogReadError::Trimmed(chain.chain.trim()));
            }
            // None: a newer chain was read.
            let found = self.segment_at(&chain, range.start).await?;
            let Some(segment) = &found else { continue };
            let end = match self.bound(&chain, segment, &range).await? {
                Some(end) => end,
                None => continue,
            };
            let loglet = self.handle(segment)?;
            let offsets = segment.offset_of(range.start)..segment.offset_of(end);
            let Some(got) = self.while_active(segment, loglet.read(offsets, max_bytes, from)).await else {
                hit("vlog.read.superseded");
                continue;
            };
            match got {
                Ok(got) => {
                    atoll_core::invariant!(
                        !got.entries.is_empty() && got.entries.len() as u64 <= end.since(range.start),
                        "a read gives one entry at least, and none from beyond its range"
                    );
                    return Ok(LogRead { first: range.start, entries: got.entries, remote: got.remote });
                }
                Err(ReadError::Trimmed(at)) => {
                    hit("vlog.read.trimmed");
                    return Err(self.trimmed(segment.position_of(at), range.start).await);
                }
                Err(ReadError::Gone) => {
                    hit("vlog.read.gone");
                    self.newer_than(chain.version).await?;
                }
                Err(ReadError::BeyondTail(_)) => {
                    // Either the handle does not know the tail that this node knows, or the cached chain is too old.
                    hit("vlog.read.beyond");
                    if self.refreshed().await?.version == chain.version {
                        return Err(LogError::Unavailable(Unavailability::NoQuorum).into());
                    }
                }
                Err(ReadError::Unavailable(why)) => {
                    // In a newer chain, the segment may be on other servers (after a rebuild), even on this node's new disk.
                    if self.refreshed().await?.version == chain.version {
                        return Err(LogError::Unavailable(why).into());
                    }
                }
                Err(ReadError::Damaged(what)) => {
                    // In a newer chain, the segment may have a copy that was made from another server.
                    if self.refreshed().await?.version == chain.version {
                        return Err(LogReadError::Damaged(what));
                    }
                }
            }
        }
        Err(LogError::Unavailable(Unavailability::NoQuorum).into())
    }

    /// Returns where a read of this segment must end: at its stop or, in the active one, at a tail that this node obtained while the
    /// segment was open. A tail reported by others may be beyond a stop that this node does not know (vlog-V3). None: the chain has
    /// changed.
    async fn bound(
        self: &Arc<Self>,
        chain: &VersionedChain,
        segment: &Segment,
        range: &Range<LogPos>,
    ) -> Result<Option<LogPos>, LogReadError> {
        if mutant(mutants::VLOG_V3) && range.end > range.start {
            return Ok(Some(range.end));
        }
        let mut limit = match segment.stop {
            Some(stop) => stop,
            None => self.known().tail,
        };
        if segment.stop.is_none() && range.start >= limit {
            let round = self.check();
            limit = self.checked(round).await?.tail;
            if self.cached().is_some_and(|c| c.version != chain.version) {
                return Ok(None);
            }
        }
        let end = range.end.min(limit);
        if end <= range.start {
            return Err(LogError::BeyondTail(limit).into());
        }
        Ok(Some(end))
    }

    /// Finds the start of the log in the newest chain, after a Loglet has reported that it is trimmed.
    async fn trimmed(self: &Arc<Self>, loglet: LogPos, asked: LogPos) -> LogReadError {
        let chain = match self.refreshed().await {
            Ok(chain) => chain.chain.trim(),
            Err(_) => LogPos::ZERO,
        };
        LogReadError::Trimmed(loglet.max(chain).max(asked.plus(1)))
    }
}

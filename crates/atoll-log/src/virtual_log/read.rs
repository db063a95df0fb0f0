//! readNext (virtuallog §3; vlog-V3, vlog-V7, vlog-V12), and what surgery makes of the stored entries (virtuallog §7).

use std::ops::Range;
use std::sync::Arc;

use atoll_core::testing::{hit, mutant};

use super::{LogError, LogReadError, Shared};
use crate::chain::{Segment, VersionedChain};
use crate::mutants;
use crate::surgery::Surgery;
use atoll_contract::entry::{Entry, OpId};
use atoll_contract::loglet::{ReadError, ReadFrom, Unavailability};
use atoll_contract::position::LogPos;
use atoll_contract::register::Nonce;

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
    /// The entries among them that an operator has changed, in order.
    pub patched: Vec<Patched>,
}

/// An entry that an operator has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patched {
    /// Its position.
    pub at: LogPos,
    /// The surgery.
    pub id: Nonce,
    /// The name of the stored entry. A reader gets a pad for an excised entry, which does not have it.
    pub op: OpId,
    /// Whether the entry was excised.
    pub excised: bool,
}

impl LogRead {
    /// Lets the surgery take effect: cuts the read off at the held position, and applies the patches.
    fn operate(&mut self, surgery: &Surgery, held: Option<LogPos>) {
        if let Some(at) = held.filter(|at| *at >= self.first && *at < self.next()) {
            self.entries.truncate(at.since(self.first) as usize);
        }
        for patch in surgery.patches() {
            if patch.at < self.first || patch.at >= self.next() {
                continue;
            }
            let entry = &mut self.entries[patch.at.since(self.first) as usize];
            let (at, id, op) = (patch.at, patch.id, entry.op);
            self.patched.push(Patched { at, id, op, excised: patch.with.is_none() });
            *entry = patch.applied_to(entry);
        }
    }

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

/// Returns the position that nobody may read now.
fn held(surgery: &Surgery) -> Option<LogPos> {
    surgery.held().filter(|_| !mutant(mutants::VLOG_PASSES_HOLDS))
}

impl Shared {
    /// Reads what readers of the log may see. Stops before a held position. The newest chain that this node has read when the entries
    /// arrive decides, not the one with which the read began.
    pub(super) async fn read(
        self: &Arc<Self>,
        range: Range<LogPos>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<LogRead, LogReadError> {
        for _ in 0..ATTEMPTS {
            let mut chain = self.some_chain().await?;
            if held(chain.chain.surgery()) == Some(range.start) {
                // Whoever ends the surgery tells nobody.
                chain = self.refreshed().await?;
            }
            let until = held(chain.chain.surgery()).filter(|at| *at >= range.start);
            if until == Some(range.start) {
                hit("vlog.read.held");
                return Err(LogError::Held(range.start).into());
            }
            let end = until.map_or(range.end, |at| range.end.min(at));
            let mut read = self.read_stored(range.start..end, max_bytes, from).await?;
            let newest = self.some_chain().await?;
            // A trim drops the patches that it passes, so the stored entry may not be what readers get.
            if range.start < newest.chain.trim() {
                return Err(LogReadError::Trimmed(newest.chain.trim()));
            }
            let surgery = newest.chain.surgery();
            read.operate(surgery, held(surgery));
            if !read.patched.is_empty() {
                hit("vlog.read.patched");
            }
            if !read.entries.is_empty() {
                return Ok(read);
            }
            // The hold came during the read.
            hit("vlog.read.held_meanwhile");
        }
        Err(LogError::Unavailable(Unavailability::NoQuorum).into())
    }

    /// Reads the entries as their Loglets store them, held or not, without surgery. For searches for names, and for surgery itself.
    pub(super) async fn read_stored(
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
                    return Ok(LogRead {
                        first: range.start,
                        entries: got.entries,
                        remote: got.remote,
                        patched: Vec::new(),
                    });
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

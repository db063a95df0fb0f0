//! Reads consecutive entries: cached runs from memory, and the rest with one fetch from the disk.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::{Batch, Offset};
use atoll_core::{Caller, DecodeError, Loc, Lsn, Stored};

use super::runs::{Place, Runs};

/// The most payload bytes in one answer to a read, unless a single run is longer.
pub const MAX_READ_BYTES: usize = 1024 * 1024;
/// The most runs in one answer.
const MAX_READ_RUNS: usize = 256;

#[derive(Debug)]
enum Source {
    Memory(Bytes),
    /// The fetched record with this index.
    Disk(usize),
}

#[derive(Debug)]
struct Piece {
    /// The indices of the requested entries in the run.
    part: Range<usize>,
    /// The number of entries in the run.
    of: usize,
    source: Source,
}

/// The plan of a read, which is completed once the disk has answered.
#[derive(Debug)]
pub struct ReadPlan {
    pieces: Vec<Piece>,
    /// The records to fetch; empty if everything is in memory.
    pub locs: Vec<Loc>,
    /// The newest staged record that the answer would reveal (X1).
    pub reveals: Lsn,
}

/// Plans a read of consecutive entries, starting exactly at `range.start`. Returns None if that entry is not here (native-T11).
pub fn plan_read(runs: &Runs, range: Range<Offset>, max_bytes: usize) -> Option<ReadPlan> {
    let max_bytes = max_bytes.min(MAX_READ_BYTES);
    let mut plan = ReadPlan { pieces: Vec::new(), locs: Vec::new(), reveals: Lsn::NONE };
    let (mut at, mut total) = (range.start, 0);
    while at < range.end && plan.pieces.len() < MAX_READ_RUNS {
        let Some((first, run)) = runs.holding(at) else { break };
        total += run.len_bytes as usize;
        if total > max_bytes && !plan.pieces.is_empty() {
            break;
        }
        let end = first.plus(run.count.into()).min(range.end);
        let source = match (&run.cached, run.place) {
            (Some(bytes), place) => {
                if let Place::Staged(lsn) = place {
                    plan.reveals = plan.reveals.max(lsn);
                }
                Source::Memory(bytes.clone())
            }
            (None, Place::At(loc)) => {
                plan.locs.push(loc);
                Source::Disk(plan.locs.len() - 1)
            }
            (None, Place::Staged(_)) => break,
        };
        let part = at.since(first) as usize..end.since(first) as usize;
        plan.pieces.push(Piece { part, of: run.count as usize, source });
        at = end;
    }
    (!plan.pieces.is_empty()).then_some(plan)
}

/// Returns the number of entries in each batch of a plan, and the encoded batches, given the records that were fetched for it.
pub fn finish_read(plan: ReadPlan, fetched: Vec<Stored>) -> Result<(Vec<u32>, Vec<Bytes>), DecodeError> {
    let mut counts = Vec::with_capacity(plan.pieces.len());
    let mut payloads = Vec::with_capacity(plan.pieces.len());
    for piece in plan.pieces {
        let bytes = match piece.source {
            Source::Memory(bytes) => bytes,
            Source::Disk(n) => match fetched.get(n) {
                Some(stored) => stored.record.payload.clone(),
                None => break,
            },
        };
        counts.push(piece.part.len() as u32);
        if piece.part.len() == piece.of {
            payloads.push(bytes);
        } else {
            let batch = Batch::parse(bytes)?;
            if piece.part.end > batch.len() {
                return Err(DecodeError::Short {
                    what: "stored run",
                    needed: piece.part.end,
                    left: batch.len(),
                });
            }
            payloads.push(batch.slice(piece.part.start, piece.part.end).bytes().clone());
        }
    }
    Ok((counts, payloads))
}

/// A bounded number of reads that wait for the disk.
#[derive(Debug)]
pub struct PendingReads<K> {
    pending: BTreeMap<u64, (Caller, K, ReadPlan)>,
    limit: usize,
}

impl<K> PendingReads<K> {
    /// Returns an empty list that holds at most `limit` reads.
    pub fn new(limit: usize) -> Self {
        PendingReads { pending: BTreeMap::new(), limit }
    }

    /// Returns whether no further read may wait.
    pub fn is_full(&self) -> bool {
        self.pending.len() >= self.limit
    }

    /// Adds a read that waits for the fetch with this tag.
    pub fn push(&mut self, tag: u64, caller: Caller, key: K, plan: ReadPlan) {
        self.pending.insert(tag, (caller, key, plan));
    }

    /// Removes and returns the read with this tag.
    pub fn take(&mut self, tag: u64) -> Option<(Caller, K, ReadPlan)> {
        self.pending.remove(&tag)
    }

    /// Returns the number of waiting reads.
    pub fn len(&self) -> usize {
        self.pending.len()
    }
}

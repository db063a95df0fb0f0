//! What an orderer checks before it gives offsets: that no append of a handle is overtaken by a later one, and that no
//! operation gets a second place.

use std::collections::BTreeMap;

use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_log::{Batch, Offset, OpId};

use crate::dedupe::{Dedupe, Known};
use crate::lane::LanePlace;

/// Most lanes remembered; the one unused for longest is forgotten, and has to begin a new epoch.
const MAX_LANES: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Lane {
    epoch: u64,
    next_number: u64,
    used: u64,
}

/// An earlier attempt of an operation may be there, and was forgotten (contracts X16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten;

/// A stretch of a batch and its offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of its first entry.
    pub first: Offset,
    /// Number of entries.
    pub count: u32,
    /// The entries, unless they are there already.
    pub new: Option<Batch>,
}

/// See the file's words.
#[derive(Debug)]
pub struct Intake {
    dedupe: Dedupe,
    lanes: BTreeMap<(NodeId, u64), Lane>,
    uses: u64,
}

impl Intake {
    /// Remembers at most `dedupe_spans` spans of operations, and 1024 handles.
    pub fn new(dedupe_spans: usize) -> Self {
        Intake { dedupe: Dedupe::new(dedupe_spans), lanes: BTreeMap::new(), uses: 0 }
    }

    /// True if this is the next append of its handle (L8). Marked only by [`Intake::took`].
    pub fn in_order(&self, node: NodeId, place: LanePlace) -> bool {
        match self.lanes.get(&(node, place.lane)) {
            Some(known) if known.epoch == place.epoch => known.next_number == place.number,
            Some(known) => place.epoch > known.epoch && place.number == 0,
            None => place.number == 0,
        }
    }

    /// An append was taken.
    pub fn took(&mut self, node: NodeId, place: LanePlace) {
        let key = (node, place.lane);
        if self.lanes.len() >= MAX_LANES
            && !self.lanes.contains_key(&key)
            && let Some(oldest) = self.lanes.iter().min_by_key(|(_, l)| l.used).map(|(k, _)| *k)
        {
            self.lanes.remove(&oldest);
        }
        self.uses += 1;
        let lane = Lane { epoch: place.epoch, next_number: place.number + 1, used: self.uses };
        self.lanes.insert(key, lane);
    }

    /// Finds the entries of a batch that are there already, and gives the others consecutive offsets from `next` on.
    pub fn place(&mut self, batch: &Batch, next: Offset) -> Result<Vec<Part>, Forgotten> {
        let known = self.look_up(batch)?;
        let mut parts = Vec::with_capacity(known.len());
        let (mut next, mut at) = (next, 0);
        for (known, count) in known {
            let upto = at + count as usize;
            parts.push(match known {
                Known::At(first) => Part { first, count, new: None },
                _ => {
                    let whole = count as usize == batch.len();
                    let entries = if whole { batch.clone() } else { batch.slice(at, upto) };
                    let first = next;
                    self.note(&entries, first);
                    next = first.plus(count.into());
                    Part { first, count, new: Some(entries) }
                }
            });
            at = upto;
        }
        Ok(parts)
    }

    /// Remembers that these entries are at these offsets.
    pub fn note(&mut self, batch: &Batch, first: Offset) {
        for_spans(batch, |op, i, n| self.dedupe.note(op, first.plus(i), n));
    }

    /// Keeps to the bound; what lies at or above `settled` is in flight and stays.
    pub fn forget_below(&mut self, settled: Offset) {
        self.dedupe.forget_below(settled);
    }

    /// What is known of the entries: neighbours of one kind in one item.
    fn look_up(&mut self, batch: &Batch) -> Result<Vec<(Known, u32)>, Forgotten> {
        let mut found: Vec<(Known, u32)> = Vec::with_capacity(1);
        let mut forgotten = false;
        let dedupe = &mut self.dedupe;
        for_spans(batch, |op, _, n| {
            let (mut op, mut left) = (op, n);
            while left > 0 && !forgotten {
                let (known, n) = dedupe.look(op, left);
                forgotten |= known == Known::Forgotten;
                match (found.last_mut(), known) {
                    (Some((Known::New, count)), Known::New) => *count += n,
                    (Some((Known::At(first), count)), Known::At(at)) if first.plus((*count).into()) == at => {
                        *count += n;
                    }
                    _ => found.push((known, n)),
                }
                left -= n;
                op.seq = op.seq.saturating_add(n.into());
            }
        });
        if forgotten {
            hit("intake.forgotten");
            return Err(Forgotten);
        }
        Ok(found)
    }
}

/// Calls `f(first operation, index, count)` for every stretch of consecutive numbers of one client.
fn for_spans(batch: &Batch, mut f: impl FnMut(OpId, u64, u32)) {
    let mut span: Option<(OpId, u64, u32)> = None;
    for (i, op) in batch.ops().enumerate() {
        match &mut span {
            Some((first, _, n))
                if first.client == op.client && first.seq.checked_add(u64::from(*n)) == Some(op.seq) =>
            {
                *n += 1;
            }
            _ => {
                if let Some((first, at, n)) = span.replace((op, i as u64, 1)) {
                    f(first, at, n);
                }
            }
        }
    }
    if let Some((first, at, n)) = span {
        f(first, at, n);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_log::{ClientId, Entry};
    use bytes::Bytes;

    fn batch(ops: &[(u64, u64)]) -> Batch {
        Batch::of(ops.iter().map(|(client, seq)| Entry {
            op: OpId { client: ClientId(*client), seq: *seq },
            payload: Bytes::from(format!("{client}/{seq}")),
        }))
    }

    #[test]
    fn old_and_new_entries_of_one_batch_are_told_apart() {
        let mut intake = Intake::new(100);
        let all = |parts: Vec<Part>| -> Vec<(u64, u32, bool)> {
            parts.into_iter().map(|p| (p.first.0, p.count, p.new.is_some())).collect()
        };
        let first = batch(&[(1, 1), (1, 2), (2, 1), (1, 3)]);
        assert_eq!(all(intake.place(&first, Offset(10)).unwrap()), [(10, 4, true)]);
        let second = batch(&[(2, 2), (1, 2), (2, 1), (1, 4), (1, 5)]);
        assert_eq!(
            all(intake.place(&second, Offset(14)).unwrap()),
            [(14, 1, true), (11, 2, false), (15, 2, true)]
        );
    }

    #[test]
    fn a_lane_takes_no_gap_and_no_past() {
        let mut intake = Intake::new(100);
        let node = NodeId(1);
        let place = |epoch, number| LanePlace { lane: 5, epoch, number };
        assert!(!intake.in_order(node, place(0, 1)), "an unknown lane begins at 0");
        intake.took(node, place(0, 0));
        assert!(intake.in_order(node, place(0, 1)));
        assert!(!intake.in_order(node, place(0, 0)), "doubled");
        assert!(!intake.in_order(node, place(0, 2)), "one is missing");
        assert!(intake.in_order(node, place(3, 0)));
        intake.took(node, place(3, 0));
        assert!(!intake.in_order(node, place(0, 1)), "late, of an epoch that is over");
    }
}

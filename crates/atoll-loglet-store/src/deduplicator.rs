//! The checks of an orderer (a sequencer, or the store of a local Loglet) before it assigns offsets: no append of a handle is overtaken by
//! a later one, and no operation gets a second offset.

use std::collections::BTreeMap;

use atoll_contract::{Batch, Offset, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{hit, mutant};

use crate::handle_order::HandlePlace;
use crate::message::NotBelow;
use crate::mutants;
use crate::remembered_ops::{Known, RememberedOps};

/// The most handles that are remembered. Beyond that, the least recently used one is forgotten and must begin a new epoch.
const MAX_HANDLES: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct HandleState {
    epoch: u64,
    next_number: u64,
    used: u64,
}

/// An earlier attempt of an operation may have been appended and forgotten (contracts X16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten;

/// Consecutive entries of a batch, and their offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The offset of the first entry.
    pub first: Offset,
    /// The number of entries.
    pub count: u32,
    /// The entries, unless they were already appended.
    pub new: Option<Batch>,
}

/// The checks of one orderer; see the module documentation.
#[derive(Debug)]
pub struct Deduplicator {
    dedupe: RememberedOps,
    handles: BTreeMap<(NodeId, u64), HandleState>,
    uses: u64,
}

impl Deduplicator {
    /// Returns a deduplicator that remembers at most `dedupe_spans` spans of operations, and 1024 handles. What is below `forgotten_end`
    /// counts as forgotten.
    pub fn new(dedupe_spans: usize, forgotten_end: Offset) -> Self {
        Deduplicator {
            dedupe: RememberedOps::new(dedupe_spans, forgotten_end),
            handles: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Returns whether this is the next append of its handle (vlog-L8). Only [`Deduplicator::took`] records an append.
    pub fn in_order(&self, node: NodeId, place: HandlePlace) -> bool {
        match self.handles.get(&(node, place.handle)) {
            Some(known) if known.epoch == place.epoch => known.next_number == place.number,
            Some(known) => place.epoch > known.epoch && place.number == 0,
            None => place.number == 0,
        }
    }

    /// Returns whether an append may have been accepted already: it is a second copy of an accepted append, or a late append of an epoch
    /// that is over. "Not appended" would be a false answer to either. The first copy gets the true answer; a caller that gets no answer
    /// learns nothing false.
    pub fn may_be_taken(&self, node: NodeId, place: HandlePlace) -> bool {
        self.handles.get(&(node, place.handle)).is_some_and(|known| {
            place.epoch < known.epoch || (place.epoch == known.epoch && place.number < known.next_number)
        })
    }

    /// Records that an append was accepted.
    pub fn took(&mut self, node: NodeId, place: HandlePlace) {
        let key = (node, place.handle);
        if self.handles.len() >= MAX_HANDLES
            && !self.handles.contains_key(&key)
            && let Some(oldest) = self.handles.iter().min_by_key(|(_, l)| l.used).map(|(k, _)| *k)
        {
            self.handles.remove(&oldest);
        }
        self.uses += 1;
        let handle = HandleState { epoch: place.epoch, next_number: place.number + 1, used: self.uses };
        self.handles.insert(key, handle);
    }

    /// Finds the entries of a batch that were already appended, and assigns consecutive offsets from `next` on to the others. An operation
    /// that occurs twice in the batch gets one offset (vlog-V22). None of the entries is below `claim`. On an error, nothing is recorded.
    ///
    /// Pads are for the offsets from `claim` on, one each: a pad whose offset is taken already, by whatever entry, is not appended
    /// ([`atoll_contract::Loglet::append_above`]). Without a claim, nobody knows which offsets they are for, and all are appended.
    pub fn place(&mut self, batch: &Batch, next: Offset, claim: NotBelow) -> Result<Vec<Part>, Forgotten> {
        let not_below = claim.offset();
        // Check all operations before recording any.
        let mut forgotten = false;
        for_spans(batch, |op, n| forgotten |= self.is_forgotten(op, n, not_below));
        if forgotten {
            hit("deduplicator.forgotten");
            return Err(Forgotten);
        }
        let (mut runs, mut next) = (Vec::with_capacity(1), next);
        let mut unnoted = Vec::new();
        let mut pad_for = claim.0.unwrap_or(next);
        for_spans(batch, |op, n| {
            if op.is_pad() {
                let wanted = pad_for;
                pad_for = wanted.plus(n.into());
                if wanted < next && !mutant(mutants::PADS_PILE_UP) {
                    hit("deduplicator.pad_not_needed");
                    return Run::push(&mut runs, wanted, n, false);
                }
            }
            self.look_through(op, n, not_below, |dedupe, op, known, n| {
                let Known::At(first) = known else {
                    // Record before the next lookup, which may be for the same operation.
                    match mutant(mutants::VLOG_V22) {
                        true => unnoted.push((op, next, n)),
                        false => dedupe.note(op, next, n),
                    }
                    Run::push(&mut runs, next, n, true);
                    next = next.plus(n.into());
                    return;
                };
                Run::push(&mut runs, first, n, false);
            });
        });
        for (op, first, n) in unnoted {
            self.dedupe.note(op, first, n);
        }
        Ok(Run::cut(&runs, batch))
    }

    fn is_forgotten(&mut self, op: OpId, count: u32, not_below: Offset) -> bool {
        let mut forgotten = false;
        self.look_through(op, count, not_below, |_, _, known, _| forgotten |= known == Known::Forgotten);
        forgotten
    }

    /// Calls `f(dedupe, first operation, what is known about it, for how many it holds)` for every part of a span.
    fn look_through(
        &mut self,
        mut op: OpId,
        mut left: u32,
        not_below: Offset,
        mut f: impl FnMut(&mut RememberedOps, OpId, Known, u32),
    ) {
        while left > 0 {
            let (known, n) = self.dedupe.look(op, left, not_below);
            f(&mut self.dedupe, op, known, n);
            left -= n;
            op.seq = op.seq.saturating_add(n.into());
        }
    }

    /// Remembers that these entries are at these offsets.
    pub fn note(&mut self, batch: &Batch, first: Offset) {
        let mut at = first;
        for_spans(batch, |op, n| {
            self.dedupe.note(op, at, n);
            at = at.plus(n.into());
        });
    }

    /// Records that operations below this offset may be unknown.
    pub fn forgot(&mut self, below: Offset) {
        self.dedupe.forgot(below);
    }

    /// Enforces the limit; operations at or above `settled` are in flight and stay.
    pub fn forget_below(&mut self, settled: Offset) {
        self.dedupe.forget_below(settled);
    }
}

/// Adjacent entries of a batch with consecutive offsets, either all new or all known.
#[derive(Debug)]
struct Run {
    first: Offset,
    count: u32,
    new: bool,
}

impl Run {
    /// Adds `count` entries with offsets from `first` on.
    fn push(runs: &mut Vec<Run>, first: Offset, count: u32, new: bool) {
        match runs.last_mut() {
            Some(last) if last.new == new && last.first.plus(last.count.into()) == first => {
                last.count += count
            }
            _ => runs.push(Run { first, count, new }),
        }
    }

    /// Returns the parts of the batch that correspond to the runs.
    fn cut(runs: &[Run], batch: &Batch) -> Vec<Part> {
        let mut at = 0;
        let part = |run: &Run| {
            let (begin, end) = (at, at + run.count as usize);
            at = end;
            let whole = run.count as usize == batch.len();
            let entries = || if whole { batch.clone() } else { batch.slice(begin, end) };
            let new = run.new.then(entries);
            Part { first: run.first, count: run.count, new }
        };
        runs.iter().map(part).collect()
    }
}

/// Calls `f(first operation, count)` for every span of consecutive numbers of one client, in order.
fn for_spans(batch: &Batch, mut f: impl FnMut(OpId, u32)) {
    let mut span: Option<(OpId, u32)> = None;
    for op in batch.ops() {
        match &mut span {
            Some((first, n))
                if first.client == op.client && first.seq.checked_add(u64::from(*n)) == Some(op.seq) =>
            {
                *n += 1;
            }
            _ => {
                if let Some((first, n)) = span.replace((op, 1)) {
                    f(first, n);
                }
            }
        }
    }
    if let Some((first, n)) = span {
        f(first, n);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_contract::{ClientId, Entry};
    use bytes::Bytes;

    fn above(offset: u64) -> NotBelow {
        NotBelow(Some(Offset(offset)))
    }

    fn batch(ops: &[(u64, u64)]) -> Batch {
        Batch::of(ops.iter().map(|(client, seq)| Entry {
            op: OpId { client: ClientId(*client), seq: *seq },
            payload: Bytes::from(format!("{client}/{seq}")),
        }))
    }

    #[test]
    fn old_and_new_entries_of_one_batch_are_told_apart() {
        let mut deduplicator = Deduplicator::new(100, Offset::ZERO);
        let all = |parts: Vec<Part>| -> Vec<(u64, u32, bool)> {
            parts.into_iter().map(|p| (p.first.0, p.count, p.new.is_some())).collect()
        };
        let first = batch(&[(1, 1), (1, 2), (2, 1), (1, 3)]);
        assert_eq!(all(deduplicator.place(&first, Offset(10), above(0)).unwrap()), [(10, 4, true)]);
        let second = batch(&[(2, 2), (1, 2), (2, 1), (1, 4), (1, 5)]);
        assert_eq!(
            all(deduplicator.place(&second, Offset(14), above(0)).unwrap()),
            [(14, 1, true), (11, 2, false), (15, 2, true)]
        );
    }

    #[test]
    fn an_operation_twice_in_one_batch_gets_one_place() {
        let mut deduplicator = Deduplicator::new(100, Offset::ZERO);
        let twice = batch(&[(1, 1), (1, 2), (2, 9), (1, 1), (1, 2), (1, 3), (2, 9)]);
        let parts = deduplicator.place(&twice, Offset(10), above(0)).unwrap();
        let all: Vec<_> =
            parts.iter().map(|p| (p.first.0, p.count, p.new.as_ref().map(Batch::len))).collect();
        assert_eq!(all, [(10, 3, Some(3)), (10, 2, None), (13, 1, Some(1)), (12, 1, None)]);
        let nameless = batch(&[(0, 1), (0, 1)]);
        let parts = deduplicator.place(&nameless, Offset(14), above(0)).unwrap();
        assert_eq!(parts.iter().map(|p| p.count).sum::<u32>(), 2, "records of client 0 are not told apart");
        assert!(parts.iter().all(|p| p.new.is_some()));
    }

    #[test]
    fn a_pad_fills_its_offset_and_no_other() {
        let mut deduplicator = Deduplicator::new(100, Offset::ZERO);
        let mut fill = |next, from, count| -> Vec<(u64, u32, bool)> {
            let parts = deduplicator.place(&Batch::pads(count), Offset(next), above(from)).unwrap();
            parts.into_iter().map(|p| (p.first.0, p.count, p.new.is_some())).collect()
        };
        assert_eq!(fill(4, 4, 3), [(4, 3, true)]);
        assert_eq!(fill(7, 4, 3), [(4, 3, false)], "all of them were filled by another handle");
        assert_eq!(fill(6, 4, 3), [(4, 2, false), (6, 1, true)], "some are taken, by pads or by records");
        assert_eq!(fill(9, 4, 3), [(4, 3, false)], "more is filled than is wanted");
        assert_eq!(fill(2, 4, 1), [(2, 1, true)], "offsets have no gaps");
        let parts = deduplicator.place(&Batch::pads(2), Offset(9), NotBelow(None)).unwrap();
        assert_eq!(
            (parts[0].first, parts[0].count, parts[0].new.is_some()),
            (Offset(9), 2, true),
            "no claim"
        );
    }

    #[test]
    fn nothing_of_a_batch_is_noted_if_something_has_to_be_looked_for() {
        let mut deduplicator = Deduplicator::new(100, Offset(5));
        let mixed = batch(&[(1, 1), (2, 1)]);
        assert_eq!(deduplicator.place(&mixed, Offset(10), above(4)), Err(Forgotten));
        let parts = deduplicator.place(&mixed, Offset(20), above(5)).unwrap();
        assert_eq!((parts.len(), parts[0].first, parts[0].count), (1, Offset(20), 2));
    }

    #[test]
    fn a_lane_takes_no_gap_and_no_past() {
        let mut deduplicator = Deduplicator::new(100, Offset::ZERO);
        let node = NodeId(1);
        let place = |epoch, number| HandlePlace { handle: 5, epoch, number };
        assert!(!deduplicator.in_order(node, place(0, 1)), "an unknown handle begins at 0");
        deduplicator.took(node, place(0, 0));
        assert!(deduplicator.in_order(node, place(0, 1)));
        assert!(!deduplicator.in_order(node, place(0, 0)), "doubled");
        assert!(
            deduplicator.may_be_taken(node, place(0, 0)) && !deduplicator.may_be_taken(node, place(0, 2))
        );
        assert!(!deduplicator.in_order(node, place(0, 2)), "one is missing");
        assert!(deduplicator.in_order(node, place(3, 0)));
        deduplicator.took(node, place(3, 0));
        assert!(!deduplicator.in_order(node, place(0, 1)), "late, of an epoch that is over");
        assert!(deduplicator.may_be_taken(node, place(0, 1)));
    }
}

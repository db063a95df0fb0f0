//! The names of the operations in the newest part of a loglet, so that no operation gets a second offset (vlog-V2, vlog-V22).
//!
//! No server checks names. The handle that appends must therefore know every name from some offset up to the tail at which it appends. The
//! version of the tail's znode, which the append checks, proves that it knows them all.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::{Batch, ClientId, Offset, OpId, Placement};
use bytes::{Bytes, BytesMut};

/// The most names that a handle remembers.
pub(crate) const MAX_NAMES: usize = 64 * 1024;

/// What to append of some waiting batches, and where each of their entries is or will be.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The placement of each batch, up to the first one with an operation that may have been forgotten (X16).
    pub(crate) placements: Vec<Placement>,
    /// The entries that are not in the loglet yet. None if all are.
    pub(crate) new: Option<Batch>,
}

/// The names of a part of the loglet that ends at the tail.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// All names of operations at this offset and above are known.
    from: Offset,
    places: BTreeMap<OpId, Offset>,
    /// The batches of that part: the names in each, and where it ends.
    batches: VecDeque<(Vec<OpId>, Offset)>,
}

impl Names {
    /// Knows the names from this offset on, where nothing was appended yet.
    pub(crate) fn from(at: Offset) -> Self {
        Names { from: at, ..Names::default() }
    }

    /// Learns a batch that follows everything known.
    pub(crate) fn note(&mut self, first: Offset, batch: &Batch) {
        let mut ops = Vec::with_capacity(batch.len());
        for (at, op) in (0..).map(|i| first.plus(i)).zip(batch.ops()) {
            if is_named(op) {
                self.places.insert(op, at);
                ops.push(op);
            }
        }
        self.batches.push_back((ops, first.plus(batch.len() as u64)));
        while self.places.len() > MAX_NAMES
            && let Some((ops, end)) = self.batches.pop_front()
        {
            for op in ops {
                self.places.remove(&op);
            }
            self.from = end;
        }
    }

    /// Finds out which entries of these batches are new, and places them from `next` on. None of the entries of a batch is below the offset
    /// beside it. If an operation may be below the known part nevertheless, the plan ends before its batch.
    pub(crate) fn plan<'a>(&self, batches: impl Iterator<Item = (&'a Batch, Offset)>, next: Offset) -> Plan {
        let mut plan = Planning { names: self, next, own: BTreeMap::new(), pieces: Vec::new(), count: 0 };
        let mut placements = Vec::new();
        for (batch, not_below) in batches {
            if not_below < self.from && batch.ops().any(|op| is_named(op) && !self.places.contains_key(&op)) {
                break;
            }
            placements.push(plan.place(batch));
        }
        Plan { placements, new: plan.finish() }
    }
}

/// Whether an operation can be told from others. The log's own entries, and pads, cannot.
fn is_named(op: OpId) -> bool {
    op.client != ClientId(0)
}

struct Planning<'a> {
    names: &'a Names,
    next: Offset,
    /// The new operations of this plan.
    own: BTreeMap<OpId, Offset>,
    pieces: Vec<Bytes>,
    count: usize,
}

impl Planning<'_> {
    fn place(&mut self, batch: &Batch) -> Placement {
        let mut runs: Vec<(Offset, u32)> = Vec::with_capacity(1);
        let mut new_from = None;
        for (index, op) in batch.ops().enumerate() {
            let known = self.names.places.get(&op).or_else(|| self.own.get(&op)).copied();
            let at = known.unwrap_or(self.next);
            if known.is_none() {
                new_from.get_or_insert(index);
                if is_named(op) {
                    self.own.insert(op, at);
                }
                self.next = at.plus(1);
                self.count += 1;
            } else if let Some(from) = new_from.take() {
                self.pieces.push(batch.slice(from, index).bytes().clone());
            }
            match runs.last_mut() {
                Some((first, n)) if first.plus((*n).into()) == at => *n += 1,
                _ => runs.push((at, 1)),
            }
        }
        if let Some(from) = new_from {
            self.pieces.push(batch.slice(from, batch.len()).bytes().clone());
        }
        Placement { runs }
    }

    fn finish(self) -> Option<Batch> {
        let mut pieces = self.pieces;
        let bytes = match pieces.len() {
            1 => pieces.pop()?,
            _ => {
                let mut all = BytesMut::with_capacity(pieces.iter().map(Bytes::len).sum());
                pieces.iter().for_each(|piece| all.extend_from_slice(piece));
                all.freeze()
            }
        };
        // Empty bytes are no batch: everything is in the loglet.
        let batch = Batch::parse(bytes).ok()?;
        debug_assert_eq!(batch.len(), self.count, "pieces of batches are batches");
        Some(batch)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::Entry;

    fn batch(client: u64, seqs: &[u64]) -> Batch {
        let entry =
            |seq: &u64| Entry { op: OpId { client: ClientId(client), seq: *seq }, payload: "x".into() };
        Batch::of(seqs.iter().map(entry))
    }

    fn plan(names: &Names, batches: &[Batch], next: u64) -> (Vec<Vec<(u64, u32)>>, usize) {
        let plan = names.plan(batches.iter().map(|b| (b, Offset(u64::MAX))), Offset(next));
        assert_eq!(plan.placements.len(), batches.len());
        let runs = |p: &Placement| p.runs.iter().map(|(at, n)| (at.0, *n)).collect();
        (plan.placements.iter().map(runs).collect(), plan.new.map_or(0, |b| b.len()))
    }

    #[test]
    fn what_is_there_keeps_its_offset_and_the_rest_follows_the_tail() {
        let mut names = Names::from(Offset(10));
        names.note(Offset(10), &batch(1, &[1, 2, 3]));
        assert_eq!(plan(&names, &[batch(1, &[4, 5])], 13), (vec![vec![(13, 2)]], 2));
        assert_eq!(plan(&names, &[batch(1, &[1, 2, 3])], 13), (vec![vec![(10, 3)]], 0));
        assert_eq!(plan(&names, &[batch(1, &[3, 4])], 13), (vec![vec![(12, 2)]], 1), "they are neighbours");
        assert_eq!(plan(&names, &[batch(1, &[1, 4])], 13), (vec![vec![(10, 1), (13, 1)]], 1));
    }

    #[test]
    fn an_operation_that_comes_twice_in_one_plan_is_appended_once() {
        let names = Names::from(Offset(0));
        let twice = [batch(1, &[1, 1]), batch(1, &[1, 2])];
        assert_eq!(plan(&names, &twice, 0), (vec![vec![(0, 1), (0, 1)], vec![(0, 2)]], 2));
    }

    #[test]
    fn pads_are_never_the_same() {
        let mut names = Names::from(Offset(0));
        names.note(Offset(0), &Batch::pads(2));
        assert_eq!(plan(&names, &[Batch::pads(2)], 2), (vec![vec![(2, 2)]], 2));
    }

    #[test]
    fn below_the_known_part_an_operation_may_have_been_forgotten() {
        let names = Names::from(Offset(10));
        let (first, second) = (batch(1, &[1]), batch(2, &[1]));
        let both = [(&first, Offset(10)), (&second, Offset(9))];
        let plan = names.plan(both.into_iter(), Offset(10));
        assert_eq!(plan.placements, [Placement::contiguous(Offset(10), 1)], "the first one can be appended");
    }

    #[test]
    fn the_oldest_names_are_forgotten_first() {
        let mut names = Names::from(Offset(0));
        let many: Vec<u64> = (1..=1000).collect();
        for client in 1..=70 {
            names.note(Offset((client - 1) * 1000), &batch(client, &many));
        }
        assert!(names.places.len() <= MAX_NAMES && names.batches.len() == 65, "{}", names.batches.len());
        assert_eq!(names.from, Offset(5000));
    }
}

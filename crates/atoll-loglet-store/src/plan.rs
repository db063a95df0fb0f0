//! What the next piece of a log must contain, and where its appends then are: the operations that are in the log already keep their
//! offsets. For Loglets without an orderer, whose appenders know the operations in the log themselves.

use std::collections::BTreeMap;

use crate::remembered_ops::{Known, RememberedOps};
use atoll_contract::{Batch, Offset, OpId, Placement};

/// An append that wants a place.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its entries.
    pub batch: &'a Batch,
    /// None of its operations is below this offset.
    pub not_below: Offset,
}

/// The next piece of the log, if its first entry gets a given offset.
#[derive(Debug, Default)]
pub struct Plan {
    /// Its batches. None if everything is in the log already.
    pub batches: Vec<Batch>,
    /// How many entries they have.
    pub count: u32,
    /// Where each append is, in order. None if one of its operations may be in what was forgotten; those behind it are left out, because
    /// they must not overtake it (vlog-L8).
    pub placed: Vec<Option<Placement>>,
    /// Whether an operation was found in the log.
    pub found: bool,
}

impl Plan {
    /// Plans a piece whose first entry gets the offset `next`.
    pub fn of<'a>(
        ops: &mut RememberedOps,
        appends: impl IntoIterator<Item = Wanted<'a>>,
        next: Offset,
    ) -> Self {
        let mut plan = Plan::default();
        let mut planned: BTreeMap<OpId, Offset> = BTreeMap::new();
        for append in appends {
            let forgotten = append.batch.ops().any(|op| look(ops, op, append.not_below) == Known::Forgotten);
            if forgotten {
                plan.placed.push(None);
                break;
            }
            let (mut offsets, mut new) = (Vec::with_capacity(append.batch.len()), Vec::new());
            for (at, op) in append.batch.ops().enumerate() {
                let known = match look(ops, op, append.not_below) {
                    Known::At(offset) => Some(offset),
                    _ => planned.get(&op).copied(),
                };
                plan.found |= known.is_some();
                let offset = known.unwrap_or_else(|| {
                    let offset = next.plus(plan.count.into());
                    plan.count += 1;
                    new.push(at);
                    // The log's own entries have no names by which they could be told apart.
                    if op.client.0 != 0 {
                        planned.insert(op, offset);
                    }
                    offset
                });
                offsets.push(offset);
            }
            plan.batches.extend(pick(append.batch, &new));
            plan.placed.push(Some(Placement { runs: runs(&offsets) }));
        }
        plan
    }
}

fn look(ops: &mut RememberedOps, op: OpId, not_below: Offset) -> Known {
    ops.look(op, 1, not_below).0
}

/// Returns the entries with these numbers, in runs.
fn pick(batch: &Batch, numbers: &[usize]) -> Vec<Batch> {
    if numbers.len() == batch.len() {
        return vec![batch.clone()];
    }
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    runs.filter_map(|run| Some(batch.slice(*run.first()?, run.last()? + 1))).collect()
}

fn runs(offsets: &[Offset]) -> Vec<(Offset, u32)> {
    let runs = offsets.chunk_by(|a, b| a.plus(1) == *b);
    runs.filter_map(|run| Some((*run.first()?, run.len() as u32))).collect()
}

/// Remembers the operations of entries that are in the log from this offset on.
pub fn note<'a>(ops: &mut RememberedOps, batches: impl IntoIterator<Item = &'a Batch>, first: Offset) {
    let mut at = first;
    let mut span: Option<(OpId, Offset, u32)> = None;
    for op in batches.into_iter().flat_map(Batch::ops) {
        match &mut span {
            Some((begin, _, n))
                if begin.client == op.client && begin.seq.checked_add(u64::from(*n)) == Some(op.seq) =>
            {
                *n += 1;
            }
            _ => {
                if let Some((begin, offset, n)) = span.replace((op, at, 1)) {
                    ops.note(begin, offset, n);
                }
            }
        }
        at = at.plus(1);
    }
    if let Some((begin, offset, n)) = span {
        ops.note(begin, offset, n);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry};

    fn batch(ops: &[(u64, u64)]) -> Batch {
        let op = |(client, seq): &(u64, u64)| OpId { client: ClientId(*client), seq: *seq };
        Batch::of(ops.iter().map(|o| Entry { op: op(o), payload: format!("{o:?}").into() }))
    }

    fn plan(ops: &mut RememberedOps, batches: &[Batch], next: u64) -> Plan {
        let wanted = batches.iter().map(|batch| Wanted { batch, not_below: Offset(4) });
        Plan::of(ops, wanted, Offset(next))
    }

    #[test]
    fn what_is_in_the_log_is_not_put_again() {
        let mut ops = RememberedOps::new(100, Offset::ZERO);
        note(&mut ops, [&batch(&[(1, 1), (1, 2), (2, 7)])], Offset(4));
        let all = [batch(&[(3, 1), (1, 2), (3, 2)]), batch(&[(1, 1)]), batch(&[(3, 2), (3, 3)])];
        let plan = plan(&mut ops, &all, 10);
        let of = |i: usize| plan.placed[i].clone().unwrap().offsets().map(|o| o.0).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2)), (vec![10, 5, 11], vec![4], vec![11, 12]));
        let ops: Vec<u64> = plan.batches.iter().flat_map(Batch::ops).map(|op| op.seq).collect();
        assert_eq!((ops, plan.count, plan.found), (vec![1, 2, 3], 3, true));
    }

    #[test]
    fn a_plan_changes_nothing_until_it_is_noted() {
        let mut ops = RememberedOps::new(100, Offset::ZERO);
        let all = [batch(&[(1, 1), (0, 1), (0, 1)])];
        for next in [10, 20] {
            let plan = plan(&mut ops, &all, next);
            assert_eq!(plan.placed, [Some(Placement::contiguous(Offset(next), 3))]);
        }
    }

    #[test]
    fn what_may_have_been_forgotten_is_not_put() {
        let mut ops = RememberedOps::new(100, Offset(5));
        note(&mut ops, [&batch(&[(2, 1)])], Offset(5));
        let plan = plan(&mut ops, &[batch(&[(2, 1)]), batch(&[(1, 1)]), batch(&[(2, 1)])], 10);
        assert_eq!(
            plan.placed,
            [Some(Placement::contiguous(Offset(5), 1)), None],
            "and nothing overtakes it"
        );
        assert_eq!(plan.count, 0);
    }
}

//! What an orderer knows from reports: how a cut is formed (scalog.md §4). Soft state, which a new orderer begins without, and which comes
//! back within a few intervals.
//!
//! What a cut costs depends on the shards that have something to order, and not on how many shards there are.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::testing::mutant;

use crate::aggregator::merge;
use crate::message::Report;
use crate::mutants;
use crate::order::{Order, Shard, ShardCut};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reported {
    /// What each server has reported, by shard, and then by place in the shard. Empty if it has not reported.
    counts: BTreeMap<u32, Vec<Vec<u64>>>,
    /// The shards of which a server has reported more than was ordered when this orderer last looked. There is nothing to propose for
    /// others.
    open: BTreeSet<u32>,
    /// What is in the ordering log already, or on its way: no need to propose it again.
    proposed: BTreeMap<u32, Vec<u64>>,
}

impl Reported {
    /// Takes a report. One of a shard that has ended, or that nobody knows, is ignored (S13), like one of another size.
    pub fn hear(&mut self, order: &Order, report: &Report) {
        let shard = order.shards().get(&report.shard).filter(|shard| shard.is_live());
        let fits = shard.is_some_and(|shard| {
            (report.replica as usize) < shard.servers.len() && report.counts.len() == shard.servers.len()
        });
        let Some(shard) = shard.filter(|_| fits && !order.is_sealed()) else { return };
        let nothing = || vec![Vec::new(); shard.servers.len()];
        let all = self.counts.entry(report.shard).or_insert_with(nothing);
        if let Some(known) = all.get_mut(report.replica as usize) {
            merge(known, &report.counts);
        }
        if is_above(&report.counts, &shard.counts) || mutant(mutants::SCALOG_S2) {
            self.open.insert(report.shard);
        }
    }

    /// Forgets a shard that has ended.
    pub fn forget(&mut self, shard: u32) {
        self.counts.remove(&shard);
        self.open.remove(&shard);
        self.proposed.remove(&shard);
    }

    /// Returns the shards at which [`Reported::propose`] looks, in their order: all of which a server has more than is ordered, and some
    /// that were ordered since the last look.
    pub fn open(&self) -> &BTreeSet<u32> {
        &self.open
    }

    /// Returns what all servers of each live shard have, where that is new: the cut to propose. It counts as proposed from now on.
    pub fn propose(&mut self, order: &Order) -> Vec<ShardCut> {
        let mut cut = Vec::new();
        for number in std::mem::take(&mut self.open) {
            let Some(shard) = order.shards().get(&number).filter(|shard| shard.is_live()) else { continue };
            if self.has_more(number, shard) {
                self.open.insert(number);
            }
            let counts = self.minimum(number, shard);
            let proposed = self.proposed.get(&number);
            let is_new = |(segment, count): (usize, &u64)| {
                let known = proposed.and_then(|p| p.get(segment)).copied().unwrap_or(0);
                *count > known.max(shard.counts[segment])
            };
            let is_new = counts.iter().enumerate().any(is_new)
                || (mutant(mutants::SCALOG_S2) && proposed != Some(&counts));
            if is_new {
                cut.push(ShardCut { shard: number, counts });
            }
        }
        for shard in &cut {
            self.proposed.insert(shard.shard, shard.counts.clone());
        }
        cut
    }

    /// Returns whether all that was proposed is ordered, as far as its shards are live.
    pub fn is_ordered(&self, order: &Order) -> bool {
        let is_below = |(proposed, ordered): (&u64, &u64)| proposed <= ordered;
        self.proposed.iter().all(|(number, proposed)| {
            let shard = order.shards().get(number).filter(|shard| shard.is_live());
            shard.is_none_or(|shard| proposed.iter().zip(&shard.counts).all(is_below))
        })
    }

    /// Notes that a proposal failed: what was proposed may be missing in the ordering log.
    pub fn not_proposed(&mut self) {
        self.proposed.clear();
    }

    /// Returns whether a server of a shard has reported more than is ordered.
    fn has_more(&self, number: u32, shard: &Shard) -> bool {
        self.counts.get(&number).is_some_and(|all| all.iter().any(|counts| is_above(counts, &shard.counts)))
    }

    /// Returns whether a server of a shard has records that another one lacks, and nothing waits for the ordering log: what all of them
    /// have is ordered. What is ordered is on all servers, also if this orderer has not heard of some: they report to one orderer, and to
    /// others only for a while.
    pub fn lags(&self, number: u32, shard: &Shard) -> bool {
        self.has_more(number, shard) && !is_above(&self.minimum(number, shard), &shard.counts)
    }

    /// Returns how many servers have reported.
    pub fn servers(&self) -> usize {
        self.counts.values().flatten().filter(|counts| !counts.is_empty()).count()
    }

    /// Returns the minimum over the servers of a shard, for each segment: what is on all of them survives the loss of all but one. One
    /// that has not reported counts as nothing; what is ordered already stays ordered, because the cut is a maximum over time (S2, S5).
    fn minimum(&self, number: u32, shard: &Shard) -> Vec<u64> {
        let Some(reported) = self.counts.get(&number) else { return vec![0; shard.servers.len()] };
        let of_segment = |segment: usize| {
            let all = reported.iter().map(|counts| counts.get(segment).copied().unwrap_or(0));
            let count = if mutant(mutants::SCALOG_S5) { all.max() } else { all.min() };
            count.unwrap_or(0)
        };
        (0..shard.servers.len()).map(of_segment).collect()
    }
}

/// Returns whether any of these counts is above its counterpart.
fn is_above(counts: &[u64], others: &[u64]) -> bool {
    counts.iter().zip(others).any(|(count, other)| count > other)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::tests::{config, shard};
    use crate::order::OrderEntry;

    fn report(shard: u32, replica: u32, counts: &[u64]) -> Report {
        Report { shard, replica, counts: counts.to_vec() }
    }

    fn many_shards(count: u32) -> Order {
        Order::new(&config((0..count).map(|n| shard(n, &[2 * n + 1, 2 * n + 2])).collect()))
    }

    fn apply(order: &mut Order, cut: Vec<ShardCut>) {
        order.apply(&OrderEntry { cut, ..OrderEntry::nothing() });
    }

    #[test]
    fn a_cut_looks_only_at_shards_with_something_to_order() {
        let (mut order, mut reported) = (many_shards(1000), Reported::default());
        for shard in 0..1000 {
            reported.hear(&order, &report(shard, 0, &[1, 1]));
            reported.hear(&order, &report(shard, 1, &[1, 1]));
        }
        let all = reported.propose(&order);
        assert_eq!((all.len(), reported.open().len()), (1000, 1000));
        apply(&mut order, all);
        // This look finds that they are ordered.
        assert_eq!(reported.propose(&order), []);
        for shard in [3, 700] {
            reported.hear(&order, &report(shard, 0, &[2, 1]));
        }
        reported.hear(&order, &report(5, 0, &[1, 1]));
        assert_eq!(reported.open().iter().copied().collect::<Vec<_>>(), [3, 700]);
        reported.hear(&order, &report(700, 1, &[2, 1]));
        assert_eq!(reported.propose(&order), [ShardCut { shard: 700, counts: vec![2, 1] }]);
        assert_eq!(reported.open().len(), 2, "shard 3 lags, and the cut of shard 700 may get lost");
    }

    /// Random reports, proposals that are lost, late or applied, and shards that end: it proposes what a look at all shards finds.
    #[test]
    fn nothing_is_overlooked() {
        for seed in 1..=200_u64 {
            let mut random = seed;
            let mut draw = |below: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below
            };
            let (mut order, mut reported, mut on_their_way) =
                (many_shards(6), Reported::default(), Vec::new());
            for _ in 0..300 {
                match draw(10) {
                    0..=5 => {
                        let (shard, replica) = (draw(6) as u32, draw(2) as u32);
                        reported.hear(&order, &report(shard, replica, &[draw(50), draw(50)]));
                    }
                    6 | 7 => {
                        let due = by_looking_at_all(&reported, &order);
                        let cut = reported.propose(&order);
                        assert_eq!(cut, due, "seed {seed}");
                        on_their_way.push(cut);
                    }
                    8 if draw(4) == 0 => {
                        on_their_way.clear();
                        reported.not_proposed();
                    }
                    9 if draw(20) == 0 => {
                        let ends =
                            OrderEntry { finalize: vec![(draw(6) as u32, 0)], ..OrderEntry::nothing() };
                        for shard in order.apply(&ends).ended {
                            reported.forget(shard);
                        }
                    }
                    _ if on_their_way.is_empty() => {}
                    _ => {
                        let next = on_their_way.swap_remove(draw(on_their_way.len() as u64) as usize);
                        apply(&mut order, next);
                    }
                }
            }
        }
    }

    fn by_looking_at_all(reported: &Reported, order: &Order) -> Vec<ShardCut> {
        let live = order.shards().iter().filter(|(_, shard)| shard.is_live());
        let one = |(number, shard): (&u32, &Shard)| {
            let counts = reported.minimum(*number, shard);
            let proposed = reported.proposed.get(number).cloned().unwrap_or_default();
            let is_new = |(segment, count): (usize, &u64)| {
                *count > shard.counts[segment].max(proposed.get(segment).copied().unwrap_or(0))
            };
            let is_new = counts.iter().enumerate().any(is_new);
            is_new.then_some(ShardCut { shard: *number, counts })
        };
        live.filter_map(one).collect()
    }
}

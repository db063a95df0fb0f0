//! What an orderer knows from reports: how a cut is formed (scalog.md §4). Soft state, which a new orderer begins without, and which comes
//! back within a few intervals.

use std::collections::BTreeMap;

use atoll_core::testing::mutant;

use crate::aggregator::merge;
use crate::message::Report;
use crate::mutants;
use crate::order::{Order, Shard, ShardCut};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reported {
    /// What each server has reported, by shard and place in the shard.
    counts: BTreeMap<(u32, u32), Vec<u64>>,
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
        if fits && !order.is_sealed() {
            merge(self.counts.entry((report.shard, report.replica)).or_default(), &report.counts);
        }
    }

    /// Forgets a shard that has ended.
    pub fn forget(&mut self, shard: u32) {
        self.counts.retain(|(number, _), _| *number != shard);
        self.proposed.remove(&shard);
    }

    /// Returns what all servers of each live shard have, where that is new: the cut to propose. It counts as proposed from now on.
    pub fn propose(&mut self, order: &Order) -> Vec<ShardCut> {
        let mut cut = Vec::new();
        for (number, shard) in order.shards().iter().filter(|(_, shard)| shard.is_live()) {
            let counts = self.minimum(*number, shard);
            let proposed = self.proposed.get(number);
            let is_new = |(segment, count): (usize, &u64)| {
                let known = proposed.and_then(|p| p.get(segment)).copied().unwrap_or(0);
                *count > known.max(shard.counts[segment])
            };
            let heard = || self.counts.keys().any(|(s, _)| s == number);
            let is_new = counts.iter().enumerate().any(is_new)
                || (mutant(mutants::SCALOG_S2) && heard() && proposed != Some(&counts));
            if is_new {
                cut.push(ShardCut { shard: *number, counts });
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

    /// Returns whether a server of a shard has records that another one lacks, and nothing waits for the ordering log: what all of them
    /// have is ordered. What is ordered is on all servers, also if this orderer has not heard of some: they report to one orderer, and to
    /// others only for a while.
    pub fn lags(&self, number: u32, shard: &Shard) -> bool {
        let above = |(count, ordered): (&u64, &u64)| count > ordered;
        let counts = self.counts.range((number, 0)..=(number, u32::MAX)).map(|(_, counts)| counts);
        let has_more = counts.flat_map(|counts| counts.iter().zip(&shard.counts)).any(above);
        has_more && !self.minimum(number, shard).iter().zip(&shard.counts).any(above)
    }

    /// Returns how many servers have reported.
    pub fn servers(&self) -> usize {
        self.counts.len()
    }

    /// Returns the minimum over the servers of a shard, for each segment: what is on all of them survives the loss of all but one. One
    /// that has not reported counts as nothing; what is ordered already stays ordered, because the cut is a maximum over time (S2, S5).
    fn minimum(&self, number: u32, shard: &Shard) -> Vec<u64> {
        let replicas = 0..shard.servers.len();
        let reported = |replica: usize, segment: usize| {
            let counts = self.counts.get(&(number, replica as u32));
            counts.and_then(|counts| counts.get(segment)).copied().unwrap_or(0)
        };
        let of_segment = |segment| {
            let all = replicas.clone().map(|replica| reported(replica, segment));
            let count = if mutant(mutants::SCALOG_S5) { all.max() } else { all.min() };
            count.unwrap_or(0)
        };
        (0..shard.servers.len()).map(of_segment).collect()
    }
}

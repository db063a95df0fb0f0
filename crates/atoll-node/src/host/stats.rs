//! Counters and histograms of a host, shared by its threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The inclusive upper bounds of the buckets: microseconds for durations, plain numbers for sizes.
const BOUNDS: [u64; 22] = [
    1, 2, 4, 8, 16, 32, 64, 100, 150, 200, 300, 500, 750, 1_000, 1_500, 2_500, 5_000, 10_000, 25_000,
    100_000, 250_000, 1_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct Buckets {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum: AtomicU64,
}

impl Buckets {
    pub(crate) fn add(&self, value: u64) {
        let i = BOUNDS.partition_point(|bound| *bound < value);
        self.counts[i].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    pub(crate) fn add_micros(&self, d: Duration) {
        self.add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
    }

    fn snapshot(&self) -> Histogram {
        let mut total = 0;
        let cumulative = self.counts.each_ref().map(|c| {
            total += c.load(Ordering::Relaxed);
            total
        });
        Histogram {
            buckets: BOUNDS.iter().copied().zip(cumulative).collect(),
            count: total,
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// A histogram with fixed bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// For each bucket, the inclusive upper bound, and how many values do not exceed it.
    pub buckets: Vec<(u64, u64)>,
    /// The number of all values.
    pub count: u64,
    /// The sum of all values.
    pub sum: u64,
}

impl Histogram {
    /// Returns the upper bound of the bucket that contains this quantile, given in thousandths; `u64::MAX` if it is above all bounds.
    pub fn at_permille(&self, permille: u64) -> u64 {
        let rank = (self.count * permille).div_ceil(1000);
        self.buckets.iter().find(|(_, n)| *n >= rank).map_or(u64::MAX, |(bound, _)| *bound)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) turns: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) events: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) syncs_here: AtomicU64,
    pub(crate) flights: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) fetches: AtomicU64,
    pub(crate) refused_fetches: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) stalled_batches: AtomicU64,
    pub(crate) write_us: Buckets,
    pub(crate) sync_us: Buckets,
    pub(crate) batch_records: Buckets,
    pub(crate) events_per_turn: Buckets,
}

/// Counters and histograms since the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStats {
    /// The number of turns of the core.
    pub turns: u64,
    /// The number of steps in these turns: messages, polls, deadlines.
    pub steps: u64,
    /// The number of network events that were handled.
    pub events: u64,
    /// The number of batches that were written and synced.
    pub syncs: u64,
    /// How many of these batches the node thread wrote itself.
    pub syncs_here: u64,
    /// How many of those the disk wrote while no thread waited for it.
    pub flights: u64,
    /// The number of records in these batches.
    pub records: u64,
    /// The size of the heads and payloads in these batches, in bytes.
    pub bytes: u64,
    /// The number of reads of records.
    pub fetches: u64,
    /// The number of reads that were refused because too many waited.
    pub refused_fetches: u64,
    /// The number of checkpoints that were written.
    pub checkpoints: u64,
    /// How often the journal ran out of space while it wrote a batch.
    pub stalled_batches: u64,
    /// The time to write a batch, in microseconds.
    pub write_us: Histogram,
    /// The time to sync a batch, in microseconds.
    pub sync_us: Histogram,
    /// The number of records per batch.
    pub batch_records: Histogram,
    /// The number of network events per turn, without turns that had none.
    pub events_per_turn: Histogram,
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl Counters {
    pub(crate) fn snapshot(&self) -> HostStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        HostStats {
            turns: get(&self.turns),
            steps: get(&self.steps),
            events: get(&self.events),
            syncs: get(&self.syncs),
            syncs_here: get(&self.syncs_here),
            flights: get(&self.flights),
            records: get(&self.records),
            bytes: get(&self.bytes),
            fetches: get(&self.fetches),
            refused_fetches: get(&self.refused_fetches),
            checkpoints: get(&self.checkpoints),
            stalled_batches: get(&self.stalled_batches),
            write_us: self.write_us.snapshot(),
            sync_us: self.sync_us.snapshot(),
            batch_records: self.batch_records.snapshot(),
            events_per_turn: self.events_per_turn.snapshot(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_their_buckets() {
        let buckets = Buckets::default();
        for value in [0, 1, 2, 3, 1_000_000, 1_000_001] {
            buckets.add(value);
        }
        let got = buckets.snapshot();
        assert_eq!((got.count, got.sum), (6, 2_000_007));
        assert_eq!(got.buckets[..3], [(1, 2), (2, 3), (4, 4)]);
        assert_eq!(got.buckets.last(), Some(&(1_000_000, 5)));
        assert_eq!((got.at_permille(500), got.at_permille(1000)), (2, u64::MAX));
    }
}

//! How often a server may report (scalog.md §8).
//!
//! A report is under way until a cut covers it. Only a few reports of a server may be under way. If the ordering layer has more to do than
//! it can, cuts cover reports later, so servers report less often, and each report says more: the layer makes larger, rarer cuts. Without
//! this, the reports that wait would only become more, and in the end there would be no cuts.

use std::collections::VecDeque;
use std::time::Duration;

use atoll_core::Tick;

/// The most reports of a server that no cut covers yet. Few, because the ordering layer has at most so many reports of each server to
/// handle, and a report waits for all of them. More than one, because the next cut should not have to wait until the servers have heard of
/// the last one.
const UNDER_WAY: usize = 4;
/// A report counts as lost after this many times as long as the last one took.
const PATIENCE: u32 = 4;
/// A report counts as lost at the latest after this many times the least patience.
const MOST_PATIENCE: u32 = 16;

/// The reports of one server of a shard that no cut covers yet.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    /// What they say, and when they were sent, the oldest first.
    under_way: VecDeque<(Vec<u64>, Tick)>,
    /// How long it took until a cut covered the last one that is covered.
    took: Duration,
}

impl Pace {
    /// Returns whether no further report may be sent, unless one was lost.
    pub fn is_full(&self) -> bool {
        self.under_way.len() >= UNDER_WAY
    }

    /// Notes a report of something new. If there are too many, the oldest one counts as lost.
    pub fn sent(&mut self, now: Tick, counts: Vec<u64>) {
        if self.is_full() {
            self.under_way.pop_front();
        }
        self.under_way.push_back((counts, now));
    }

    /// Notes what is ordered of each segment.
    pub fn ordered(&mut self, now: Tick, cut: &[u64]) {
        let is_covered = |counts: &[u64]| counts.iter().zip(cut).all(|(count, ordered)| count <= ordered);
        while let Some((_, at)) = self.under_way.pop_front_if(|(counts, _)| is_covered(counts)) {
            self.took = now.since(at);
        }
    }

    /// Returns for how long a report may be without an effect. It is at least `least`. Under load, reports that only wait must not be sent
    /// again: this would be more load.
    pub fn patience(&self, least: Duration) -> Duration {
        (self.took * PATIENCE).clamp(least, least * MOST_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: Duration = Duration::from_millis(20);

    fn ms(n: u64) -> Tick {
        Tick(0).after(Duration::from_millis(n))
    }

    #[test]
    fn few_reports_are_under_way() {
        let mut pace = Pace::default();
        for n in 1..=4 {
            assert!(!pace.is_full());
            pace.sent(ms(n), vec![n, 7]);
        }
        assert!(pace.is_full());
        pace.ordered(ms(5), &[9, 6]);
        assert!(pace.is_full(), "no cut covers all that a report says");
        pace.ordered(ms(6), &[2, 7]);
        assert!(!pace.is_full());
        for n in 5..=6 {
            pace.sent(ms(n), vec![n, 7]);
        }
        assert!(pace.is_full(), "two are covered, and two are new");
        // One was lost, and another one is sent instead.
        pace.sent(ms(90), vec![8, 8]);
        pace.ordered(ms(91), &[6, 7]);
        assert!(!pace.is_full());
    }

    #[test]
    fn a_slow_layer_is_given_time() {
        let mut pace = Pace::default();
        assert_eq!(pace.patience(LEAST), LEAST);
        for (took, patience) in [(1, 20), (30, 120), (9000, 320), (2, 20)] {
            pace.sent(ms(0), vec![1]);
            pace.ordered(ms(took), &[1]);
            assert_eq!(pace.patience(LEAST), Duration::from_millis(patience));
        }
    }
}

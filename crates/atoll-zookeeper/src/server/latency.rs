//! Latencies of requests. Recording one takes a few atomic additions and no lock.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The base-2 logarithm of the number of buckets per power of two. A quantile is at most an eighth too high.
const PER_OCTAVE_BITS: u32 = 3;
const PER_OCTAVE: usize = 1 << PER_OCTAVE_BITS;
/// Latencies above 2^36 microseconds (19 hours) are not distinguished.
const BUCKETS: usize = (36 - PER_OCTAVE_BITS as usize + 1) * PER_OCTAVE;
/// Quantiles cover the current period of this length and the one before.
const WINDOW: Duration = Duration::from_secs(300);

/// Returns the bucket of a latency.
fn bucket(us: u64) -> usize {
    if us < PER_OCTAVE as u64 {
        return us as usize;
    }
    let octave = u64::BITS - 1 - us.leading_zeros();
    let below = (us >> (octave - PER_OCTAVE_BITS)) as usize - PER_OCTAVE;
    let at = (octave - PER_OCTAVE_BITS + 1) as usize * PER_OCTAVE + below;
    at.min(BUCKETS - 1)
}

/// Returns the longest latency of a bucket.
fn longest(bucket: usize) -> u64 {
    if bucket < PER_OCTAVE {
        return bucket as u64;
    }
    let octave = bucket / PER_OCTAVE - 1;
    ((PER_OCTAVE + bucket % PER_OCTAVE + 1) as u64 * (1 << octave)) - 1
}

type Buckets = [AtomicU64; BUCKETS];

/// The number of requests, and the sum and the extremes of their latencies.
#[derive(Debug)]
pub struct Totals {
    sum_us: AtomicU64,
    count: AtomicU64,
    least_us: AtomicU64,
    most_us: AtomicU64,
    last_us: AtomicU64,
}

impl Default for Totals {
    fn default() -> Self {
        Totals {
            sum_us: AtomicU64::new(0),
            count: AtomicU64::new(0),
            least_us: AtomicU64::new(u64::MAX),
            most_us: AtomicU64::new(0),
            last_us: AtomicU64::new(0),
        }
    }
}

impl Totals {
    /// Records `n` requests that took `us` microseconds each.
    pub fn add_many(&self, us: u64, n: u64) {
        self.sum_us.fetch_add(us.saturating_mul(n), Ordering::Relaxed);
        self.count.fetch_add(n, Ordering::Relaxed);
        self.last_us.store(us, Ordering::Relaxed);
        if us < self.least_us.load(Ordering::Relaxed) {
            self.least_us.fetch_min(us, Ordering::Relaxed);
        }
        if us > self.most_us.load(Ordering::Relaxed) {
            self.most_us.fetch_max(us, Ordering::Relaxed);
        }
    }

    /// Returns the latency of the last request, in microseconds; 0 if there was none.
    pub fn last_us(&self) -> u64 {
        self.last_us.load(Ordering::Relaxed)
    }

    /// Returns the statistics, without quantiles.
    pub fn summary(&self) -> Summary {
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let count = load(&self.count);
        let least_us = if count == 0 { 0 } else { load(&self.least_us) };
        let (sum_us, most_us) = (load(&self.sum_us), load(&self.most_us));
        Summary { count, sum_us, least_us, most_us, quantiles_us: [0; 4] }
    }

    /// Resets everything.
    pub fn reset(&self) {
        self.last_us.store(0, Ordering::Relaxed);
        self.sum_us.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
        self.least_us.store(u64::MAX, Ordering::Relaxed);
        self.most_us.store(0, Ordering::Relaxed);
    }
}

/// The latencies of one kind of request.
#[derive(Debug)]
pub struct Latency {
    totals: Totals,
    /// The histograms of the current and of the previous period.
    windows: [Buckets; 2],
    current: AtomicUsize,
    turned: Mutex<Instant>,
}

/// Statistics of latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of requests since the last reset.
    pub count: u64,
    /// The sum of their latencies.
    pub sum_us: u64,
    /// The least latency; 0 if there was no request.
    pub least_us: u64,
    /// The greatest latency; 0 if there was no request.
    pub most_us: u64,
    /// The quantiles 0.5, 0.95, 0.99 and 0.999 of the last minutes.
    pub quantiles_us: [u64; 4],
}

/// The quantiles of a [`Summary`], in thousandths.
pub const QUANTILES_PERMILLE: [u64; 4] = [500, 950, 990, 999];

impl Default for Latency {
    fn default() -> Self {
        let none = || std::array::from_fn(|_| AtomicU64::new(0));
        Latency {
            totals: Totals::default(),
            windows: [none(), none()],
            current: AtomicUsize::new(0),
            turned: Mutex::new(Instant::now()),
        }
    }
}

impl Latency {
    /// Records one request that took `us` microseconds.
    pub fn add(&self, us: u64) {
        self.add_many(us, 1);
    }

    /// Records `n` requests that took `us` microseconds each.
    pub fn add_many(&self, us: u64, n: u64) {
        self.totals.add_many(us, n);
        let current = self.current.load(Ordering::Relaxed) & 1;
        self.windows[current][bucket(us)].fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the statistics. If the current period is over, it first begins a new one.
    pub fn summary(&self) -> Summary {
        self.summary_at(Instant::now())
    }

    fn summary_at(&self, now: Instant) -> Summary {
        let mut turned = self.turned.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(*turned) >= WINDOW {
            *turned = now;
            let next = 1 - (self.current.load(Ordering::Relaxed) & 1);
            self.windows[next].iter().for_each(|n| n.store(0, Ordering::Relaxed));
            self.current.store(next, Ordering::Relaxed);
        }
        drop(turned);
        let load = |a: &AtomicU64| a.load(Ordering::Relaxed);
        let of = |at: usize| load(&self.windows[0][at]) + load(&self.windows[1][at]);
        let recent: u64 = (0..BUCKETS).map(of).sum();
        let quantile = |permille: u64| {
            let rank = (recent * permille).div_ceil(1000);
            let mut below = 0;
            let found = (0..BUCKETS).find(|at| {
                below += of(*at);
                below >= rank && recent > 0
            });
            found.map_or(0, longest)
        };
        Summary { quantiles_us: QUANTILES_PERMILLE.map(quantile), ..self.totals.summary() }
    }

    /// Resets everything except the histograms.
    pub fn reset(&self) {
        self.totals.reset();
    }
}

impl Summary {
    /// Returns the statistics of both together, without quantiles.
    pub fn and(self, other: Summary) -> Summary {
        let least = match (self.count, other.count) {
            (0, _) => other.least_us,
            (_, 0) => self.least_us,
            _ => self.least_us.min(other.least_us),
        };
        Summary {
            count: self.count + other.count,
            sum_us: self.sum_us + other.sum_us,
            least_us: least,
            most_us: self.most_us.max(other.most_us),
            quantiles_us: [0; 4],
        }
    }

    /// The average in milliseconds.
    pub fn average_ms(&self) -> f64 {
        ms(self.sum_us) / (self.count.max(1) as f64)
    }
}

/// Converts microseconds to milliseconds, in which ZooKeeper reports latencies.
pub fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for us in (0..100_000).chain([1 << 20, (1 << 30) + 7, (1 << 36) - 1]) {
            let at = bucket(us);
            assert!(us <= longest(at) && longest(at) <= us + us / 8, "{us}: {at}, {}", longest(at));
            assert!(at == 0 || longest(at - 1) < us, "{us}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_those_of_the_last_minutes() {
        let (latency, start) = (Latency::default(), Instant::now());
        latency.add_many(100, 90);
        latency.add_many(5_000, 10);
        let s = latency.summary_at(start);
        assert_eq!((s.count, s.sum_us, s.least_us, s.most_us), (100, 59_000, 100, 5_000));
        assert_eq!(s.quantiles_us.map(bucket), [100, 5_000, 5_000, 5_000].map(bucket));
        latency.summary_at(start + WINDOW);
        latency.add_many(7, 900);
        assert_eq!(latency.summary_at(start + WINDOW).quantiles_us[3], longest(bucket(5_000)), "1 % of them");
        let later = latency.summary_at(start + WINDOW * 2);
        assert_eq!(later.quantiles_us, [7; 4], "the first window is over");
        assert_eq!((later.count, later.most_us), (1_000, 5_000));
        latency.reset();
        let s = latency.summary_at(start + WINDOW * 2);
        assert_eq!((s.count, s.least_us, s.most_us), (0, 0, 0));
    }
}

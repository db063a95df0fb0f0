//! The latencies of the operations of a run.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Longer operations count as this long, in nanoseconds.
const LONGEST_NANOS: u64 = 60_000_000_000;

/// Latencies of the operations of one run.
pub struct Latencies {
    histogram: Histogram<u64>,
    /// The time that the operations took together, without pauses.
    pub busy: Duration,
    /// Number of operations that failed. Their time is not counted.
    pub errors: u64,
}

impl Latencies {
    /// Creates an empty set of latencies.
    pub fn new() -> Self {
        let Ok(histogram) = Histogram::new_with_bounds(1, LONGEST_NANOS, 3) else {
            unreachable!("the bounds and digits are what the library allows");
        };
        Latencies { histogram, busy: Duration::ZERO, errors: 0 }
    }

    /// Notes an operation.
    pub fn add(&mut self, took: Duration) {
        self.histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the operations of another run that went on at the same time.
    pub fn merge(&mut self, other: &Latencies) {
        // Both have the same bounds and digits, so nothing can be out of range.
        let _ = self.histogram.add(&other.histogram);
        self.errors += other.errors;
    }

    /// Returns the number of operations that succeeded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the latency that the fraction `q` of the operations does not exceed, in microseconds.
    pub fn quantile_us(&self, q: f64) -> f64 {
        self.histogram.value_at_quantile(q) as f64 / 1e3
    }

    /// Returns the output line of a run: figures first, then the settings.
    pub fn line(&self, system: &str, workload: &str, round: usize, settings: &Value) -> Value {
        let ops = self.histogram.len();
        let mut line = Map::new();
        let figures = json!({
            "system": system,
            "workload": workload,
            "round": round,
            "ops": ops,
            "ops_s": (ops as f64 / self.busy.as_secs_f64().max(1e-9)).round(),
            "p50_us": self.quantile_us(0.5),
            "p90_us": self.quantile_us(0.9),
            "p99_us": self.quantile_us(0.99),
            "p999_us": self.quantile_us(0.999),
            "max_us": self.quantile_us(1.0),
            "errors": self.errors,
            "settings": settings,
        });
        if let Value::Object(figures) = figures {
            line.extend(figures);
        }
        Value::Object(line)
    }
}

/// Returns the median, or 0 if there are no values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

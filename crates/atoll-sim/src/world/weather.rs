//! Delays, clock skew and sizes of a simulated cluster, before any fault.

/// Everything about the environment that is not a fault: delays, clock skew and sizes.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Mean one-way latency.
    pub latency_ns: u64,
    /// Mean time of a write to the page cache.
    pub write_ns: u64,
    /// Mean time of a sync.
    pub sync_ns: u64,
    /// Largest deviation of a node's clock, in thousandths.
    pub skew_permille: u64,
    /// Bytes in flight in one direction of a connection above which the connection counts as full.
    pub queue_bytes: usize,
    /// Size of the journal's segments.
    pub segment_bytes: u64,
}

impl Default for Weather {
    fn default() -> Self {
        Weather {
            latency_ns: 100_000,
            write_ns: 20_000,
            sync_ns: 150_000,
            skew_permille: 10,
            queue_bytes: 4 * 1024 * 1024,
            segment_bytes: 64 * 1024,
        }
    }
}

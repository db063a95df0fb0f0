//! What a door counts.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::time::Instant;

/// A count that only grows, until somebody sets it back.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// More.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// How many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// None again.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Of the whole door.
#[derive(Debug)]
pub struct Figures {
    /// Since when.
    pub started: Instant,
    /// Frames of clients.
    pub received: Count,
    /// Replies and events.
    pub sent: Count,
    /// Connections that were too many.
    pub refused_connections: Count,
    /// Frames that were too long or made no sense.
    pub refused_frames: Count,
    /// Clients that had seen more than there is here.
    pub refused_ahead: Count,
    /// Requests that were refused before they got into the log.
    pub refused_requests: Count,
    /// Clients that read too slowly.
    pub cut_off: Count,
    /// Sessions that this node has expired.
    pub expired: Count,
    /// Writes that found the log's queue full and waited.
    pub throttled: Count,
    /// Latencies of writes, in microseconds: their sum, count and greatest.
    pub write_us: Latency,
}

impl Default for Figures {
    fn default() -> Self {
        Figures {
            started: Instant::now(),
            received: Count::default(),
            sent: Count::default(),
            refused_connections: Count::default(),
            refused_frames: Count::default(),
            refused_ahead: Count::default(),
            refused_requests: Count::default(),
            cut_off: Count::default(),
            expired: Count::default(),
            throttled: Count::default(),
            write_us: Latency::default(),
        }
    }
}

/// Latencies: enough for ZooKeeper's min, avg and max.
#[derive(Debug, Default)]
pub struct Latency {
    sum: Count,
    count: Count,
    greatest: Count,
}

impl Latency {
    /// One more, in microseconds.
    pub fn add(&self, us: u64) {
        self.sum.add(us);
        self.count.add(1);
        self.greatest.0.fetch_max(us, Ordering::Relaxed);
    }

    /// Average and greatest, in milliseconds.
    pub fn avg_max_ms(&self) -> (f64, f64) {
        let ms = |us: u64| us as f64 / 1000.0;
        (ms(self.sum.get()) / (self.count.get().max(1) as f64), ms(self.greatest.get()))
    }

    /// None again.
    pub fn reset(&self) {
        self.sum.reset();
        self.count.reset();
        self.greatest.reset();
    }
}

/// Of one connection.
#[derive(Debug)]
pub struct ConnectionFigures {
    /// Whose.
    pub peer: SocketAddr,
    /// Since when.
    pub since: Instant,
    /// Its session; 0 before it has one.
    pub session: AtomicI64,
    /// Frames.
    pub received: Count,
    /// Replies and events.
    pub sent: Count,
    /// Requests without an answer yet.
    pub outstanding: AtomicU64,
}

impl ConnectionFigures {
    /// A new connection's.
    pub fn new(peer: SocketAddr) -> Self {
        ConnectionFigures {
            peer,
            since: Instant::now(),
            session: AtomicI64::new(0),
            received: Count::default(),
            sent: Count::default(),
            outstanding: AtomicU64::new(0),
        }
    }
}

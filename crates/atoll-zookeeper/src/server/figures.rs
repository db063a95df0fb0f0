//! What a door counts.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use tokio::time::Instant;

use super::latency::Latency;

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

/// Why something that a client wanted was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its address has as many connections as one may have.
    ConnectionsOfAddress,
    /// There are as many connections as there may be.
    Connections,
    /// Connections come too fast.
    ConnectionRate,
    /// It said nothing for too long before it had a session.
    Silent,
    /// A frame was too long or made no sense.
    Frame,
    /// It had seen more than there is here.
    Ahead,
    /// A request that cannot be done, before it got into the log.
    Request,
    /// It read too slowly.
    Slow,
    /// A four-letter word that is not allowed, or that there is not.
    Word,
    /// It did not prove who it is.
    Authentication,
    /// A write above a hard quota; those in transactions are not counted.
    Quota,
    /// Its TLS handshake failed, or its certificate.
    Tls,
    /// A write that makes the data grow, while the disk is nearly full.
    Disk,
    /// A read whose reply would be too long.
    Reply,
    /// A watch for which there is no room.
    Watch,
}

impl Refusal {
    /// All of them.
    pub const ALL: [Refusal; 15] = [
        Refusal::ConnectionsOfAddress,
        Refusal::Connections,
        Refusal::ConnectionRate,
        Refusal::Silent,
        Refusal::Frame,
        Refusal::Ahead,
        Refusal::Request,
        Refusal::Slow,
        Refusal::Word,
        Refusal::Authentication,
        Refusal::Quota,
        Refusal::Tls,
        Refusal::Disk,
        Refusal::Reply,
        Refusal::Watch,
    ];

    /// As metrics and the node's log have it.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::ConnectionsOfAddress => "connections of its address",
            Refusal::Connections => "connections of all",
            Refusal::ConnectionRate => "rate of connections",
            Refusal::Silent => "silent before a session",
            Refusal::Frame => "frame",
            Refusal::Ahead => "ahead",
            Refusal::Request => "request",
            Refusal::Slow => "slow reader",
            Refusal::Word => "word",
            Refusal::Authentication => "authentication",
            Refusal::Quota => "quota",
            Refusal::Tls => "TLS",
            Refusal::Disk => "disk",
            Refusal::Reply => "reply",
            Refusal::Watch => "watch",
        }
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
    /// What was refused, by [`Refusal`].
    refused: [Count; Refusal::ALL.len()],
    /// Requests of all connections without an answer yet.
    pub outstanding: AtomicU64,
    /// Turns of connections that took no request because too many of all connections had no answer.
    pub held_back: Count,
    /// Sessions that this node has expired.
    pub expired: Count,
    /// Writes that found the log's queue full and waited.
    pub throttled: Count,
    /// Writes that took a subtree above its quota, on whatever node.
    pub over_quota: Count,
    /// Bytes of clients with a session.
    pub received_bytes: Count,
    /// Clients that asked for a session, a new one or their own.
    pub connects: Count,
    /// Those that came back to their own.
    pub revalidated: Count,
    /// Connections that ended without the end of their session.
    pub dropped: Count,
    /// Latencies of writes: from the socket to the answer.
    pub write_us: Latency,
    /// Latencies of reads that found no earlier request of their session without an answer.
    pub read_us: Latency,
}

impl Default for Figures {
    fn default() -> Self {
        Figures {
            started: Instant::now(),
            received: Count::default(),
            sent: Count::default(),
            refused: Default::default(),
            outstanding: AtomicU64::new(0),
            held_back: Count::default(),
            expired: Count::default(),
            throttled: Count::default(),
            over_quota: Count::default(),
            received_bytes: Count::default(),
            connects: Count::default(),
            revalidated: Count::default(),
            dropped: Count::default(),
            write_us: Latency::default(),
            read_us: Latency::default(),
        }
    }
}

impl Figures {
    /// One more that was refused.
    pub fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].add(1);
    }

    /// How many were refused for a reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].get()
    }

    /// A connection has so many requests without an answer.
    pub fn count_outstanding(&self, of: &ConnectionFigures, now: u64) {
        let before = of.outstanding.swap(now, Ordering::Relaxed);
        if now != before {
            self.outstanding.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Connections that were not let in, whatever the reason.
    pub fn refused_connections(&self) -> u64 {
        let all = [Refusal::ConnectionsOfAddress, Refusal::Connections, Refusal::ConnectionRate];
        all.into_iter().map(|r| self.refused(r)).sum()
    }
}

/// Of one connection.
#[derive(Debug)]
pub struct ConnectionFigures {
    /// Whose.
    pub peer: SocketAddr,
    /// Since when.
    pub since: Instant,
    /// It came in by TLS.
    pub is_secure: AtomicBool,
    /// The subject of its certificate, if it has shown one.
    pub subject: OnceLock<String>,
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
            is_secure: AtomicBool::new(false),
            subject: OnceLock::new(),
            session: AtomicI64::new(0),
            received: Count::default(),
            sent: Count::default(),
            outstanding: AtomicU64::new(0),
        }
    }
}

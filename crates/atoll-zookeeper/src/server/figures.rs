//! The counters of a door.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::latency::{Latency, Totals};
use crate::jute::codes::OpCode;

/// A counter that only rises until it is reset.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Returns the current count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets the count to zero.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The reason why something that a client wanted was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client's address has as many connections as one address may have.
    ConnectionsOfAddress,
    /// The door has as many connections as it may have.
    Connections,
    /// Connections arrive too fast.
    ConnectionRate,
    /// The client sent nothing for too long before it had a session.
    Silent,
    /// A frame was too long or malformed.
    Frame,
    /// The client had seen changes that are not here.
    Ahead,
    /// A request that was refused before it was proposed.
    Request,
    /// The client read too slowly.
    Slow,
    /// A four-letter word that is unknown or not allowed.
    Word,
    /// The client failed to authenticate.
    Authentication,
    /// A write above a hard quota. Writes in transactions are not counted.
    Quota,
    /// The client's TLS handshake failed, or its certificate was rejected.
    Tls,
    /// A write that would add data while the disk is nearly full.
    Disk,
    /// A read whose reply would be too long.
    Reply,
    /// A watch for which there was no room.
    Watch,
}

impl Refusal {
    /// All reasons.
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

    /// Returns the name that metrics and the node's log output use.
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

/// The counters of a whole door.
#[derive(Debug)]
pub struct Figures {
    /// When counting began.
    pub started: Instant,
    /// Frames received from clients.
    pub received: Count,
    /// Replies and events sent.
    pub sent: Count,
    /// Refusals, by [`Refusal`].
    refused: [Count; Refusal::ALL.len()],
    /// Unanswered requests of all connections.
    pub outstanding: AtomicU64,
    /// Turns of connections that took no request because too many requests of all connections were unanswered, or too many writes
    /// waited for the log.
    pub held_back: Count,
    /// Sessions that this node has expired.
    pub expired: Count,
    /// Writes and requests for sessions that had to wait for room, in the log's queue or among the large writes.
    pub throttled: Count,
    /// Writes that took a subtree above its quota, through any node.
    pub over_quota: Count,
    /// Bytes received from clients with a session.
    pub received_bytes: Count,
    /// Clients that asked for a session, whether for a new one or for their own.
    pub connects: Count,
    /// Clients that asked for their own session.
    pub revalidated: Count,
    /// Connections that ended while their session continued.
    pub dropped: Count,
    /// Latencies of writes, from the socket to the answer.
    pub write_us: Latency,
    /// Latencies of reads that had no earlier unanswered request in their session.
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
    /// Counts a refusal.
    pub fn refuse(&self, refusal: Refusal) {
        self.refused[refusal as usize].add(1);
    }

    /// Returns how many refusals had this reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize].get()
    }

    /// Records that a connection now has this many unanswered requests.
    pub fn count_outstanding(&self, of: &ConnectionFigures, now: u64) {
        let before = of.outstanding.swap(now, Ordering::Relaxed);
        if now != before {
            self.outstanding.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Returns the number of connections that were not admitted, for any reason.
    pub fn refused_connections(&self) -> u64 {
        let all = [Refusal::ConnectionsOfAddress, Refusal::Connections, Refusal::ConnectionRate];
        all.into_iter().map(|r| self.refused(r)).sum()
    }
}

/// The counters of one connection.
#[derive(Debug)]
pub struct ConnectionFigures {
    /// The client's address.
    pub peer: SocketAddr,
    /// When the connection was accepted.
    pub since: Instant,
    /// Whether the connection uses TLS.
    pub is_secure: AtomicBool,
    /// The subject of the client's certificate, if it has presented one.
    pub subject: OnceLock<String>,
    /// The id of the session, or 0 while there is none.
    pub session: AtomicI64,
    /// Frames received.
    pub received: Count,
    /// Replies and events sent.
    pub sent: Count,
    /// Unanswered requests.
    pub outstanding: AtomicU64,
    /// The session's timeout in milliseconds, or 0 while there is none.
    pub timeout_ms: AtomicI32,
    /// The last request that was answered.
    pub last: LastAnswer,
    /// The latencies of its requests.
    pub latency: Totals,
}

/// The last request of a connection that was answered.
#[derive(Debug)]
pub struct LastAnswer {
    /// The number of the operation, or -1 before the first answer.
    op: AtomicI32,
    /// The client's number of the request, or -1 if no request had one.
    cxid: AtomicI64,
    /// The zxid of the answer, or -1 before the first.
    zxid: AtomicI64,
    /// When it was answered: milliseconds since the door began to count.
    at_ms: AtomicU64,
}

impl Default for LastAnswer {
    fn default() -> Self {
        let last = LastAnswer {
            op: AtomicI32::new(0),
            cxid: AtomicI64::new(0),
            zxid: AtomicI64::new(0),
            at_ms: AtomicU64::new(0),
        };
        last.reset();
        last
    }
}

impl LastAnswer {
    /// Records an answer. Pings and the like have a negative number, and leave that of the last request.
    pub(crate) fn set(&self, op: Option<OpCode>, xid: i32, zxid: i64, at: Duration) {
        self.op.store(op.map_or(-1, OpCode::number), Ordering::Relaxed);
        if xid >= 0 {
            self.cxid.store(xid.into(), Ordering::Relaxed);
        }
        self.zxid.store(zxid, Ordering::Relaxed);
        self.at_ms.store(u64::try_from(at.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Forgets the answer.
    pub fn reset(&self) {
        self.op.store(-1, Ordering::Relaxed);
        self.cxid.store(-1, Ordering::Relaxed);
        self.zxid.store(-1, Ordering::Relaxed);
        self.at_ms.store(0, Ordering::Relaxed);
    }

    /// Returns ZooKeeper's name for the operation.
    pub fn operation(&self) -> &'static str {
        OpCode::of(self.op.load(Ordering::Relaxed)).map_or("NA", OpCode::short_name)
    }

    /// Returns the client's number of the last request that had one.
    pub fn cxid(&self) -> Option<i64> {
        Some(self.cxid.load(Ordering::Relaxed)).filter(|cxid| *cxid >= 0)
    }

    /// Returns the zxid of the answer, or -1 before the first.
    pub fn zxid(&self) -> i64 {
        self.zxid.load(Ordering::Relaxed)
    }

    /// Returns when the request was answered, in milliseconds since the door began to count.
    pub fn at_ms(&self) -> u64 {
        self.at_ms.load(Ordering::Relaxed)
    }
}

impl ConnectionFigures {
    /// Creates the counters of a new connection.
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
            timeout_ms: AtomicI32::new(0),
            last: LastAnswer::default(),
            latency: Totals::default(),
        }
    }

    /// Records the session that the connection serves, and its timeout in milliseconds.
    pub fn opened(&self, session: i64, timeout_ms: i32) {
        self.session.store(session, Ordering::Relaxed);
        self.timeout_ms.store(timeout_ms, Ordering::Relaxed);
    }

    /// Resets the counters of requests and answers.
    pub fn reset(&self) {
        self.received.reset();
        self.sent.reset();
        self.last.reset();
        self.latency.reset();
    }
}

//! The limits for all clients of the gRPC listener together.

use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;

/// The maximum size of large messages that are being received, in bytes: in total, and per address.
const MESSAGE_BYTES: (usize, usize) = (64 << 20, 32 << 20);
/// The maximum number of requests in progress: in total, and per address.
const REQUESTS: (usize, usize) = (8_192, 2_048);
/// The maximum number of streaming reads in progress: in total, and per address.
const READS: (usize, usize) = (1_024, 512);
/// The maximum size of data that was read but that clients have not received yet, in bytes: in total, and per address. It occupies twice as
/// much memory: once as read, and once as sent.
const READ_BYTES: (usize, usize) = (64 << 20, 48 << 20);

/// The maximum number of connections of the gRPC door: in total, and per address. Beyond that, a connection without a request in progress
/// is closed to make room.
pub const MAX_CONNECTIONS: (usize, usize) = (512, 128);

/// The limits for clients of the gRPC door: in total, and per address.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The maximum number of connections in total.
    pub connections: usize,
    /// The maximum number of connections per address.
    pub connections_of_address: usize,
    /// TLS and the HTTP/2 preface must be complete within this time.
    pub greet_within: Duration,
    /// A message must be complete within this time after its first byte.
    pub message_within: Duration,
    /// The stream of a reader that takes nothing for this long although records are available ends, because the records that wait for it
    /// occupy memory.
    pub unread_at_most: Duration,
    /// How long a read waits until others release memory.
    pub room_within: Duration,
    /// How often a reader that follows a log and gets no record checks that this node still reaches the log. Too small: checks for readers
    /// of idle logs. Too large: readers stay at a node that is cut off from the others.
    pub check_followed: Duration,
    /// The requests in progress.
    pub(super) requests: Arc<Budget>,
    /// The large messages that are being received.
    pub(super) message_bytes: Arc<Budget>,
    /// The streaming reads in progress.
    pub reads: Arc<Budget>,
    /// What was read, but clients have not received yet.
    pub read_bytes: Arc<Budget>,
}

impl Default for Limits {
    fn default() -> Self {
        let of = |(total, of_address)| Budget::new(total, of_address);
        Limits {
            connections: MAX_CONNECTIONS.0,
            connections_of_address: MAX_CONNECTIONS.1,
            greet_within: Duration::from_secs(5),
            message_within: Duration::from_secs(10),
            unread_at_most: Duration::from_secs(30),
            room_within: Duration::from_secs(10),
            check_followed: Duration::from_secs(5),
            requests: of(REQUESTS),
            message_bytes: of(MESSAGE_BYTES),
            reads: of(READS),
            read_bytes: of(READ_BYTES),
        }
    }
}

impl Limits {
    /// Returns the same limits with this maximum number of connections in total, and a quarter of it per address.
    #[must_use]
    pub fn with_connections(self, connections: usize) -> Self {
        Limits { connections, connections_of_address: connections.div_ceil(4), ..self }
    }

    /// Returns the current usage, for metrics.
    pub fn measures(&self) -> Vec<atoll_core::Measure> {
        let measure = |name, held: usize| atoll_core::Measure { name, label: None, value: held as f64 };
        vec![
            measure("grpc_requests", self.requests.held()),
            measure("grpc_message_bytes", self.message_bytes.held()),
            measure("grpc_reads", self.reads.held()),
            measure("grpc_unread_bytes", self.read_bytes.held()),
        ]
    }
}

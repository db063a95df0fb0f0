//! The gRPC door: its connections, and what each request may cost before a service sees it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `serving.rs` | accepts connections, TLS, HTTP/2 |
//! | `connections.rs` | who is connected, and who makes room |
//! | `requests.rs` | a request's place, and its messages on their way |
//! | `answer.rs` | room for large answers |
//! | `budget.rs` | what all clients share, counted |
//! | `tls.rs` | certificates |

mod answer;
mod budget;
mod connections;
mod requests;
mod serving;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

pub(super) use answer::AnswerRoom;
pub(super) use budget::{Budget, Share};
pub(super) use connections::Connection;
pub(super) use serving::serve;
pub use tls::{DoorTls, DoorTlsError};

/// Bytes of large messages on their way in, of all clients and of one address.
const MESSAGE_BYTES: (usize, usize) = (64 << 20, 32 << 20);
/// Requests under way.
const REQUESTS: (usize, usize) = (8_192, 2_048);
/// Reads under way.
const READS: (usize, usize) = (1_024, 512);
/// Table reads that may run at once. Each takes a thread and holds in memory what it has read.
const TABLE_READS: usize = 16;
/// Bytes of records that were read and that their clients have not taken yet. They occupy twice as much memory: once as read, and once as
/// sent.
const READ_BYTES: (usize, usize) = (64 << 20, 48 << 20);

/// Most connections of the gRPC door, of all clients and of one address. Beyond them a connection without a request makes room.
pub const MAX_CONNECTIONS: (usize, usize) = (512, 128);

/// What clients of the gRPC door may hold at one time: of all, and of one address.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections.
    pub connections: usize,
    /// Of one address.
    pub connections_of_address: usize,
    /// TLS and the HTTP/2 preface must be complete within this time.
    pub greet_within: Duration,
    /// A message must be complete within this time after it began.
    pub message_within: Duration,
    /// A reader that takes nothing for this long although records are there is given up, because the records that wait for it occupy
    /// memory.
    pub unread_at_most: Duration,
    /// How long a read waits for others to give memory back.
    pub room_within: Duration,
    pub(super) requests: Arc<Budget>,
    pub(super) message_bytes: Arc<Budget>,
    pub(super) reads: Arc<Budget>,
    pub(super) read_bytes: Arc<Budget>,
    pub(super) table_reads: Arc<Semaphore>,
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
            requests: of(REQUESTS),
            message_bytes: of(MESSAGE_BYTES),
            reads: of(READS),
            read_bytes: of(READ_BYTES),
            table_reads: Arc::new(Semaphore::new(TABLE_READS)),
        }
    }
}

impl Limits {
    /// The same limits with fewer connections in total, of which one address gets a quarter.
    #[must_use]
    pub fn with_connections(self, connections: usize) -> Self {
        Limits { connections, connections_of_address: connections.div_ceil(4), ..self }
    }

    /// Figures for operators.
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

//! The Rust client of Atoll, and the protobuf definitions of its public API (`proto/atoll/v1/`).
//!
//! ```no_run
//! # async fn example() -> Result<(), atoll_client::Error> {
//! let client = atoll_client::Client::connect("127.0.0.1:7411,127.0.0.1:7421")?;
//! let log = client.log("main")?;
//! let position = log.append("a record").await?;
//! let mut reader = log.read(atoll_client::ReadOptions::from(position));
//! while let Some(batch) = reader.next().await? {
//!     for record in &batch.records {
//!         println!("{:?}", record.payload);
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Every call ends in one of three ways: `Ok`, [`Error::DidNotHappen`], [`Error::Unknown`]. Until its deadline the client retries by
//! itself, at the next address if one fails. A record that is sent again keeps its name, so that it is in the log at most once.
//!
//! | file | what it is |
//! | --- | --- |
//! | `client.rs` | addresses, chains, cluster |
//! | `log.rs`, `read.rs` | one log: append, read, tail, trim |
//! | `tables.rs` | tables: rows, transactions, ranges |
//! | `lane/` | all appends of this client to one log over one stream, in order, across failures |
//! | `connections.rs` | the addresses and which of them is in use; calls with failover |
//! | `error.rs` | did it happen, why not, what next; the same as gRPC status |
//! | `options.rs` | settings |

mod client;
mod connections;
mod error;
mod lane;
mod log;
mod options;
mod read;
mod tables;

/// The public API as generated from `proto/atoll/v1/`; its comments are the reference.
#[allow(missing_docs)]
pub mod proto {
    tonic::include_proto!("atoll.v1");

    /// The definitions in compiled form, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/atoll.v1.bin"));
}

pub use client::Client;
pub use error::{Error, Failure, Outcome, status};
pub use log::{Appending, Log};
pub use options::{Options, Tls};
pub use proto::Reason;
pub use read::{ReadBatch, ReadOptions, Reader};
pub use tables::{Rows, Tables};

/// Longest record, in bytes.
pub const MAX_RECORD_BYTES: usize = 1_000_000;
/// Longest name of a log, in bytes.
pub const MAX_LOG_NAME_BYTES: usize = 200;
/// Most records in one append message.
pub const MAX_MESSAGE_RECORDS: usize = 4096;
/// Most payload bytes in one append message.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// The server sends at least one reply in this time while appends of a stream are unanswered.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(50);

/// Whether a log may have this name: `[A-Za-z0-9._/-]{1,200}`.
pub fn is_log_name(name: &str) -> bool {
    (1..=MAX_LOG_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._/-".contains(&b))
}

/// What is wrong with a log name, in a sentence that says what would be right.
pub fn log_name_hint(name: &str) -> String {
    let allowed = format!("1 to {MAX_LOG_NAME_BYTES} letters, digits and . _ / - are allowed");
    // The hint goes into answers, so it must not grow with the name that it is about.
    match name.len() {
        0..=MAX_LOG_NAME_BYTES => format!("{name:?} cannot be the name of a log: {allowed}"),
        length => format!("{length} bytes cannot be the name of a log: {allowed}"),
    }
}

//! The Rust client of Atoll, and the protobuf definitions of its public API (`proto/atoll/`).
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
//! A call ends with `Ok`, [`Error::DidNotHappen`] or [`Error::Unknown`]. A write to tables may also end with [`Error::Happened`]: it was
//! done, but its answer is missing. Until the deadline, the client retries by itself, at the next address if one fails. A record that is
//! sent again keeps its name, so it is in the log at most once.
//!
//! | file | what it is |
//! | --- | --- |
//! | `client.rs` | calls about logs, chains and the cluster |
//! | `log.rs`, `read.rs` | one log: appends, reads, tail checks, trims |
//! | `auth.rs` | grants and tokens |
//! | `tables.rs` | tables: rows, transactions and ranges |
//! | `keyspaces.rs` | keyspaces: reads and conditional writes of keys |
//! | `scalog.rs` | Scalog's own interface: the shards of a log |
//! | `corfu.rs` | CORFU's own interface: single positions of a log, and which nodes keep them |
//! | `lane/` | all appends of this client to one log, in order, on one stream, across failures |
//! | `connections.rs` | the addresses, the one in use, and calls with failover |
//! | `error.rs` | errors: whether the call happened, why it failed, what to do next; also as gRPC status |
//! | `options.rs` | settings |

mod auth;
mod client;
mod connections;
mod corfu;
mod error;
mod keyspaces;
mod lane;
mod log;
mod operations;
mod options;
mod placement;
mod read;
mod scalog;
mod tables;

/// The public API, as generated from `proto/atoll/v1/`. The comments there are the reference. `atoll-protogen` writes the code.
#[allow(missing_docs)]
pub mod proto {
    include!("generated/atoll.v1.rs");

    /// The compiled definitions, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");
}

/// The API of keyspaces, as generated from `proto/atoll/keyspace/v1/`. The comments there are the reference.
#[allow(missing_docs)]
pub mod keyspace_proto {
    include!("generated/atoll.keyspace.v1.rs");
}

/// CORFU's own interface, as generated from `proto/atoll/corfu/v1/`. The comments there are the reference.
#[allow(missing_docs)]
pub mod corfu_proto {
    include!("generated/atoll.corfu.v1.rs");
}

/// Scalog's own interface, as generated from `proto/atoll/scalog/v1/`. The comments there are the reference.
#[allow(missing_docs)]
pub mod scalog_proto {
    include!("generated/atoll.scalog.v1.rs");
}

pub use auth::Auth;
pub use client::Client;
pub use corfu::{Cell, Corfu, Replacement};
pub use error::{Error, Failure, Outcome, status};
pub use keyspaces::{HeldLease, Keys, Keyspace, Keyspaces, Watch};
pub use log::{Appending, Log};
pub use options::{Options, Tls, Token};
pub use placement::shard_of;
pub use proto::Reason;
pub use read::{ReadBatch, ReadOptions, Reader};
pub use scalog::{ChooseShard, Scalog, Shard, ShardPolicy, ShardRecord, Subscription};
pub use tables::{Rows, Tables};

/// The maximum length of a record, in bytes.
pub const MAX_RECORD_BYTES: usize = 1_000_000;
/// The maximum length of the name of a log, in bytes.
pub const MAX_LOG_NAME_BYTES: usize = 200;
/// The maximum number of records in one append message.
pub const MAX_MESSAGE_RECORDS: usize = 4096;
/// The maximum number of payload bytes in one append message.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// While appends of a stream are unanswered, the server sends at least one reply in each interval of this length.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_millis(50);

/// Returns true if a log may have this name: `[A-Za-z0-9._/-]{1,200}`.
pub fn is_log_name(name: &str) -> bool {
    (1..=MAX_LOG_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._/-".contains(&b))
}

/// Returns a sentence that says what is wrong with the name of a log, and what is allowed.
pub fn log_name_hint(name: &str) -> String {
    let allowed = format!("1 to {MAX_LOG_NAME_BYTES} letters, digits and . _ / - are allowed");
    // The hint is part of replies, so its length must not grow with that of the name.
    match name.len() {
        0..=MAX_LOG_NAME_BYTES => format!("{name:?} cannot be the name of a log: {allowed}"),
        length => format!("{length} bytes cannot be the name of a log: {allowed}"),
    }
}

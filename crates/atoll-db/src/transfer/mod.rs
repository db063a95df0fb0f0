//! State transfer: a replica that lacks entries which the log no longer has fetches a snapshot from a peer; replicas compare their
//! hashes; the log is trimmed behind them (Delos §4.1; virtuallog §6).
//!
//! | file | what it is |
//! | --- | --- |
//! | `chunk.rs` | the portable form of a snapshot: sorted entries, compressed, with checksums |
//! | `message.rs` | what replicas ask each other |
//! | `server.rs` | the role that answers |
//! | `fetch.rs` | a snapshot fetched from a peer |
//! | `inquiry.rs` | the state of a replica that was just started, compared before it serves |
//! | `patrol.rs` | hashes compared, the log trimmed (compaction) |
//! | `scrub.rs` | the store read again |
//!
//! A state snapshot is read from a store snapshot, which holds whole entries and the position after the last one. Taking a store
//! snapshot costs nothing, and the replica continues to apply entries. A replica shows its old state until the refill is complete.

mod chunk;
mod fetch;
mod inquiry;
mod message;
mod patrol;
mod scrub;
mod server;

pub use chunk::{Chunk, ChunkError};
pub(crate) use fetch::fetch;
pub(crate) use inquiry::Inquiry;
pub use message::{
    AskHash, AskReplica, AskService, ChunkTold, FetchChunk, HashNow, HashTold, ReplicaTold, ServiceTold,
};
pub(crate) use patrol::Patrol;
pub use scrub::{Fault, Rot, Scrubbed};
pub(crate) use server::Source;
pub use server::{ReplicaRole, Shelf};

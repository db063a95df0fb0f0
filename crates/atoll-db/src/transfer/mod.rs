//! State transfer: a replica that lacks entries which the log no longer has is refilled from a peer. Replicas compare their hashes,
//! and the log is trimmed below what they have (Delos §4.1; virtuallog §6).
//!
//! | file | what it is |
//! | --- | --- |
//! | `chunk.rs` | the encoding of a state snapshot: sorted entries, compressed, with checksums |
//! | `message.rs` | the messages between replicas |
//! | `server.rs` | the server role that answers them |
//! | `fetch.rs` | fetches a state snapshot from a peer |
//! | `inquiry.rs` | the start check: compares the state of a replica before it serves |
//! | `upkeep.rs` | periodically compares hashes and trims the log |
//! | `scrub.rs` | reads the store and compares it with its hashes |
//!
//! A state snapshot is read from a store snapshot, which holds whole entries and the position after the last one. Taking a store
//! snapshot costs nothing, and the replica continues to apply entries. A replica shows its old state until the refill is complete.

mod chunk;
mod fetch;
mod inquiry;
mod message;
mod scrub;
mod server;
mod upkeep;

pub use chunk::{Chunk, ChunkError};
pub(crate) use fetch::fetch;
pub(crate) use inquiry::Inquiry;
pub use message::{
    AskFence, AskHash, AskReplica, AskService, ChunkReply, Fenced, FetchChunk, HashNow, HashReport,
    ReplicaReport, ServiceReport,
};
pub use scrub::{Rot, RotKind, Scrubbed};
pub use server::{ReplicaRole, Shelf};
pub(crate) use server::{Source, in_thread, read_chunk};
pub(crate) use upkeep::Upkeep;

//! The common part of Loglets that store their entries in the journals of nodes, whatever their protocol, and of those that keep them in a
//! store or service outside of the cluster.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store/` | the disk state of a role: Loglets, runs of entries, their locations; the newest entries in memory |
//! | `message.rs` | messages that any server of Loglets answers |
//! | `deduplicator.rs`, `remembered_ops.rs` | checks of an orderer: no append overtakes another, no operation gets two offsets |
//! | `handle_order.rs` | the order of a handle's appends, on the sending side |
//! | `intake.rs` | appends that an orderer holds until its window has room |
//! | `append_queue.rs`, `plan.rs`, `cache.rs` | for Loglets outside of the cluster: what waits, what goes next, what was read |
//! | `tails.rs` | what a handle knows about the tail, and its waiters |
//! | `entries.rs` | entries in batches |
//! | `status.rs` | asks servers for their state |
//! | `mutants.rs` | known bugs, for tests |
//! | `testing.rs` | the ways of nodes to a store or service, with faults |

pub mod append_queue;
pub mod cache;
pub mod deduplicator;
mod entries;
pub mod handle_order;
pub mod intake;
pub mod message;
pub mod mutants;
pub mod plan;
pub mod remembered_ops;
pub mod status;
pub mod store;
pub mod tails;
#[cfg(feature = "testing")]
pub mod testing;

pub use entries::{batches, decode_entries, parse_counted, skip_one_if};

/// The bytes of entries that one step of a copy reads, unless set otherwise.
pub const STEP_BYTES: u32 = 512 * 1024;

//! The common part of Loglets that store their entries in the journals of nodes, whatever their protocol.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store/` | the disk state of a role: loglets, runs of entries, their places; the newest entries in memory |
//! | `message.rs` | messages that any server of loglets answers |
//! | `deduplicator.rs`, `remembered_ops.rs` | checks of an orderer: no append overtakes another, no operation gets two places |
//! | `handle_order.rs` | the sending side of that order |
//! | `tails.rs` | what a handle knows of the tail, and its waiters |
//! | `entries.rs` | entries in batches |
//! | `status.rs` | asking servers how they stand |
//! | `mutants.rs` | known bugs, for tests |

pub mod deduplicator;
mod entries;
pub mod handle_order;
pub mod message;
pub mod mutants;
pub mod remembered_ops;
pub mod status;
pub mod store;
pub mod tails;

pub use entries::{batches, decode_entries, parse_counted};

/// Bytes of entries that one step of a copy takes, unless set otherwise.
pub const STEP_BYTES: u32 = 512 * 1024;

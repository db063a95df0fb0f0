//! What Loglets that keep their entries in the journals of nodes have in common, whatever their protocol.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store/` | what a role keeps on its disk: loglets, runs of entries, their places, the newest in memory |
//! | `message.rs` | what any server of loglets is asked |
//! | `deduplicator.rs`, `remembered_ops.rs` | what an orderer checks: no append overtakes another, no operation gets two places |
//! | `handle_order.rs` | the sending side of that order |
//! | `tails.rs` | what a handle knows of the tail, and who waits for it |
//! | `entries.rs` | entries in batches |
//! | `mutants.rs` | known bugs, for tests |

pub mod deduplicator;
mod entries;
pub mod handle_order;
pub mod message;
pub mod mutants;
pub mod remembered_ops;
pub mod store;
pub mod tails;

pub use entries::{batches, decode_entries, parse_counted};

/// Bytes of entries that one step of a copy takes, if nothing else is said.
pub const STEP_BYTES: u32 = 512 * 1024;

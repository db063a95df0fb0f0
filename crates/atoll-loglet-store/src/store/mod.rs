//! The common part of roles that store entries: Loglets with a seal bit, tails and a trim point; runs of consecutive entries, each
//! journaled as one record; a cache of the newest runs; and recovery after a restart.
//!
//! | file | what it is |
//! | --- | --- |
//! | `loglet_store.rs` | the Loglets of a role, and the path of every change through the journal |
//! | `durable.rs` | the journal's answers; compaction |
//! | `facts.rs`, `recovery.rs` | journal records, checkpoint, restart |
//! | `runs.rs`, `index.rs` | the index of one Loglet: runs by first offset, and the holes between them |
//! | `occupied.rs` | which Loglets have runs in which segment of the journal |
//! | `cache.rs` | which runs are in memory, bounded in bytes per role |
//! | `reads.rs` | reads from memory and disk, bounded |
//! | `waits.rs` | requests that wait for a tail, bounded |

mod cache;
mod durable;
mod facts;
mod index;
mod loglet_store;
mod occupied;
mod reads;
mod recovery;
mod runs;
mod waits;

pub use loglet_store::{
    Durable, LogletState, LogletStore, LogletStoreOptions, Protocol, ReadOutcome, Sealing,
};
pub use runs::{Place, Run, Runs};
pub use waits::{Waiter, Waits};

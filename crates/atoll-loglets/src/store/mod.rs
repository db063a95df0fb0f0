//! What a role that keeps entries knows of them: runs of consecutive entries, each journaled as one record, where each
//! stands on the disk, and the newest in memory.
//!
//! | file | what it is |
//! | --- | --- |
//! | `runs.rs` | the index of one loglet: runs by first offset, and the holes between them |
//! | `cache.rs` | which runs are held in memory, bounded in bytes per role |
//! | `reads.rs` | reads that mix memory and disk, bounded |

mod cache;
mod reads;
mod runs;

pub use cache::TailCache;
pub use reads::{MAX_READ_BYTES, PendingReads, ReadPlan, finish_read, plan_read};
pub use runs::{Place, Run, Runs};

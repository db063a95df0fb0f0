//! The disk of a node: one journal for all its roles, and the marker that says whose directory it is.
//!
//! | file | what it is |
//! | --- | --- |
//! | `disk.rs` | what the journal sees of a disk |
//! | `real_disk.rs` | a directory, real syncs, the lock against a second process |
//! | `mem_disk.rs` | the simulator's: power cuts with torn writes, full and failing, rot |
//! | `identity.rs` | the marker of a data directory (native-T8) |
//! | `journal/` | append-only recycled segments, group commit, recovery (native-T9, native-T22) |
//! | `mutants.rs` | known bugs and coverage marks, for tests |
//!
//! A data directory: `node` (marker), `lock`, `journal.manifest`, `journal/GENERATION.seg`, `journal/spare-GENERATION.seg`,
//! `journal/checkpoint`, `journal/reserve`.

mod disk;
mod identity;
pub mod journal;
mod mem_disk;
pub mod mutants;
mod real_disk;

pub use disk::{Disk, DiskError, DiskOp, DiskPath, File, Open};
pub use identity::{Identity, IdentityError, MAX_CLUSTER_NAME_BYTES};
pub use journal::{
    Aside, CheckpointJob, Journal, JournalError, JournalOptions, JournalReader, PrepareJob, Prepared,
    RecoverError, Recovered, Stats,
};
pub use mem_disk::{Fault, MemDisk, SECTOR_BYTES};
pub use real_disk::{RealDisk, Syncs};

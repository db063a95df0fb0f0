//! The disk of a node: one journal and one store of cells for all its roles, and the marker that says which node owns the directory.
//!
//! | file | what it is |
//! | --- | --- |
//! | `disk.rs` | the interface between the journal and a disk |
//! | `real_disk.rs` | a directory of the file system, with real syncs and a lock against a second process |
//! | `ring.rs` | writes that no thread waits for, through io_uring (decision 0009) |
//! | `mem_disk.rs`, `mem_direct.rs` | the simulated disk: power cuts with torn writes, a full or failing disk, rot |
//! | `identity.rs` | the marker of a data directory (native-T8) |
//! | `rescue.rs` | the note in a directory that was made from what a lost cluster had left |
//! | `batch.rs` | writes and syncs the records and cells of a batch |
//! | `cells/` | small values that are overwritten in place (seed 004 §4.3, §6.2) |
//! | `journal/` | recycled append-only segments, group commit, recovery (native-T9, native-T22) |
//! | `mutants.rs` | known bugs and coverage marks, for tests |
//!
//! A data directory contains: `node` (marker), `lock`, `journal.manifest`, `journal/GENERATION.seg`, `journal/spare-GENERATION.seg`,
//! `journal/checkpoint`, `journal/reserve`. If a role uses cells, also `cells.manifest` and `cells/class-NN`. After a rescue, also
//! `rescued`.

mod batch;
pub mod cells;
mod disk;
mod identity;
pub mod journal;
mod mem_disk;
pub mod mutants;
mod real_disk;
mod rescue;
#[cfg(target_os = "linux")]
mod ring;

pub use batch::{BatchError, sync_batch, write_batch};
pub use cells::{CellError, CellOptions, CellStats, CellStore, RecoverCellsError, Reserved};
pub use disk::{DIRECT_BLOCK_BYTES, DIRECT_BYTES, DirectFile, Disk, DiskError, DiskOp, DiskPath, File, Open};
pub use identity::{Identity, IdentityError, MAX_CLUSTER_NAME_BYTES};
pub use journal::{
    Aside, CheckpointJob, Journal, JournalError, JournalOptions, JournalReader, PrepareJob, Prepared,
    RecoverError, Recovered, Stats,
};
pub use mem_disk::{Fault, MemDisk, SECTOR_BYTES};
pub use real_disk::{NoDirectWrites, RealDisk, Syncs};
pub use rescue::{KeptLog, RescueNote, RescueNoteError};

//! A backup of a log and of the state that is made of it, in an object store. It grows while the cluster works: entries are *shipped* every
//! few seconds, and now and then a snapshot of the state. A *restore* reads a snapshot and the entries behind it up to a chosen moment.
//!
//! This crate knows the objects and their order. It knows no protocol, no database and no node: what it ships comes from a [`Source`], and
//! who restores gets bytes and entries.
//!
//! | file | what it is |
//! | --- | --- |
//! | `format.rs` | the objects as bytes |
//! | `entries.rs` | the entries in an object |
//! | `folder.rs` | the names of the objects; requests that are repeated until they have an answer |
//! | `find.rs` | finds the newest snapshot and the end of the entries |
//! | `source.rs` | where the entries and the state come from |
//! | `ship.rs` | ships entries |
//! | `take.rs` | ships snapshots |
//! | `retain.rs` | deletes what is too old |
//! | `reading.rs` | reads a backup: its snapshots, their pieces, the entries behind them |
//! | `error.rs` | why a backup cannot be written or read |
//! | `mutants.rs` | known bugs, for tests |
//!
//! # Why it is correct
//!
//! The entries are a row of *runs*, `entries/0`, `entries/1`, …, each an object of consecutive entries. A run takes the next number by a
//! conditional put, so any number of nodes may ship at the same time: one of two puts succeeds, and the other node continues behind the run
//! that it finds. A run says from which position to which it goes, and has the checksum of the run before it. Snapshots are a row of the
//! same kind. The ends of both rows are found by reads alone: no list is asked for, because a listing may lag behind (decision 0024). The
//! looks with which an end is sought may lag, too; reads confirm it.
//!
//! | case | what happens |
//! | --- | --- |
//! | two nodes ship at once | one put for each number succeeds; the other node reads the run, and continues behind it |
//! | the answer to a put is lost | the object is read back. It is the same bytes, or somebody else's, or the put is repeated |
//! | a node dies in the middle of a snapshot | its pieces are under the number of its attempt; the snapshot begins to exist with its head, which is put last |
//! | the store is away | nothing waits for it. The log keeps what was not shipped, up to a bound; the backlog follows afterwards |
//! | the log has lost what was not shipped | a snapshot follows; the entries between are missing, and a restore to there is refused |
//! | another cluster has the same name | the id of the backup is in every object and in a register of its cluster; whoever does not know it is refused |
//! | looks lag, as lists do | the end that they show may be too early. It is read, and so are the next ones, until one is not there |
//! | an object is damaged, cut off, swapped or missing | its checksum, its number or its link is wrong: a restore ends and names the object |
//! | retention | a snapshot is marked as gone before its objects are deleted, and the runs before the next snapshot go with it |
//! | a late put takes a number whose run was deleted | nobody reads it: readers begin at the run that the first kept snapshot names |
//!
//! # What it costs
//!
//! | every interval | puts | reads |
//! | --- | --- | --- |
//! | a node that follows | 0 | 3, and 1 for each new run |
//! | the node that ships, if there is something | 1 for each 4 MiB of entries, at least 1 | the same |
//!
//! A snapshot takes a put for each 4 MiB, compressed, and two more. A node that starts finds the ends with about two reads for each
//! doubling of a row. What is stored is compressed: entries once, and the whole state once for each kept snapshot.
//!
//! A run that ends where a replica stood has the hash of the state there. A restore compares its own hash at each of them, and continues
//! behind the chosen moment, in memory, to the next one. So it notices an entry that is missing, doubled, or in the wrong place.

mod entries;
mod error;
mod find;
mod folder;
mod format;
pub mod mutants;
mod reading;
mod retain;
mod ship;
mod source;
mod take;

pub use atoll_contract::LogPos;
pub use atoll_object_store::{Store, StoreError};
pub use entries::Entry;
pub use error::{BackupError, Damaged};
pub use folder::{Folder, Nap};
pub use format::{About, Run, SnapshotHead};
pub use reading::{Backup, Moment, Runs, SnapshotInfo};
pub use retain::retain;
pub use ship::{End, Shipped, Shipper};
pub use source::{Source, SourceError, StateAt, StatePiece, StateSnapshot};
pub use take::{Taken, take};

/// For the fuzz target: decodes any bytes as any object.
#[doc(hidden)]
pub fn decode_any(bytes: &[u8]) -> bool {
    format::decode_any(bytes)
}

/// For the fuzz target: valid objects.
#[doc(hidden)]
pub fn samples() -> Vec<bytes::Bytes> {
    format::samples()
}

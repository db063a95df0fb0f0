//! What a backup needs of a replica, and how a state is made again from a backup.
//!
//! | file | what it is |
//! | --- | --- |
//! | `snapshot.rs` | the state of a replica, to be copied while the replica keeps applying entries; the position and hash up to which it vouches |
//! | `rebuild.rs` | fills a store with such a state, and applies entries to it, without a log and without a node |

mod rebuild;
mod snapshot;

use bytes::Bytes;

use atoll_contract::{Entry, OpId};
use atoll_core::LevelRange;
use atoll_log::LogRead;

use crate::entry::{self, Delivered, Surgery};

pub use rebuild::{Beyond, Filling, RebuildError, Replaying, committed_view};
pub use snapshot::{Piece, Snapshot};

/// An entry of the database's log as its replicas apply it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedEntry {
    /// The name under which it was appended.
    pub op: OpId,
    /// Its contents.
    pub payload: Bytes,
    /// What an operator has done to it.
    pub operated: Operated,
    /// The time of its proposer, in milliseconds since the Unix epoch; 0 if it has none.
    pub time_ms: u64,
}

/// What an operator has done to an entry (virtuallog §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// Nothing.
    No,
    /// It was excised.
    Excised,
    /// Its contents were replaced.
    Replaced,
}

impl LoggedEntry {
    /// Returns the entries of a read of the database's log.
    pub fn all(read: LogRead, reads: LevelRange) -> Vec<LoggedEntry> {
        Delivered::all(read).into_iter().map(|delivered| LoggedEntry::of(delivered, reads)).collect()
    }

    fn of(delivered: Delivered, reads: LevelRange) -> LoggedEntry {
        let Delivered { entry: Entry { op, payload }, surgery } = delivered;
        let operated = match surgery {
            None => Operated::No,
            Some(Surgery::Excised) => Operated::Excised,
            Some(Surgery::Replaced) => Operated::Replaced,
        };
        let time_ms = entry::parse(payload.clone(), reads).map_or(0, |(header, _)| header.time_ms);
        LoggedEntry { op, payload, operated, time_ms }
    }
}

impl From<LoggedEntry> for Delivered {
    fn from(logged: LoggedEntry) -> Self {
        let surgery = match logged.operated {
            Operated::No => None,
            Operated::Excised => Some(Surgery::Excised),
            Operated::Replaced => Some(Surgery::Replaced),
        };
        Delivered { entry: Entry { op: logged.op, payload: logged.payload }, surgery }
    }
}

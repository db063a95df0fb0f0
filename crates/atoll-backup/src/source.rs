//! Where the entries and the state come from.

use std::ops::Range;

use atoll_contract::LogPos;
use atoll_core::BoxFuture;
use bytes::Bytes;

use crate::entries::Entry;

/// A position, and the hash of the state with all entries below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateAt {
    /// The position.
    pub below: LogPos,
    /// The hash.
    pub hash: u128,
}

/// Why the source gives nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The log begins here, behind what was asked for.
    #[error("the log begins at {0}: earlier entries are trimmed")]
    Trimmed(LogPos),
    /// Later, perhaps.
    #[error("{0}")]
    Later(String),
}

/// Some of the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePiece {
    /// It, with a checksum of its own.
    pub bytes: Bytes,
    /// How many keys it has.
    pub keys: u64,
    /// Whether it is the last one.
    pub last: bool,
}

/// A state that does not change while the source keeps changing.
pub trait StateSnapshot: Send {
    /// Returns where it is, and its hash.
    fn at(&self) -> StateAt;

    /// Returns the time of the last entry in it, in milliseconds since the Unix epoch.
    fn time_ms(&self) -> u64;

    /// Returns the next piece of it.
    fn next(&mut self) -> BoxFuture<'_, Result<StatePiece, SourceError>>;
}

/// A replica of what is backed up. All sources of a backup have the same entries at the same positions, and the same states.
pub trait Source: Send + Sync {
    /// Returns how far this one is, if it can vouch for it. Nothing above is shipped.
    fn at(&self) -> Option<StateAt>;

    /// Reads entries from the beginning of a range, at least one, and not far more than `max_bytes`.
    fn read(&self, range: Range<LogPos>, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, SourceError>>;

    /// Returns its state, a little behind where it is.
    fn snapshot(&self) -> Result<Box<dyn StateSnapshot>, SourceError>;
}

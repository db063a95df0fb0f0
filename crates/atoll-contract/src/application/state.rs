//! What an engine provides behind [`super::Tx`] and [`super::View`], and the errors of its store. All keys here are those of the store: the
//! number of the application, and then its own key.

use std::fmt;

use bytes::Bytes;

use super::{Direction, KeyRange};
use crate::position::LogPos;

/// What memory alone says about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InMemory {
    /// The value of the key. None: the key does not exist.
    Known(Option<Bytes>),
    /// The key must be read from the disk.
    OnDisk,
}

/// Whether an error of a store may be temporary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The system was short of a resource (space, descriptors, memory) or was interrupted. The same operation may succeed later.
    Passing,
    /// The error proves that the state is wrong, or there is no sign that it is temporary.
    Lasting,
}

/// An error of the store. Whether the operation took effect is unknown. A replica retries the operation if the error may be
/// temporary, and otherwise halts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the local store failed while it {doing}: {reason}")]
pub struct StoreError {
    /// What the store was doing: "read", "committed" …
    pub doing: &'static str,
    /// The reason that the store or the system gave.
    pub reason: String,
    /// Whether the error may be temporary.
    pub persistence: Persistence,
}

impl StoreError {
    /// Creates an error that may be temporary.
    pub fn passing(doing: &'static str, reason: impl Into<String>) -> Self {
        StoreError { doing, reason: reason.into(), persistence: Persistence::Passing }
    }

    /// Creates a permanent error.
    pub fn lasting(doing: &'static str, reason: impl Into<String>) -> Self {
        StoreError { doing, reason: reason.into(), persistence: Persistence::Lasting }
    }

    /// Returns true if the operation may succeed when it is retried.
    pub fn can_pass(&self) -> bool {
        self.persistence == Persistence::Passing
    }
}

/// A page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries, in the order of the scan.
    pub items: Vec<(Bytes, Bytes)>,
    /// The rest of the range. None if the range is finished.
    pub rest: Option<KeyRange>,
}

/// A point in the writes of an entry to which they can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of writes before it.
    pub writes: usize,
    /// The hash of the state there.
    pub hash: u128,
}

/// The state while the commands of an entry are applied. Reads see all writes so far.
///
/// If a read of the store fails, it returns nothing. The engine then rolls back the whole entry and stops before it.
pub trait WriteState: fmt::Debug {
    /// Returns the value of a key.
    fn get(&mut self, key: &[u8]) -> Option<Bytes>;

    /// Writes a key, or deletes it.
    fn write(&mut self, key: &[u8], value: Option<Bytes>);

    /// Returns the first entries of a range in the given direction, about `limit`. A page with fewer entries, or none, may have a rest.
    fn page(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Page;

    /// Returns a mark at the last write.
    fn mark(&self) -> Mark;

    /// Undoes the writes since a mark. Later marks become invalid.
    fn rollback(&mut self, to: &Mark);
}

/// A state after whole log entries. It never changes.
pub trait ShowState: Send + Sync + fmt::Debug {
    /// Returns the first position that the state does not include. It includes all entries below.
    fn below(&self) -> LogPos;

    /// Returns the time of the last entry in the state (see [`super::ApplyAt::time_ms`]), or 0 if there is none.
    fn time_ms(&self) -> u64;

    /// Returns true if no read ever waits for a disk.
    fn is_in_memory(&self) -> bool;

    /// Returns the value of a key if that needs no disk.
    fn get_in_memory(&self, key: &[u8]) -> InMemory;

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The store cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Returns the first entries of a range in the given direction, about `limit`. A page with fewer entries, or none, may have a rest.
    ///
    /// # Errors
    /// The store cannot be read.
    fn page(&self, range: &KeyRange, direction: Direction, limit: usize) -> Result<Page, StoreError>;
}

//! The local store of a replica: one ordered map from bytes to bytes, written in atomic batches by one thread, read through
//! immutable snapshots by any.
//!
//! What is committed is visible at once and durable only after [`Store::persist`]; after a crash the store holds all batches up to
//! some point at or above the last persist, whole and in order. The log is the write-ahead log (Delos §4.1).

mod deferred_deletes;
mod fjall;
mod memory;
mod owner;
mod pinned;
mod points;
mod versions;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::key_range::{Direction, KeyRange};

pub use fjall::FjallStore;
pub use memory::MemoryStore;
pub use owner::{Bound, Owner, OwnerError};
pub(crate) use points::Points;
pub(crate) use versions::{Hold, Live, Prior, VersionedMap};

/// One change of a key: a new value, or None to delete it.
pub type Change = (Bytes, Option<Bytes>);

/// Whether a failure of a store can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// The system was short of something (space, descriptors, memory) or was interrupted: the same operation may succeed later.
    Passing,
    /// The failure proves a wrong state, or there is no sign that it can pass.
    Lasting,
}

/// The store failed. Nothing of the operation may be relied on. A replica repeats an operation whose failure can pass, and halts on
/// any other failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the local store failed while it {doing}: {reason}")]
pub struct StoreError {
    /// What it was doing: "read", "committed" …
    pub doing: &'static str,
    /// The reason, from the store or the system.
    pub reason: String,
    /// Whether it can pass.
    pub persistence: Persistence,
}

impl StoreError {
    /// A failure that can pass.
    pub fn passing(doing: &'static str, reason: impl Into<String>) -> Self {
        StoreError { doing, reason: reason.into(), persistence: Persistence::Passing }
    }

    /// A failure that does not pass.
    pub fn lasting(doing: &'static str, reason: impl Into<String>) -> Self {
        StoreError { doing, reason: reason.into(), persistence: Persistence::Lasting }
    }

    /// Whether the operation is worth repeating.
    pub fn can_pass(&self) -> bool {
        self.persistence == Persistence::Passing
    }
}

/// Whether an error of the system can pass: it was short of something, or was interrupted.
pub(crate) fn persistence_of(error: &std::io::Error) -> Persistence {
    use std::io::ErrorKind as K;
    // The process's and the system's table of open files is full; the library has no kind for either.
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    let short = matches!(
        error.kind(),
        K::StorageFull | K::QuotaExceeded | K::Interrupted | K::WouldBlock | K::OutOfMemory | K::TimedOut
    );
    match short || matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        true => Persistence::Passing,
        false => Persistence::Lasting,
    }
}

/// See the module documentation.
pub trait Store: Send + fmt::Debug {
    /// All that is committed, as it is now. After a failure it may be unreadable until [`Store::reopen`] succeeds.
    fn snapshot(&self) -> Arc<dyn StoreSnapshot>;

    /// Applies all changes or none. Visible when it returns; durable after [`Store::persist`], or before.
    ///
    /// # Errors
    /// Whether it happened is unknown.
    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError>;

    /// Makes the store usable after a failure that can pass; nothing to do for one that stays usable.
    ///
    /// # Errors
    /// It is not usable yet.
    fn reopen(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes durable what is committed.
    ///
    /// # Errors
    /// Whether it is durable is unknown.
    fn persist(&mut self) -> Result<(), StoreError>;

    /// Begins to fill a second state beside the one that is read, and drops an earlier one that was not finished. After a
    /// crash a second state that was not finished is gone.
    ///
    /// # Errors
    /// The state that is read is as it was.
    fn begin_refill(&mut self) -> Result<(), StoreError>;

    /// Adds entries to the second state.
    ///
    /// # Errors
    /// The state that is read is as it was.
    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError>;

    /// Makes the second state the one that is read, durably and all at once. Snapshots taken before show the other still.
    ///
    /// # Errors
    /// Which of the two is read after a restart is unknown; both are whole.
    fn finish_refill(&mut self) -> Result<(), StoreError>;

    /// Bytes that it takes on disk, or in memory if it has none; about.
    fn size_bytes(&self) -> u64;
}

/// An immutable state of a store.
pub trait StoreSnapshot: Send + Sync + fmt::Debug {
    /// Whether its reads never wait for a disk.
    fn is_in_memory(&self) -> bool;

    /// The value of a key.
    ///
    /// # Errors
    /// It cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// The first entries of a range in a direction, in that order: at most `limit`, at least one if there is one. Fewer than
    /// `limit` means that there are no more.
    ///
    /// # Errors
    /// They cannot be read.
    fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError>;
}

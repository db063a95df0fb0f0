//! The local store of a replica: an ordered map from bytes to bytes. One thread writes it in atomic batches; any thread reads it
//! through immutable snapshots.
//!
//! A committed batch is visible immediately, but durable only after [`Store::persist`]. After a crash the store holds every batch
//! up to the last persist, and possibly some later ones, whole and in order. The log of the database serves as the write-ahead log
//! (Delos §4.1).

mod deferred_deletes;
mod fjall;
mod memory;
mod owner;
mod pinned;
mod points;
mod row_cache;
mod versions;

use std::fmt;
use std::sync::Arc;

use atoll_contract::application::{Direction, KeyRange};
use bytes::Bytes;

pub use atoll_contract::application::{InMemory, Persistence, StoreError};
pub use fjall::FjallStore;
pub use memory::MemoryStore;
pub use owner::{Bound, Owner, OwnerError};
pub(crate) use points::Points;
pub(crate) use versions::{Hold, Live, Prior, VersionedMap};

/// A change of one key: a new value, or None to delete the key.
pub type Change = (Bytes, Option<Bytes>);

/// Returns whether an error of the system may be temporary: it was short of a resource or was interrupted.
pub(crate) fn persistence_of(error: &std::io::Error) -> Persistence {
    use std::io::ErrorKind as K;
    // The table of open files, of the process or of the system, is full. The library has no error kind for either.
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

/// A page ends with the entry with which it has this many bytes. Larger: more memory for each reader of long values. Smaller: more pages.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;

type Entry = (Bytes, Bytes);

fn size_of(page: &[Entry]) -> usize {
    page.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// Returns whether a range may have entries behind a page of [`StoreSnapshot::page`] with this limit.
pub fn may_continue(page: &[Entry], limit: usize) -> bool {
    page.len() >= limit || size_of(page) >= PAGE_BYTES
}

/// Takes the entries of a page.
fn first_of(
    items: impl Iterator<Item = Result<Entry, StoreError>>,
    limit: usize,
) -> Result<Vec<Entry>, StoreError> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    for item in items.take(limit) {
        let (key, value) = item?;
        bytes += key.len() + value.len();
        page.push((key, value));
        if bytes >= PAGE_BYTES {
            break;
        }
    }
    Ok(page)
}

/// See the module documentation.
pub trait Store: Send + fmt::Debug {
    /// Returns a snapshot of everything that is committed now. After a failure it may be unreadable until [`Store::reopen`]
    /// succeeds.
    fn snapshot(&self) -> Arc<dyn StoreSnapshot>;

    /// Applies all changes or none. They are visible when this returns, and durable after the next [`Store::persist`] at the
    /// latest.
    ///
    /// # Errors
    /// Whether the commit happened is unknown.
    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError>;

    /// Makes the store usable again after a temporary error. Does nothing in a store that stays usable.
    ///
    /// # Errors
    /// The store is not usable yet.
    fn reopen(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes everything that is committed durable.
    ///
    /// # Errors
    /// Whether the commits are durable is unknown.
    fn persist(&mut self) -> Result<(), StoreError>;

    /// Begins a second state beside the one that is read, and drops an earlier second state that was not finished. An unfinished
    /// second state does not survive a crash.
    ///
    /// # Errors
    /// The state that is read is unchanged.
    fn begin_refill(&mut self) -> Result<(), StoreError>;

    /// Adds entries to the second state.
    ///
    /// # Errors
    /// The state that is read is unchanged.
    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError>;

    /// Replaces the state that is read with the second state, atomically and durably. Earlier snapshots still show the old state.
    ///
    /// # Errors
    /// It is unknown which of the two states is read after a restart. Both are complete.
    fn finish_refill(&mut self) -> Result<(), StoreError>;

    /// Returns the approximate size of the store in bytes, on disk, or in memory for a store without a disk.
    fn size_bytes(&self) -> u64;
}

/// An immutable state of a store.
pub trait StoreSnapshot: Send + Sync + fmt::Debug {
    /// Returns true if reads never wait for a disk.
    fn is_in_memory(&self) -> bool;

    /// Returns the value of a key if that needs no disk.
    fn get_in_memory(&self, key: &[u8]) -> InMemory;

    /// Returns the value of a key.
    ///
    /// # Errors
    /// The key cannot be read.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError>;

    /// Returns the first entries of a range in the given direction: at most `limit`, and none behind those that have [`PAGE_BYTES`].
    /// [`may_continue`] says whether the range may have more.
    ///
    /// # Errors
    /// The entries cannot be read.
    fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError>;
}

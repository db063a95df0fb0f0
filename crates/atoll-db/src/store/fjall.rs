//! The store on disk: fjall, an LSM tree (docs/decisions/0005-local-store.md). Only this module knows about fjall.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak};

use bytes::Bytes;
use fjall::compaction::Leveled;
use fjall::config::{PartitioningPolicy, PinningPolicy};
use fjall::{Database, Guard, Iter, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Slice, Snapshot};

use atoll_core::sync::lock;

use super::deferred_deletes::DeferredDeletes;
use super::owner::{Bound, Owner, OwnerError};
use super::pinned::{Items, Pinned};
use super::row_cache::RowCache;
use super::{Change, InMemory, Persistence, Store, StoreError, StoreSnapshot, first_of, persistence_of};
use atoll_contract::application::{Direction, KeyRange};

/// The prefix of the name of a tree, before its number. One tree holds the keys of all applications, whose first byte distinguishes
/// them. A refill creates the next tree.
const TREE: &str = "state-";
/// The name of the tree that says which state is read.
const CHOICE: &str = "choice";
const CHOSEN: &str = "state";
/// The key in the same tree that names the owner of the store.
const OWNER: &str = "owner";
/// The memory for writes that are in no file yet. While one memtable is written out, up to twice this may be in use.
const MEMTABLE_BYTES: u64 = 32 * 1024 * 1024;
/// The size that fjall's own log may reach on disk before memory is written out. fjall accepts no smaller value.
const JOURNAL_BYTES: u64 = 128 * 1024 * 1024;
/// The share of the cache that is for rows, as a fraction: most reads are of single keys.
const ROWS_OF: (u64, u64) = (15, 16);
/// The number of files that are kept open. A host that budgets the open files of the process must reserve this many, and some more.
const CACHED_FILES: usize = 256;
/// A commit of at least this size is written directly as a file of the tree. It bypasses fjall's own log and its memory, from which
/// it would be written out later. That memory is bounded only while the single worker is not busy merging files. If this is
/// smaller, there are many small files, which are merged more often.
const FILE_BYTES: usize = 8 * 1024 * 1024;
/// Once this many files are unmerged, commits go through fjall's log and memory, where fjall makes them wait for its worker.
const FILES_AT_MOST: usize = 24;
/// Files are merged once there are this many unmerged ones. More: point reads search more of them. Fewer: the same data is merged
/// more often.
const MERGED_FILES: u8 = 8;
/// The target size of a merged file.
const MERGED_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// A store in a directory.
///
/// After a failed write fjall accepts no more writes, because it does not know whether its memory and its disk agree. The store is
/// then closed, and the next operation opens it again, which recovers what is on disk. Earlier snapshots cannot be read any more,
/// because they would keep the directory locked.
pub struct FjallStore {
    path: PathBuf,
    /// For blocks of files, in fjall.
    cache_bytes: u64,
    rows: Arc<RowCache>,
    /// None after a failure closed the store. The next operation opens it again.
    open: Option<Open>,
    /// The snapshots that may still be read.
    views: Mutex<Vec<Weak<View>>>,
}

struct Open {
    db: Database,
    choice: Keyspace,
    /// The number of the tree that is read.
    number: u64,
    tree: Keyspace,
    /// The second state, while it is filled.
    second: Option<Keyspace>,
    _deferred: DeferredDeletes,
}

impl fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fjall at {}", self.path.display())
    }
}

/// Returns whether an error of fjall may be temporary. Its error for "an earlier write failed, and no more writes are accepted"
/// does not name the cause, but reopening the store may resolve it.
fn persistence(error: &fjall::Error) -> Persistence {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => persistence_of(error),
        fjall::Error::Poisoned | fjall::Error::Locked => Persistence::Passing,
        _ => Persistence::Lasting,
    }
}

fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> StoreError {
    move |error| StoreError { doing, reason: error.to_string(), persistence: persistence(&error) }
}

fn closed(doing: &'static str) -> StoreError {
    StoreError::passing(doing, "it was closed after a failure and is opened again")
}

impl FjallStore {
    /// Opens the store in a directory, and creates it if it does not exist. Up to `cache_bytes` of the data that was read or
    /// committed are cached in memory, most of them as values of single keys, the others as blocks of files.
    ///
    /// # Errors
    /// The store is in use, is damaged, or has another version, or the disk failed.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let of_rows = cache_bytes / ROWS_OF.1 * ROWS_OF.0;
        let (rows, cache_bytes) = (Arc::new(RowCache::new(of_rows)), cache_bytes - of_rows);
        let open = Some(Open::at(path, cache_bytes)?);
        Ok(FjallStore { path: path.to_owned(), cache_bytes, rows, open, views: Mutex::default() })
    }

    /// Performs an operation. Opens the store first if an earlier failure closed it, and closes it if this operation fails.
    fn with<T>(&mut self, f: impl FnOnce(&mut Open) -> Result<T, StoreError>) -> Result<T, StoreError> {
        if self.open.is_none() {
            self.open = Some(Open::at(&self.path, self.cache_bytes)?);
            tracing::info!(store = %self.path.display(), "the store is open again after a failure");
        }
        let done = match &mut self.open {
            Some(open) => f(open),
            None => Err(closed("was opened")),
        };
        if done.is_err() {
            self.close();
        }
        done
    }

    /// Closes the store and unlocks its directory. Waits for the current reads.
    fn close(&mut self) {
        // What failed may have happened, in whole or in part.
        self.rows.clear();
        for view in std::mem::take(&mut *lock(&self.views)).iter().filter_map(Weak::upgrade) {
            let parts = view.parts.write().unwrap_or_else(PoisonError::into_inner).take();
            drop(parts);
        }
        self.open = None;
    }
}

impl Open {
    fn at(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let opening = failed("was opened");
        // There is one worker, because more of them would occupy the node's cores (X17).
        let db = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(JOURNAL_BYTES)
            .max_cached_files(Some(CACHED_FILES))
            .open()
            .map_err(&opening)?;
        let choice = db.keyspace(CHOICE, KeyspaceCreateOptions::default).map_err(&opening)?;
        let number = match choice.get(CHOSEN).map_err(&opening)? {
            Some(value) => value.as_ref().try_into().map(u64::from_le_bytes).map_err(|_| {
                let reason = format!("which state is read is said in {} bytes, not 8", value.len());
                StoreError::lasting("was opened", reason)
            })?,
            None => 0,
        };
        let name = format!("{TREE}{number}");
        for other in db.list_keyspace_names() {
            // It belongs to an unfinished refill, or a refill replaced it just before a crash.
            if other.starts_with(TREE) && *other != *name {
                let other = db.keyspace(&other, KeyspaceCreateOptions::default).map_err(&opening)?;
                db.delete_keyspace(other).map_err(&opening)?;
            }
        }
        let tree = db.keyspace(&name, tree_options).map_err(&opening)?;
        let deferred = DeferredDeletes::of(path).map_err(|error| StoreError {
            doing: "was opened",
            reason: error.to_string(),
            persistence: persistence_of(&error),
        })?;
        Ok(Open { db, choice, number, tree, second: None, _deferred: deferred })
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let bytes: usize =
            changes.iter().map(|(key, value)| key.len() + value.as_ref().map_or(0, Bytes::len)).sum();
        if bytes >= FILE_BYTES && self.tree.l0_table_count() < FILES_AT_MOST {
            return write_files(&self.tree, changes).map_err(failed("committed"));
        }
        let mut batch = self.db.batch();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.tree, key, value),
                None => batch.remove(&self.tree, key),
            }
        }
        batch.commit().map_err(failed("committed"))
    }

    fn begin_refill(&mut self) -> Result<(), StoreError> {
        let refilling = failed("was refilled");
        if let Some(second) = self.second.take() {
            self.db.delete_keyspace(second).map_err(&refilling)?;
        }
        let name = format!("{TREE}{}", self.number + 1);
        self.second = Some(self.db.keyspace(&name, tree_options).map_err(&refilling)?);
        Ok(())
    }

    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError> {
        let Some(second) = &self.second else { return Err(not_begun()) };
        let mut batch = self.db.batch();
        for (key, value) in items {
            batch.insert(second, key, value);
        }
        batch.commit().map_err(failed("was refilled"))
    }

    fn finish_refill(&mut self) -> Result<(), StoreError> {
        let refilling = failed("was refilled");
        let Some(second) = self.second.take() else { return Err(not_begun()) };
        // All trees share one log. If the choice is in it, the chosen state before it is complete.
        self.choice.insert(CHOSEN, (self.number + 1).to_le_bytes()).map_err(&refilling)?;
        self.db.persist(PersistMode::SyncAll).map_err(&refilling)?;
        self.number += 1;
        let first = std::mem::replace(&mut self.tree, second);
        self.db.delete_keyspace(first).map_err(&refilling)
    }
}

/// The error after the second state was lost because the store was reopened.
fn not_begun() -> StoreError {
    StoreError::passing("was refilled", "the refill must start again")
}

impl FjallStore {
    /// Binds the store to this owner if it has no owner yet. The binding is durable when this returns. `was_bound`: the owner is
    /// known to have had a store that named it.
    ///
    /// # Errors
    /// The store belongs to another owner or cannot be read, and was not changed.
    pub fn bind(&mut self, owner: &Owner, was_bound: bool) -> Result<Bound, OwnerError> {
        match &mut self.open {
            Some(open) => open.bind(owner, was_bound),
            None => Err(closed("was opened").into()),
        }
    }
}

impl FjallStore {
    /// Makes this the owner of the store, whoever owned it before. It is durable when this returns. Only for a store that was copied on
    /// purpose, and that nobody serves.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn hand_over(&mut self, to: &Owner) -> Result<(), StoreError> {
        let Some(open) = &mut self.open else { return Err(closed("was opened")) };
        open.choice.insert(OWNER, to.to_string().as_bytes()).map_err(failed("was handed over"))?;
        open.db.persist(PersistMode::SyncAll).map_err(failed("was synced"))
    }
}

impl Open {
    fn bind(&mut self, owner: &Owner, was_bound: bool) -> Result<Bound, OwnerError> {
        let opening = failed("was opened");
        let mine = owner.to_string();
        if let Some(found) = self.choice.get(OWNER).map_err(&opening)? {
            if found[..] == *mine.as_bytes() {
                return Ok(Bound::Same);
            }
            let found = String::from_utf8_lossy(&found).into_owned();
            return Err(OwnerError::Foreign { found, expected: owner.clone() });
        }
        let is_empty = self.number == 0 && self.tree.is_empty().map_err(&opening)?;
        if was_bound && !is_empty {
            return Err(OwnerError::Unbound { expected: owner.clone() });
        }
        self.choice.insert(OWNER, mine.as_bytes()).map_err(&opening)?;
        self.db.persist(PersistMode::SyncAll).map_err(failed("was synced"))?;
        Ok(if is_empty { Bound::New } else { Bound::Adopted })
    }
}

/// Returns the options of a new tree. An existing one keeps those with which it was created.
///
/// The filters of three levels stay in memory, about ten bits for a key. In the deeper levels they are divided into small blocks. Most
/// reads of commands are of keys that do not exist, and each would read the whole filters of 100 KB and more, since the cache of
/// blocks is small.
fn tree_options() -> KeyspaceCreateOptions {
    let leveled =
        Leveled::default().with_l0_threshold(MERGED_FILES).with_table_target_size(MERGED_FILE_BYTES);
    KeyspaceCreateOptions::default()
        .max_memtable_size(MEMTABLE_BYTES)
        .compaction_strategy(Arc::new(leveled))
        .filter_block_partitioning_policy(PartitioningPolicy::new([false, false, false, true]))
        .filter_block_pinning_policy(PinningPolicy::new([true, true, true, false]))
}

/// Writes changes as files of a tree, atomically and durably. They take precedence over all earlier commits.
fn write_files(tree: &Keyspace, mut changes: Vec<Change>) -> fjall::Result<()> {
    changes.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut files = tree.start_ingestion()?;
    for (key, value) in changes {
        match value {
            Some(value) => files.write(key, value)?,
            None => files.write_tombstone(key)?,
        }
    }
    files.finish()
}

impl Store for FjallStore {
    fn snapshot(&self) -> Arc<dyn StoreSnapshot> {
        let parts = self.open.as_ref().map(|open| Parts::of(open.db.snapshot(), open.tree.clone()));
        let (rows, state) = (self.rows.clone(), self.rows.newest());
        let view = Arc::new(View { parts: RwLock::new(parts), rows, state });
        let mut views = lock(&self.views);
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(&view));
        view
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let rows = changes.clone();
        self.rows.advance();
        self.with(|open| open.commit(changes))?;
        self.rows.replace(&rows);
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        self.with(|_| Ok(()))
    }

    fn persist(&mut self) -> Result<(), StoreError> {
        self.with(|open| {
            open.db.persist(PersistMode::SyncAll).map_err(|error| {
                // A failed sync is permanent, whatever its reason, because the next sync does not report what this one failed to
                // write. A sync that was not attempted has lost nothing.
                let tried = !matches!(error, fjall::Error::Poisoned);
                let error = failed("was synced")(error);
                if tried { StoreError { persistence: Persistence::Lasting, ..error } } else { error }
            })
        })
    }

    fn begin_refill(&mut self) -> Result<(), StoreError> {
        self.with(Open::begin_refill)
    }

    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError> {
        self.with(|open| open.refill(items))
    }

    fn finish_refill(&mut self) -> Result<(), StoreError> {
        self.rows.advance();
        self.with(Open::finish_refill)?;
        self.rows.clear();
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.open.as_ref().and_then(|open| open.db.disk_space().ok()).unwrap_or(0)
    }
}

/// A snapshot and its tree.
struct Parts {
    /// This field is dropped first, because the data that it pins belongs to the tree.
    pinned: Option<Pinned>,
    snapshot: Snapshot,
    tree: Keyspace,
}

impl Parts {
    fn of(snapshot: Snapshot, tree: Keyspace) -> Self {
        Parts { pinned: Pinned::of(&tree, snapshot.seqno()), snapshot, tree }
    }

    fn get(&self, key: &[u8]) -> fjall::Result<Option<Slice>> {
        match &self.pinned {
            Some(pinned) => pinned.get(key),
            None => self.snapshot.get(&self.tree, key),
        }
    }

    fn scan(&self, range: &KeyRange) -> Items {
        if let Some(pinned) = &self.pinned {
            return pinned.scan(range);
        }
        let start = &range.start[..];
        let items: Iter = match &range.end {
            Some(end) => self.snapshot.range(&self.tree, start..&end[..]),
            None => self.snapshot.range(&self.tree, start..),
        };
        Box::new(items.map(Guard::into_inner))
    }
}

/// A snapshot of the store. Its parts are None once the store was closed.
struct View {
    parts: RwLock<Option<Parts>>,
    rows: Arc<RowCache>,
    /// The number of the state that it shows, for the rows.
    state: u64,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.parts() {
            Some(Parts { snapshot, tree, .. }) => {
                write!(f, "snapshot {} of {}", snapshot.seqno(), tree.path().display())
            }
            None => write!(f, "snapshot of a store that was closed"),
        }
    }
}

impl View {
    fn parts(&self) -> RwLockReadGuard<'_, Option<Parts>> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read(item: fjall::Result<(Slice, Slice)>) -> Result<(Bytes, Bytes), StoreError> {
    let (key, value) = item.map_err(failed("read"))?;
    Ok((key.into(), value.into()))
}

impl StoreSnapshot for View {
    fn is_in_memory(&self) -> bool {
        false
    }

    fn get_in_memory(&self, key: &[u8]) -> InMemory {
        self.rows.get(key, self.state)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        if let InMemory::Known(value) = self.get_in_memory(key) {
            return Ok(value);
        }
        let parts = self.parts();
        let Some(parts) = &*parts else { return Err(closed("read")) };
        let value = parts.get(key).map_err(failed("read"))?.map(Into::into);
        self.rows.fill(key, value.as_ref(), self.state);
        Ok(value)
    }

    fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let parts = self.parts();
        let Some(parts) = &*parts else { return Err(closed("read")) };
        let items = parts.scan(range);
        match direction {
            Direction::Forward => first_of(items.map(read), limit),
            Direction::Backward => first_of(items.rev().map(read), limit),
        }
    }
}

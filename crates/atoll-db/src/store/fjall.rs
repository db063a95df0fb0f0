//! The store on disk: fjall, an LSM tree (docs/decisions/0005-local-store.md). This module is all that knows of it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{Database, Guard, Iter, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, Snapshot};

use super::{Change, Store, StoreError, StoreSnapshot};
use crate::key_range::{Direction, KeyRange};

/// The one tree: applications are told apart by the first byte of a key.
const TREE: &str = "state";
/// Memory for writes that are in no file yet. Twice this may be in use while one is written out.
const MEMTABLE_BYTES: u64 = 32 * 1024 * 1024;
/// What its own log may take on disk before memory is written out; fjall takes no less.
const JOURNAL_BYTES: u64 = 128 * 1024 * 1024;

/// A store in a directory.
pub struct FjallStore {
    db: Database,
    tree: Keyspace,
}

impl fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fjall at {}", self.tree.path().display())
    }
}

fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> StoreError {
    move |error| StoreError { doing, reason: error.to_string() }
}

impl FjallStore {
    /// Opens the store in a directory, which is made if there is none. `cache_bytes` of what was read stay in memory.
    ///
    /// # Errors
    /// It is in use, damaged, of another version, or the disk failed.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let opening = failed("was opened");
        // One worker: with a core's worth of them it would take the node's cores for itself (X17).
        let db = Database::builder(path)
            .cache_size(cache_bytes)
            .worker_threads(1)
            .max_journaling_size(JOURNAL_BYTES)
            .open()
            .map_err(&opening)?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let tree = db.keyspace(TREE, options).map_err(&opening)?;
        Ok(FjallStore { db, tree })
    }
}

impl Store for FjallStore {
    fn snapshot(&self) -> Arc<dyn StoreSnapshot> {
        Arc::new(View { snapshot: self.db.snapshot(), tree: self.tree.clone() })
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut batch = self.db.batch();
        for (key, value) in changes {
            match value {
                Some(value) => batch.insert(&self.tree, key, value),
                None => batch.remove(&self.tree, key),
            }
        }
        batch.commit().map_err(failed("committed"))
    }

    fn persist(&mut self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed("was synced"))
    }

    fn clear(&mut self) -> Result<(), StoreError> {
        self.tree.clear().map_err(failed("was cleared"))?;
        self.persist()
    }

    fn size_bytes(&self) -> u64 {
        self.db.disk_space().unwrap_or(0)
    }
}

struct View {
    snapshot: Snapshot,
    tree: Keyspace,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot {} of {}", self.snapshot.seqno(), self.tree.path().display())
    }
}

fn read(guard: Guard) -> Result<(Bytes, Bytes), StoreError> {
    let (key, value) = guard.into_inner().map_err(failed("read"))?;
    Ok((key.into(), value.into()))
}

impl StoreSnapshot for View {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.snapshot.get(&self.tree, key).map_err(failed("read"))?.map(Into::into))
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
        let start = &range.start[..];
        let items: Iter = match &range.end {
            Some(end) => self.snapshot.range(&self.tree, start..&end[..]),
            None => self.snapshot.range(&self.tree, start..),
        };
        match direction {
            Direction::Forward => items.take(limit).map(read).collect(),
            Direction::Backward => items.rev().take(limit).map(read).collect(),
        }
    }
}

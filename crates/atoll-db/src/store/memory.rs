//! A store in memory. What was not persisted is lost in a crash, as on a disk; the handle is the disk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::versions::{Hold, Live, VersionedMap};
use super::{Change, Store, StoreError, StoreSnapshot};
use crate::key_range::{Direction, KeyRange};

#[derive(Debug)]
struct Inner {
    map: Arc<VersionedMap>,
    live: Arc<Live>,
    version: u64,
    /// What a crash goes back to.
    persisted: Arc<Snapshot>,
    /// A second state that is filled.
    second: Option<Vec<(Bytes, Bytes)>>,
}

/// See the module's words. Clones are one store.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Snapshot {
    map: Arc<VersionedMap>,
    hold: Hold,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore(Arc::new(Mutex::new(Inner::of(Vec::new()))))
    }
}

impl Inner {
    fn of(items: Vec<(Bytes, Bytes)>) -> Self {
        let live = Arc::new(Live::default());
        let map = Arc::new(VersionedMap::new(live.clone()));
        for (key, value) in items {
            map.put(&key, Some(value), 1);
        }
        let persisted = Arc::new(Snapshot { map: map.clone(), hold: live.hold(1) });
        Inner { map, live, version: 1, persisted, second: None }
    }
}

impl MemoryStore {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loses what was not persisted. Snapshots taken before stay as they are.
    pub fn crash(&self) {
        let mut inner = self.inner();
        let persisted = inner.persisted.clone();
        let items = persisted.page(&KeyRange::all(), Direction::Forward, usize::MAX);
        *inner = Inner::of(items.unwrap_or_default());
    }
}

impl Store for MemoryStore {
    fn snapshot(&self) -> Arc<dyn StoreSnapshot> {
        let inner = self.inner();
        Arc::new(Snapshot { map: inner.map.clone(), hold: inner.live.hold(inner.version) })
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut inner = self.inner();
        inner.version += 1;
        for (key, value) in changes {
            let deleted = value.is_none();
            inner.map.put(&key, value, inner.version);
            if deleted {
                inner.map.forget_deleted(&key);
            }
        }
        Ok(())
    }

    fn persist(&mut self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        let snapshot = Snapshot { map: inner.map.clone(), hold: inner.live.hold(inner.version) };
        inner.persisted = Arc::new(snapshot);
        Ok(())
    }

    fn begin_refill(&mut self) -> Result<(), StoreError> {
        self.inner().second = Some(Vec::new());
        Ok(())
    }

    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError> {
        self.inner().second.get_or_insert_default().extend(items);
        Ok(())
    }

    fn finish_refill(&mut self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        let items = inner.second.take().unwrap_or_default();
        *inner = Inner::of(items);
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.inner().map.size_bytes() as u64
    }
}

impl StoreSnapshot for Snapshot {
    fn is_in_memory(&self) -> bool {
        true
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.map.get(key, self.hold.version).flatten())
    }

    fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        let mut got = Vec::new();
        let mut left = range.clone();
        loop {
            let (items, whole) = self.map.page(&left, direction, self.hold.version, limit);
            let last = items.last().map(|(key, _)| key.clone());
            got.extend(items.into_iter().filter_map(|(key, value)| Some((key, value?))));
            if whole || got.len() >= limit {
                got.truncate(limit);
                return Ok(got);
            }
            let Some(last) = last else { return Ok(got) };
            left = match direction {
                Direction::Forward => left.above(&last),
                Direction::Backward => left.below(&last),
            };
        }
    }
}

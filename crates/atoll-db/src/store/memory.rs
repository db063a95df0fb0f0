//! A store in memory. Data that was not persisted is lost in a simulated crash, as on a disk. The handle represents the disk. A test
//! can make it fail, and can make its reads those of a disk.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::versions::{Hold, Live, VersionedMap};
use super::{Change, InMemory, Persistence, Store, StoreError, StoreSnapshot, first_of};
use atoll_contract::application::{Direction, KeyRange};

/// The simulated disk. Shared by the store and its snapshots.
#[derive(Clone, Debug, Default)]
struct Disk {
    /// Whether it fails, and how: one of the numbers below. Every read looks here, from several threads, so it is no lock.
    failing: Arc<AtomicU8>,
    /// Whether some keys are not in memory.
    is_read: Arc<AtomicBool>,
    /// A version, and the keys that were read from it. These are in memory.
    cached: Arc<Mutex<(u64, BTreeSet<Bytes>)>>,
}

/// Values of `Disk::failing`.
const WORKS: u8 = 0;
const FAILS_FOR_NOW: u8 = 1;
const FAILS_FOR_GOOD: u8 = 2;

impl Disk {
    fn failing(&self) -> Option<Persistence> {
        match self.failing.load(Ordering::Relaxed) {
            WORKS => None,
            FAILS_FOR_NOW => Some(Persistence::Passing),
            _ => Some(Persistence::Lasting),
        }
    }

    fn fail(&self, how: Option<Persistence>) {
        let number = match how {
            None => WORKS,
            Some(Persistence::Passing) => FAILS_FOR_NOW,
            Some(Persistence::Lasting) => FAILS_FOR_GOOD,
        };
        self.failing.store(number, Ordering::Relaxed);
    }

    fn is_read(&self) -> bool {
        self.is_read.load(Ordering::Relaxed)
    }

    fn is_in_memory(&self, key: &[u8], version: u64) -> bool {
        let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let is_here = crc32c::crc32c_append(version as u32, key) & 1 == 0;
        is_here || (cached.0 == version && cached.1.contains(key))
    }

    fn remember(&self, key: &[u8], version: u64) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if cached.0 != version {
            *cached = (version, BTreeSet::new());
        }
        cached.1.insert(Bytes::copy_from_slice(key));
    }

    fn check(&self, doing: &'static str) -> Result<(), StoreError> {
        match self.failing() {
            None => Ok(()),
            Some(persistence) => {
                Err(StoreError { doing, reason: "a test lets it fail".to_owned(), persistence })
            }
        }
    }
}

#[derive(Debug)]
struct Inner {
    map: Arc<VersionedMap>,
    live: Arc<Live>,
    version: u64,
    /// The state that a crash restores. None if a crash loses everything; then no old version is kept for it.
    persisted: Option<Arc<Snapshot>>,
    /// The second state, while it is filled.
    second: Option<Vec<(Bytes, Bytes)>>,
    disk: Disk,
}

/// See the module documentation. Clones share one store.
#[derive(Clone, Debug)]
pub struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Snapshot {
    map: Arc<VersionedMap>,
    hold: Hold,
    disk: Disk,
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore(Arc::new(Mutex::new(Inner::of(Vec::new(), Disk::default(), true))))
    }
}

impl Inner {
    fn of(items: Vec<(Bytes, Bytes)>, disk: Disk, can_crash: bool) -> Self {
        let live = Arc::new(Live::default());
        let map = Arc::new(VersionedMap::new(live.clone()));
        for (key, value) in items {
            map.put(&key, Some(value), 1);
        }
        let persisted = can_crash
            .then(|| Arc::new(Snapshot { map: map.clone(), hold: live.hold(1), disk: disk.clone() }));
        Inner { map, live, version: 1, persisted, second: None, disk }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { map: self.map.clone(), hold: self.live.hold(self.version), disk: self.disk.clone() }
    }
}

impl MemoryStore {
    /// Returns an empty store that remembers what was persisted, for a simulated crash.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty store of a real process, with which it ends. To persist it does nothing: a copy for a crash would keep an old
    /// version of every value that changes, and every key that is deleted.
    pub fn volatile() -> Self {
        MemoryStore(Arc::new(Mutex::new(Inner::of(Vec::new(), Disk::default(), false))))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a crash: everything that was not persisted is lost; in a volatile store, everything. Earlier snapshots are unaffected.
    pub fn crash(&self) {
        let mut inner = self.inner();
        let kept = inner.persisted.as_ref();
        let items = kept.map_or_else(Vec::new, |p| p.read(&KeyRange::all(), Direction::Forward, usize::MAX));
        *inner = Inner::of(items, inner.disk.clone(), inner.persisted.is_some());
    }

    /// Makes every operation of the store and of its snapshots fail from now on without an effect. None makes them work again.
    pub fn fail(&self, how: Option<Persistence>) {
        self.inner().disk.fail(how);
    }

    /// Makes the store behave like one on disk from now on: about half of the keys are not in memory until they are read, and with
    /// each commit it is another half.
    pub fn read_from_disk(&self) {
        self.inner().disk.is_read.store(true, Ordering::Relaxed);
    }

    /// Returns how the store currently fails, if it does.
    pub fn failing(&self) -> Option<Persistence> {
        self.inner().disk.failing()
    }
}

impl Store for MemoryStore {
    fn snapshot(&self) -> Arc<dyn StoreSnapshot> {
        Arc::new(self.inner().snapshot())
    }

    fn commit(&mut self, changes: Vec<Change>) -> Result<(), StoreError> {
        let mut inner = self.inner();
        inner.disk.check("committed")?;
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
        inner.disk.check("was synced")?;
        if inner.persisted.is_some() {
            inner.persisted = Some(Arc::new(inner.snapshot()));
        }
        Ok(())
    }

    fn begin_refill(&mut self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        inner.disk.check("was refilled")?;
        inner.second = Some(Vec::new());
        Ok(())
    }

    fn refill(&mut self, items: Vec<(Bytes, Bytes)>) -> Result<(), StoreError> {
        let mut inner = self.inner();
        inner.disk.check("was refilled")?;
        inner.second.get_or_insert_default().extend(items);
        Ok(())
    }

    fn finish_refill(&mut self) -> Result<(), StoreError> {
        let mut inner = self.inner();
        inner.disk.check("was refilled")?;
        let items = inner.second.take().unwrap_or_default();
        *inner = Inner::of(items, inner.disk.clone(), inner.persisted.is_some());
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        self.inner().map.size_bytes() as u64
    }
}

impl StoreSnapshot for Snapshot {
    fn is_in_memory(&self) -> bool {
        !self.disk.is_read()
    }

    fn get_in_memory(&self, key: &[u8]) -> InMemory {
        let (disk, version) = (&self.disk, self.hold.version);
        // Whoever reads a disk that fails learns of the error.
        if disk.failing().is_some() || (disk.is_read() && !disk.is_in_memory(key, version)) {
            return InMemory::OnDisk;
        }
        InMemory::Known(self.map.get(key, version).flatten())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.disk.check("read")?;
        if self.disk.is_read() {
            self.disk.remember(key, self.hold.version);
        }
        Ok(self.map.get(key, self.hold.version).flatten())
    }

    fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.disk.check("read")?;
        first_of(self.read(range, direction, limit).into_iter().map(Ok), limit)
    }
}

impl Snapshot {
    fn read(&self, range: &KeyRange, direction: Direction, limit: usize) -> Vec<(Bytes, Bytes)> {
        let mut got = Vec::new();
        let mut left = range.clone();
        loop {
            let (items, until) = self.map.page(&left, direction, self.hold.version, limit);
            got.extend(items.into_iter().filter_map(|(key, value)| Some((key, value?))));
            let Some(last) = until.filter(|_| got.len() < limit) else {
                got.truncate(limit);
                return got;
            };
            left = match direction {
                Direction::Forward => left.above(&last),
                Direction::Backward => left.below(&last),
            };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Writes, persists, overwrites and deletes; returns the memory that the store takes afterwards.
    fn after_changes(mut store: MemoryStore) -> u64 {
        let all = |value: Option<&'static [u8]>| {
            let key = |n: u8| Bytes::from(vec![b'k', n]);
            (0..100).map(|n| (key(n), value.map(Bytes::from_static))).collect::<Vec<_>>()
        };
        store.commit(all(Some(b"first"))).unwrap();
        store.persist().unwrap();
        for value in [&b"second"[..], b"third", b"fourth"] {
            store.commit(all(Some(value))).unwrap();
        }
        store.commit(all(None)).unwrap();
        store.size_bytes()
    }

    #[test]
    fn a_volatile_store_keeps_nothing_for_a_crash() {
        assert_eq!(after_changes(MemoryStore::volatile()), 0);
        assert!(after_changes(MemoryStore::new()) > 100 * 5, "the other kind can go back");
        let mut store = MemoryStore::volatile();
        store.commit(vec![(Bytes::from_static(b"k"), Some(Bytes::from_static(b"v")))]).unwrap();
        store.persist().unwrap();
        store.crash();
        assert_eq!(store.snapshot().get(b"k").unwrap(), None);
    }
}

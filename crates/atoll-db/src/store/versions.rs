//! An ordered map that keeps those versions of each value that a reader may still need.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use atoll_core::sync::atomic::{AtomicUsize, Ordering};
use atoll_core::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use bytes::Bytes;

use super::points::Points;
use atoll_contract::application::{Direction, KeyRange};

/// The held versions of a key are checked for readers after this many writes of the key, and after this multiple of what the last check
/// kept. The cost of a check is thus spread over as many writes, and a write costs the same however many versions readers hold
/// (contracts X27). If this is larger, more memory is used.
const CHECK_TIMES: usize = 2;
/// See [`CHECK_TIMES`].
const CHECK_AFTER: usize = 2;
/// A page examines at most this many keys for each entry that it may return.
const LOOKED_TIMES: usize = 2;
/// The approximate memory overhead of a key and of a version, in bytes.
const KEY_BYTES: usize = 96;
const VERSION_BYTES: usize = 48;

/// The versions that readers hold. A reader at version `v` sees the newest version of each key that is not above `v`.
#[derive(Debug, Default)]
pub(crate) struct Live {
    held: Mutex<BTreeMap<u64, usize>>,
    /// The number of checks whether a version is held.
    #[cfg(test)]
    looks: AtomicUsize,
}

/// A reader's hold on a version, released on drop.
#[derive(Debug)]
pub(crate) struct Hold {
    live: Arc<Live>,
    pub(crate) version: u64,
}

fn lock(live: &Live) -> MutexGuard<'_, BTreeMap<u64, usize>> {
    live.held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// Holds a version.
    pub(crate) fn hold(self: &Arc<Self>, version: u64) -> Hold {
        *lock(self).entry(version).or_default() += 1;
        Hold { live: self.clone(), version }
    }

    /// Returns how many versions are held.
    pub(crate) fn versions(&self) -> usize {
        lock(self).len()
    }

    /// Returns true if a reader holds a version in `[from, to)`.
    fn any_in(&self, from: u64, to: u64) -> bool {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        lock(self).range(from..to).next().is_some()
    }
}

impl Hold {
    /// Returns how many versions all readers of this state hold, including this one.
    pub(crate) fn versions(&self) -> usize {
        self.live.versions()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut live = lock(&self.live);
        if let Some(n) = live.get_mut(&self.version) {
            *n -= 1;
            if *n == 0 {
                live.remove(&self.version);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Version {
    at: u64,
    value: Option<Bytes>,
}

/// The versions of a key.
#[derive(Debug)]
#[repr(C)] // Most reads need only the newest version. In this order it is next to the key, mostly in the same line of the processor's cache.
struct Versions {
    newest: Version,
    /// The version before the newest one, or [`Version::NONE`]. It is kept whether or not it is held: a rollback may return to it, and
    /// the latest published view shows it.
    previous: Version,
    /// The versions before that which a reader held when they were replaced. Most keys never have any, so they take no memory of their
    /// own.
    held: Option<Box<Held>>,
}

#[derive(Debug)]
struct Held {
    /// In ascending order.
    versions: Vec<Version>,
    /// The versions are checked for readers at the write after this many.
    writes_left: usize,
}

impl Default for Held {
    fn default() -> Self {
        Held { versions: Vec::new(), writes_left: CHECK_AFTER }
    }
}

impl Versions {
    fn seen_at(&self, at: u64) -> Option<&Version> {
        if self.newest.at <= at {
            return Some(&self.newest);
        }
        if self.previous.at <= at {
            return Some(&self.previous);
        }
        let held = &self.held.as_ref()?.versions;
        held[..held.partition_point(|v| v.at <= at)].last()
    }

    /// The approximate memory of all versions but the newest, in bytes.
    fn older_bytes(&self) -> usize {
        let held = self.held.iter().flat_map(|held| &held.versions);
        held.chain([&self.previous]).map(Version::bytes).sum()
    }
}

impl Version {
    /// Stands for a version that there is not. No reader is at or above it.
    const NONE: Version = Version { at: u64::MAX, value: None };

    fn is_some(&self) -> bool {
        self.at != Version::NONE.at
    }

    fn value_bytes(&self) -> usize {
        self.value.as_ref().map_or(0, Bytes::len)
    }

    /// The approximate memory of an older version, in bytes.
    fn bytes(&self) -> usize {
        if self.is_some() { VERSION_BYTES + self.value_bytes() } else { 0 }
    }
}

/// What a write replaced. With it, the write can be undone.
#[derive(Debug)]
pub(crate) enum Prior {
    /// The map did not have the key, which is this one.
    Unknown(Bytes),
    /// The key had this value at an earlier version, which is kept.
    Older(Option<Bytes>),
    /// The key had this value at the same version.
    Same(Option<Bytes>),
}

/// [`VersionedMap::newest`] reads the values of this many keys at a time. If this is larger, a thread that sorts keys waits longer,
/// and so do the readers behind it.
const READ_AT_ONCE: usize = 256;

/// The keys and their versions. Point reads, by far the most common, use the hash map.
#[derive(Debug, Default)]
struct Table {
    points: Points<Versions>,
    /// Keys that were added since the keys were last sorted. Most layers are committed without a scan, so a writer does not have to
    /// keep the keys in order.
    unordered: Arc<Vec<Bytes>>,
}

impl Table {
    fn insert(&mut self, key: &Bytes, versions: Versions) {
        self.points.insert(key.clone(), versions);
        Arc::make_mut(&mut self.unordered).push(key.clone());
    }

    /// Removes a key. Returns false if the key may also be in the map's `order`.
    fn remove(&mut self, key: &[u8]) -> bool {
        self.points.remove(key);
        let is_last = self.unordered.last().is_some_and(|last| last == key);
        if is_last {
            Arc::make_mut(&mut self.unordered).pop();
        }
        is_last
    }
}

/// See the module documentation. One thread writes it, and many read it.
#[derive(Debug)]
pub(crate) struct VersionedMap {
    /// The writer takes this lock for each key. Others hold it only for a few keys at a time, because a waiting writer also blocks
    /// all readers that arrive after it.
    map: RwLock<Table>,
    /// The keys that are not in `unordered`. A key that was just rolled back may still be here. Only scans, commits and rollbacks
    /// take this lock, always before `map`, because sorting keys takes a while.
    order: RwLock<Arc<BTreeSet<Bytes>>>,
    bytes: AtomicUsize,
    live: Arc<Live>,
    /// The number of keys that pages have examined.
    #[cfg(test)]
    pub(crate) passed: AtomicUsize,
}

impl VersionedMap {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        VersionedMap {
            map: RwLock::default(),
            order: RwLock::default(),
            bytes: AtomicUsize::new(0),
            live,
            #[cfg(test)]
            passed: AtomicUsize::new(0),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all keys in order.
    fn in_order(&self) -> RwLockReadGuard<'_, Arc<BTreeSet<Bytes>>> {
        let order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        if self.read().unordered.is_empty() {
            return order;
        }
        drop(order);
        drop(self.put_in_order());
        // Keys that were added since are not visible to this reader, because its version is older.
        self.order.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_in_order(&self) -> RwLockWriteGuard<'_, Arc<BTreeSet<Bytes>>> {
        let mut order = self.order.write().unwrap_or_else(PoisonError::into_inner);
        let new = std::mem::take(&mut self.write().unordered);
        if order.is_empty() {
            *order = Arc::new(new.iter().cloned().collect());
        } else if !new.is_empty() {
            Arc::make_mut(&mut order).extend(new.iter().cloned());
        }
        order
    }

    /// Drops a key that the writer has removed from the table.
    fn remove_from_order(&self, key: &[u8]) {
        Arc::make_mut(&mut self.put_in_order()).remove(key);
    }

    /// Returns the approximate memory that the map takes, in bytes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns what a reader at `at` sees: None if the map does not have the key, Some(None) if the key is deleted.
    #[allow(clippy::option_option)] // Unknown here, known to be absent, known: three different things.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Option<Option<Bytes>> {
        self.read().points.get(key)?.seen_at(at).map(|v| v.value.clone())
    }

    /// Writes a version, which must not be below any other version of the key. Returns what it replaced.
    pub(crate) fn put(&self, key: &[u8], value: Option<Bytes>, at: u64) -> Prior {
        let newest = Version { at, value };
        let new_bytes = newest.value_bytes();
        let mut map = self.write();
        let Some(versions) = map.points.get_mut(key) else {
            self.bytes.fetch_add(KEY_BYTES + key.len() + new_bytes, Ordering::Relaxed);
            let key = Bytes::copy_from_slice(key);
            map.insert(&key, Versions { newest, previous: Version::NONE, held: None });
            return Prior::Unknown(key);
        };
        debug_assert!(versions.newest.at <= at, "versions are written in order");
        let old = std::mem::replace(&mut versions.newest, newest);
        if old.at == at {
            self.bytes.fetch_add(new_bytes, Ordering::Relaxed);
            self.bytes.fetch_sub(old.value_bytes(), Ordering::Relaxed);
            return Prior::Same(old.value);
        }
        self.bytes.fetch_add(VERSION_BYTES + new_bytes, Ordering::Relaxed);
        let (before, replaced) = (old.value.clone(), old.at);
        let older = std::mem::replace(&mut versions.previous, old);
        if older.is_some() {
            self.keep_if_held(&mut versions.held, older, replaced);
        }
        Prior::Older(before)
    }

    /// Returns true if a reader may see this version, which readers at `above` and later do not see.
    fn is_held(&self, version: &Version, above: u64) -> bool {
        self.live.any_in(version.at, above)
    }

    /// Keeps a version that only readers below `above` see, if there are any.
    fn keep_if_held(&self, held: &mut Option<Box<Held>>, version: Version, above: u64) {
        if self.is_held(&version, above) {
            held.get_or_insert_default().versions.push(version);
        } else {
            self.bytes.fetch_sub(version.bytes(), Ordering::Relaxed);
        }
        let Some(all) = held else { return };
        if all.writes_left > 0 {
            all.writes_left -= 1;
            return;
        }
        self.check(all, above);
        if all.versions.is_empty() {
            *held = None;
        }
    }

    /// Undoes a write at `at` that replaced `prior`. It must be the latest write of the key.
    pub(crate) fn undo(&self, key: &[u8], prior: Prior, at: u64) {
        let mut map = self.write();
        let Some(versions) = map.points.get_mut(key) else { return };
        debug_assert_eq!(versions.newest.at, at, "only the newest version is taken back");
        self.bytes.fetch_sub(versions.newest.value_bytes(), Ordering::Relaxed);
        match prior {
            Prior::Same(value) => {
                self.bytes.fetch_add(value.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
                versions.newest.value = value;
            }
            Prior::Older(_) => {
                let previous = std::mem::replace(&mut versions.previous, Version::NONE);
                if previous.is_some() {
                    self.bytes.fetch_sub(VERSION_BYTES, Ordering::Relaxed);
                    versions.newest = previous;
                }
            }
            Prior::Unknown(_) => {
                self.bytes.fetch_sub(KEY_BYTES + key.len(), Ordering::Relaxed);
                let is_done = map.remove(key);
                drop(map);
                if !is_done {
                    self.remove_from_order(key);
                }
            }
        }
    }

    /// Drops the versions that no reader holds any more. Readers at `above` and later see none of them.
    fn check(&self, held: &mut Held, mut above: u64) {
        let mut kept = Vec::new();
        while let Some(version) = held.versions.pop() {
            if self.is_held(&version, above) {
                above = version.at;
                kept.push(version);
            } else {
                self.bytes.fetch_sub(version.bytes(), Ordering::Relaxed);
            }
        }
        kept.reverse();
        held.writes_left = CHECK_AFTER.max(CHECK_TIMES * kept.len());
        held.versions = kept;
    }

    /// Drops a deleted key if no reader can see the difference. Only for a map that has no layer below it.
    pub(crate) fn forget_deleted(&self, key: &[u8]) {
        let mut map = self.write();
        let Some(versions) = map.points.get(key) else { return };
        if versions.newest.value.is_some() {
            return;
        }
        if self.live.any_in(0, versions.newest.at) {
            return;
        }
        self.bytes.fetch_sub(versions.older_bytes() + KEY_BYTES + key.len(), Ordering::Relaxed);
        let is_done = map.remove(key);
        drop(map);
        if !is_done {
            self.remove_from_order(key);
        }
    }

    /// Returns the first keys of a range, in the given direction, that a reader at `at` sees, including deleted ones: at most
    /// `limit`. Also returns the last key that was examined, unless that was the whole range. There may be no visible key up to it,
    /// because newer keys are skipped. Examines at most [`LOOKED_TIMES`] times `limit` keys.
    pub(crate) fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        at: u64,
        limit: usize,
    ) -> (Vec<(Bytes, Option<Bytes>)>, Option<Bytes>) {
        if range.is_empty() {
            return (Vec::new(), None);
        }
        let order = self.in_order();
        let map = self.read();
        let end = match &range.end {
            Some(end) => Bound::Excluded(end),
            None => Bound::Unbounded,
        };
        let mut keys = order.range::<Bytes, _>((Bound::Included(&range.start), end));
        let (mut got, mut until) = (Vec::new(), None);
        for _ in 0..limit.saturating_mul(LOOKED_TIMES) {
            let next = match direction {
                Direction::Forward => keys.next(),
                Direction::Backward => keys.next_back(),
            };
            let Some(key) = next else { return (got, None) };
            #[cfg(test)]
            self.passed.fetch_add(1, Ordering::Relaxed);
            until = Some(key);
            if let Some(version) = map.points.get(key).and_then(|versions| versions.seen_at(at)) {
                got.push((key.clone(), version.value.clone()));
                if got.len() == limit {
                    break;
                }
            }
        }
        (got, until.cloned())
    }

    /// Returns the newest value of every key in order, including deleted keys. For a map that is no longer written to.
    pub(crate) fn newest(&self) -> Vec<(Bytes, Option<Bytes>)> {
        self.newest_in_pieces(|| ())
    }

    /// Like [`VersionedMap::newest`], but calls `between` each time it has released its locks, for tests. Sorts the keys without a
    /// lock.
    fn newest_in_pieces(&self, mut between: impl FnMut()) -> Vec<(Bytes, Option<Bytes>)> {
        let (ordered, unordered) = {
            let order = self.order.read().unwrap_or_else(PoisonError::into_inner);
            (order.clone(), self.read().unordered.clone())
        };
        between();
        let mut keys: Vec<&Bytes> = ordered.iter().chain(&*unordered).collect();
        keys.sort_unstable();
        let mut newest = Vec::with_capacity(keys.len());
        for keys in keys.chunks(READ_AT_ONCE) {
            let map = self.read();
            let of = |key: &&Bytes| Some(((*key).clone(), map.points.get(key)?.newest.value.clone()));
            newest.extend(keys.iter().filter_map(of));
            drop(map);
            between();
        }
        newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(n: u64) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(&n.to_be_bytes()))
    }

    #[test]
    fn a_write_costs_the_same_however_many_versions_are_held() {
        let live = Arc::new(Live::default());
        let map = VersionedMap::new(live.clone());
        let hot = Bytes::from_static(b"hot");
        let mut holds = Vec::new();
        for at in 1..=2_000 {
            map.put(&hot, value(at), at);
            holds.push(live.hold(at));
        }
        let before = live.looks.load(Ordering::Relaxed);
        for at in 2_001..=6_000 {
            map.put(&hot, value(at), at);
        }
        let looks = live.looks.load(Ordering::Relaxed) - before;
        assert!(looks <= 6 * 4_000, "{looks} looks for 4,000 writes beside 2,000 versions that are held");
        for hold in &holds {
            assert_eq!(map.get(&hot, hold.version), Some(value(hold.version)), "what is held is shown");
        }
        // Versions that are no longer held are dropped at the next check.
        drop(holds);
        for at in 6_001..=14_000 {
            map.put(&hot, value(at), at);
        }
        assert!(map.size_bytes() < 1_000, "{} bytes are left", map.size_bytes());
        assert_eq!(map.get(&hot, 14_000), Some(value(14_000)));
    }

    #[test]
    fn only_the_version_before_the_newest_is_kept_for_nobody() {
        let live = Arc::new(Live::default());
        let map = VersionedMap::new(live.clone());
        let key = b"key";
        let unheld = KEY_BYTES + key.len() + VERSION_BYTES + 2 * 8;
        for at in 1..100 {
            map.put(key, value(at), at);
        }
        assert_eq!(map.size_bytes(), unheld);
        assert_eq!([98, 97].map(|at| map.get(key, at)), [Some(value(98)), None]);
        let hold = live.hold(99);
        map.put(key, value(100), 100);
        let prior = map.put(key, value(101), 101);
        assert_eq!(map.size_bytes(), unheld + VERSION_BYTES + 8, "one is held");
        map.undo(key, prior, 101);
        assert_eq!([99, 100, 101].map(|at| map.get(key, at)), [99, 100, 100].map(|at| Some(value(at))));
        map.put(key, value(102), 102);
        assert_eq!([99, 101, 102].map(|at| map.get(key, at)), [99, 100, 102].map(|at| Some(value(at))));
        drop(hold);
    }

    #[test]
    fn a_commit_holds_nobody_up() {
        let map = VersionedMap::new(Arc::new(Live::default()));
        let keys: Vec<Bytes> = (0..2_000_u64).rev().map(|n| Bytes::from(n.to_be_bytes().to_vec())).collect();
        let (first, rest) = keys.split_at(500);
        for key in first {
            map.put(key, value(1), 1);
        }
        let page = |at| map.page(&KeyRange::all(), Direction::Forward, at, 1).0;
        assert_eq!(page(1), [(keys[1_999 - 1_500].clone(), value(1))]);
        for key in rest {
            map.put(key, value(2), 2);
        }
        let mut pieces = 0;
        let newest = map.newest_in_pieces(|| {
            // Both locks are free, so the commit holds nobody up.
            assert!(map.map.try_write().is_ok() && map.order.try_write().is_ok(), "a lock is held");
            // This scan sorts the last keys while the commit is under way.
            assert_eq!(page(2), [(keys[1_999].clone(), value(2))]);
            assert_eq!(map.get(&keys[0], 2), Some(value(1)));
            pieces += 1;
        });
        assert!(pieces > 2_000 / READ_AT_ONCE);
        let all = keys.iter().rev().map(|key| (key.clone(), value(if first.contains(key) { 1 } else { 2 })));
        assert_eq!(newest, all.collect::<Vec<_>>());
    }
}

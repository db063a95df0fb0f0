//! An ordered map that keeps the versions of a value which some reader may still ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use atoll_core::sync::atomic::{AtomicUsize, Ordering};
use atoll_core::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use bytes::Bytes;

use super::points::Points;
use crate::key_range::{Direction, KeyRange};

/// Least number of older versions of a key before a check whether any reader needs them.
const PRUNE_ABOVE: usize = 2;
/// And this many times what the last check left. The next check comes after as many writes as it has versions to look at, so that a
/// write costs the same however many versions readers hold (contracts X27). More: memory.
const PRUNE_TIMES: usize = 2;
/// Keys that a page looks at for each one that it may have.
const LOOKED_TIMES: usize = 2;
/// Approximate memory that a key and a version take besides their bytes.
const KEY_BYTES: usize = 96;
const VERSION_BYTES: usize = 48;

/// Versions that readers hold. A reader at `v` sees of each key the newest version that is not above `v`.
#[derive(Debug, Default)]
pub(crate) struct Live {
    held: Mutex<BTreeMap<u64, usize>>,
    /// Looks whether somebody holds a version.
    #[cfg(test)]
    looks: AtomicUsize,
}

/// A reader's hold on a version, given back on drop.
#[derive(Debug)]
pub(crate) struct Hold {
    live: Arc<Live>,
    pub(crate) version: u64,
}

fn lock(live: &Live) -> MutexGuard<'_, BTreeMap<u64, usize>> {
    live.held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Live {
    /// A hold on a version.
    pub(crate) fn hold(self: &Arc<Self>, version: u64) -> Hold {
        *lock(self).entry(version).or_default() += 1;
        Hold { live: self.clone(), version }
    }

    /// How many versions are held.
    pub(crate) fn versions(&self) -> usize {
        lock(self).len()
    }

    /// True if some reader is at a version in `[from, to)`.
    fn any_in(&self, from: u64, to: u64) -> bool {
        #[cfg(test)]
        self.looks.fetch_add(1, Ordering::Relaxed);
        lock(self).range(from..to).next().is_some()
    }
}

impl Hold {
    /// How many versions readers of the same state hold, this one among them.
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

#[derive(Debug)]
struct Versions {
    newest: Version,
    /// From old to new, all below `newest`.
    older: Vec<Version>,
    /// More of them than this are looked through.
    prune_above: usize,
}

impl Versions {
    fn seen_at(&self, at: u64) -> Option<&Version> {
        if self.newest.at <= at {
            return Some(&self.newest);
        }
        let above = self.older.partition_point(|v| v.at <= at);
        self.older[..above].last()
    }
}

/// What a write replaced, so that it can be undone.
#[derive(Debug)]
pub(crate) enum Prior {
    /// Nothing was known of the key.
    Unknown,
    /// It had this value at an earlier version, which is kept.
    Older(Option<Bytes>),
    /// It had this value at the same version.
    Same(Option<Bytes>),
}

/// Keys whose values [`VersionedMap::newest`] reads at a time. More: a thread that puts keys in order waits longer, and readers
/// behind it.
const READ_AT_ONCE: usize = 256;

/// Point reads, by far the most common, use the hash map.
#[derive(Debug, Default)]
struct Table {
    points: Points<Versions>,
    /// Keys that no scan has asked for since they were added: most layers are committed without a scan, and a writer should not pay
    /// for keeping each key in order.
    unordered: Arc<Vec<Bytes>>,
}

impl Table {
    fn insert(&mut self, key: &Bytes, versions: Versions) {
        self.points.insert(key.clone(), versions);
        Arc::make_mut(&mut self.unordered).push(key.clone());
    }

    /// Removes a key; false: it may be in the order.
    fn remove(&mut self, key: &[u8]) -> bool {
        self.points.remove(key);
        let is_last = self.unordered.last().is_some_and(|last| last == key);
        if is_last {
            Arc::make_mut(&mut self.unordered).pop();
        }
        is_last
    }
}

/// See the module documentation. Written by one thread, read by many.
#[derive(Debug)]
pub(crate) struct VersionedMap {
    /// The writer takes this lock for each key. Nobody holds it for longer than a few keys take, since a thread that waits to write
    /// also blocks all readers that arrive after it.
    map: RwLock<Table>,
    /// The keys that are not in `unordered`; a key that was just rolled back may still be here. Only scans and commits take this
    /// lock, before `map`: putting keys in order takes a while.
    order: RwLock<Arc<BTreeSet<Bytes>>>,
    bytes: AtomicUsize,
    live: Arc<Live>,
    /// Keys that pages looked at.
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

    /// All keys, in order.
    fn in_order(&self) -> RwLockReadGuard<'_, Arc<BTreeSet<Bytes>>> {
        let order = self.order.read().unwrap_or_else(PoisonError::into_inner);
        if self.read().unordered.is_empty() {
            return order;
        }
        drop(order);
        drop(self.put_in_order());
        // Keys that were added since then are not visible to a reader that was here before.
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

    /// Approximate memory that it takes.
    pub(crate) fn size_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What a reader at `at` sees: None if nothing is known of the key here, Some(None) if it was deleted.
    #[allow(clippy::option_option)] // Unknown here, known to be absent, known: three different things.
    pub(crate) fn get(&self, key: &[u8], at: u64) -> Option<Option<Bytes>> {
        self.read().points.get(key)?.seen_at(at).map(|v| v.value.clone())
    }

    /// Writes a version, which is not below any other; what it replaced.
    pub(crate) fn put(&self, key: &Bytes, value: Option<Bytes>, at: u64) -> Prior {
        let new_bytes = value.as_ref().map_or(0, Bytes::len);
        let mut map = self.write();
        let Some(versions) = map.points.get_mut(key) else {
            self.bytes.fetch_add(KEY_BYTES + key.len() + new_bytes, Ordering::Relaxed);
            let newest = Version { at, value };
            let versions = Versions { newest, older: Vec::new(), prune_above: PRUNE_ABOVE };
            map.insert(key, versions);
            return Prior::Unknown;
        };
        debug_assert!(versions.newest.at <= at, "versions are written in order");
        let old = std::mem::replace(&mut versions.newest, Version { at, value });
        if old.at == at {
            let old_bytes = old.value.as_ref().map_or(0, Bytes::len);
            self.bytes.fetch_add(new_bytes, Ordering::Relaxed);
            self.bytes.fetch_sub(old_bytes, Ordering::Relaxed);
            return Prior::Same(old.value);
        }
        self.bytes.fetch_add(VERSION_BYTES + new_bytes, Ordering::Relaxed);
        let before = old.value.clone();
        versions.older.push(old);
        if versions.older.len() > versions.prune_above {
            self.prune(versions);
        }
        Prior::Older(before)
    }

    /// Takes back a write at `at` that replaced `prior`; the latest one of its key.
    pub(crate) fn undo(&self, key: &[u8], prior: Prior, at: u64) {
        let mut map = self.write();
        let Some(versions) = map.points.get_mut(key) else { return };
        debug_assert_eq!(versions.newest.at, at, "only the newest version is taken back");
        let gone_bytes = versions.newest.value.as_ref().map_or(0, Bytes::len);
        self.bytes.fetch_sub(gone_bytes, Ordering::Relaxed);
        match prior {
            Prior::Same(value) => {
                self.bytes.fetch_add(value.as_ref().map_or(0, Bytes::len), Ordering::Relaxed);
                versions.newest.value = value;
            }
            Prior::Older(_) => {
                if let Some(older) = versions.older.pop() {
                    self.bytes.fetch_sub(VERSION_BYTES, Ordering::Relaxed);
                    versions.newest = older;
                }
            }
            Prior::Unknown => {
                self.bytes.fetch_sub(KEY_BYTES + key.len(), Ordering::Relaxed);
                let is_done = map.remove(key);
                drop(map);
                if !is_done {
                    self.remove_from_order(key);
                }
            }
        }
    }

    /// Drops older versions that no reader is at.
    fn prune(&self, versions: &mut Versions) {
        // A rollback may return to the newest of the older ones, and the latest published view shows it.
        let Some(newest) = versions.older.pop() else { return };
        let mut above = newest.at;
        let mut kept = vec![newest];
        while let Some(version) = versions.older.pop() {
            if self.live.any_in(version.at, above) {
                above = version.at;
                kept.push(version);
            } else {
                let bytes = VERSION_BYTES + version.value.as_ref().map_or(0, Bytes::len);
                self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
        }
        kept.reverse();
        versions.prune_above = PRUNE_ABOVE.max(PRUNE_TIMES * kept.len());
        versions.older = kept;
    }

    /// Drops a key that is deleted, if no reader can tell: for a map that has nothing below it.
    pub(crate) fn forget_deleted(&self, key: &[u8]) {
        let mut map = self.write();
        let Some(versions) = map.points.get(key) else { return };
        if versions.newest.value.is_some() {
            return;
        }
        if self.live.any_in(0, versions.newest.at) {
            return;
        }
        let older: usize =
            versions.older.iter().map(|v| VERSION_BYTES + v.value.as_ref().map_or(0, Bytes::len)).sum();
        self.bytes.fetch_sub(older + KEY_BYTES + key.len(), Ordering::Relaxed);
        let is_done = map.remove(key);
        drop(map);
        if !is_done {
            self.remove_from_order(key);
        }
    }

    /// The first keys of a range in a direction that a reader at `at` sees, including deleted ones: at most `limit`. Also the last
    /// key that was looked at, if that was not the whole range. Possibly no key in front of it is visible: newer keys are passed
    /// over, at most [`LOOKED_TIMES`] times `limit`.
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

    /// The newest value of every key, deleted ones too, in order. For a map that is written no more.
    pub(crate) fn newest(&self) -> Vec<(Bytes, Option<Bytes>)> {
        self.newest_in_pieces(|| ())
    }

    /// Calls `between` each time it has released its locks, so that a test can look. It sorts the keys without a lock.
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
        // What nobody holds any more goes with the next look.
        drop(holds);
        for at in 6_001..=14_000 {
            map.put(&hot, value(at), at);
        }
        assert!(map.size_bytes() < 1_000, "{} bytes are left", map.size_bytes());
        assert_eq!(map.get(&hot, 14_000), Some(value(14_000)));
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
            // Whoever may take a lock for writing keeps nobody waiting, and waits for nobody.
            assert!(map.map.try_write().is_ok() && map.order.try_write().is_ok(), "a lock is held");
            // The last keys are put in order while the commit is under way.
            assert_eq!(page(2), [(keys[1_999].clone(), value(2))]);
            assert_eq!(map.get(&keys[0], 2), Some(value(1)));
            pieces += 1;
        });
        assert!(pieces > 2_000 / READ_AT_ONCE);
        let all = keys.iter().rev().map(|key| (key.clone(), value(if first.contains(key) { 1 } else { 2 })));
        assert_eq!(newest, all.collect::<Vec<_>>());
    }
}

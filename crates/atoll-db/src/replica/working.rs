//! The state that commands are applied to, and the rollback of their writes.

use std::cell::Cell;
use std::sync::Arc;

use atoll_contract::application::{Direction, KeyRange, Mark, Page, WriteState};
use atoll_core::invariant;
use bytes::Bytes;

use super::Reads;
use super::gaps::Gaps;
use super::state_hash::{Before, StateHash};
use crate::layers::{Layers, Part};
use crate::store::{InMemory, Points, Prior, StoreError, StoreSnapshot, VersionedMap};

/// The memory, in bytes, for values that were read from the store. Most writes follow a read of the same key and need its old value
/// for the hash. Sessions are read with every write.
const SEEN_BYTES: usize = 1024 * 1024;
/// The approximate memory overhead of such a value, in bytes.
const SEEN_ONE_BYTES: usize = 96;

/// The last commit is kept in memory if it is no larger than this. A larger commit means that the replica is catching up, and then
/// it hardly reads any of the commit again.
const SETTLED_BYTES: usize = 48 * 1024 * 1024;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Working {
    pub(crate) layers: Layers,
    /// The version of the writes, which is above the published one.
    pub(crate) version: u64,
    pub(crate) hash: StateHash,
    undo: Undo,
    /// What keys had below the active layer. If a key occurs more than once, its first occurrence counts.
    befores: Vec<Before>,
    /// Values that were read from the store, for keys that are in no layer below the active one.
    seen: Points<Option<Bytes>>,
    seen_bytes: usize,
    gaps: Gaps,
    /// What commands may read. A read that is not allowed is reported as a failure.
    pub(crate) reads: Reads,
    /// The first failure since the last [`Working::take_failure`].
    failed: Option<Failure>,
}

/// If a command replaces longer values than this again and again, only the first of them is kept. A transaction of 20,000 writes to one
/// znode with a long ACL would otherwise hold 320 MB.
const LONG_BYTES: usize = 512;

/// The writes that can still be undone, in their order. Every write is recorded here, so a record needs no allocation of its own. If a
/// write replaced a long value that an earlier write since the last savepoint had put there, undoing the earlier one is enough.
#[derive(Debug, Default)]
struct Undo {
    /// The keys, one behind the other.
    keys: Vec<u8>,
    /// Where the key of each write begins, and what the write replaced.
    writes: Vec<(usize, Prior)>,
    /// The number of writes at the last savepoint.
    marked: Cell<usize>,
    /// For keys that were written more than once with long values, the place of a write in `writes`.
    repeated: Points<usize>,
}

impl Undo {
    fn push(&mut self, key: &[u8], prior: Prior) {
        if let Prior::Same(Some(old)) = &prior
            && old.len() > LONG_BYTES
        {
            if self.repeated.get(key).is_some_and(|at| *at >= self.marked.get()) {
                return;
            }
            self.repeated.insert(Bytes::copy_from_slice(key), self.writes.len());
        }
        self.writes.push((self.keys.len(), prior));
        self.keys.extend_from_slice(key);
    }

    /// Undoes the writes above the first `kept` of them, from the newest to the oldest.
    fn undo(&mut self, kept: usize, mut one: impl FnMut(&[u8], Prior)) {
        self.repeated.clear();
        while self.writes.len() > kept
            && let Some((start, prior)) = self.writes.pop()
        {
            one(&self.keys[start..], prior);
            self.keys.truncate(start);
        }
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.writes.clear();
        self.marked.set(0);
        self.repeated.clear();
    }
}

/// Why a read failed and returned nothing. Whatever the command does after it is rolled back.
#[derive(Debug)]
pub(crate) enum Failure {
    Store(StoreError),
    NotInMemory,
}

impl Working {
    pub(crate) fn new(layers: Layers, version: u64, hash: StateHash) -> Self {
        let (undo, befores, seen) = (Undo::default(), Vec::new(), Points::default());
        let reads = Reads::Anywhere;
        let gaps = Gaps::default();
        Working { layers, version, hash, undo, befores, seen, seen_bytes: 0, gaps, reads, failed: None }
    }

    /// Returns the value of the key without the active layer.
    fn get_below(&mut self, key: &[u8]) -> Option<Bytes> {
        if let Some(value) = self.seen.get(key) {
            return value.clone();
        }
        if let Some(value) = self.layers.get_below(key, self.version) {
            return value;
        }
        let found = match self.reads {
            Reads::Anywhere => self.layers.base.get(key).map_err(Failure::Store),
            Reads::InMemory => match self.layers.base.get_in_memory(key) {
                InMemory::Known(value) => Ok(value),
                InMemory::OnDisk => Err(Failure::NotInMemory),
            },
        };
        match found {
            Ok(value) => {
                self.remember(key, value.clone());
                value
            }
            Err(failure) => {
                self.failed.get_or_insert(failure);
                None
            }
        }
    }

    /// Returns true if ranges of the store may be read. Otherwise records a failure.
    fn may_read_base(&mut self) -> bool {
        let may = self.reads == Reads::Anywhere || self.layers.base.is_in_memory();
        if !may {
            self.failed.get_or_insert(Failure::NotInMemory);
        }
        may
    }

    fn remember(&mut self, key: &[u8], value: Option<Bytes>) {
        let bytes = SEEN_ONE_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len);
        if self.seen_bytes + bytes > SEEN_BYTES {
            self.forget_seen();
        }
        self.seen_bytes += bytes;
        self.seen.insert(Bytes::copy_from_slice(key), value);
    }

    /// Freezes the active layer for a commit, and directs writes to a new one. Returns the frozen layer and what its keys had
    /// before.
    pub(crate) fn freeze(&mut self, active: Arc<VersionedMap>) -> (Arc<VersionedMap>, Vec<Before>) {
        let layers = &mut self.layers;
        invariant!(layers.frozen.is_none(), "one commit at a time");
        let full = std::mem::replace(&mut layers.active, active);
        layers.frozen = Some(full.clone());
        // A key that was read from the store may be in a layer below the active one now.
        self.forget_seen();
        (full, std::mem::take(&mut self.befores))
    }

    /// Switches to another snapshot of the store, which shows at least what the previous one showed.
    pub(crate) fn rebase(&mut self, base: Arc<dyn StoreSnapshot>) {
        self.layers.base = base;
        self.forget_seen();
    }

    /// Ends the commit of the frozen layer: the store has it, and `base` shows it.
    pub(crate) fn committed(&mut self, base: Arc<dyn StoreSnapshot>) {
        self.layers.base = base;
        self.layers.settled = self.layers.frozen.take().filter(|layer| layer.size_bytes() <= SETTLED_BYTES);
        self.forget_seen();
    }

    fn forget_seen(&mut self) {
        self.seen.clear();
        self.seen_bytes = 0;
    }

    fn part(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Part {
        match self.layers.page(range, direction, self.version, limit) {
            Ok(part) => part,
            Err(error) => {
                self.failed.get_or_insert(Failure::Store(error));
                Part::default()
            }
        }
    }

    /// Undoes the writes since a mark. Returns true if there were any.
    pub(crate) fn undo_to(&mut self, to: &Mark) -> bool {
        let any = self.undo.writes.len() > to.writes;
        self.undo.undo(to.writes, |key, prior| {
            if matches!(prior, Prior::Unknown(_)) {
                self.befores.pop();
            }
            self.layers.active.undo(key, prior, self.version);
        });
        self.hash = StateHash(to.hash);
        if any {
            self.gaps.forget();
        }
        any
    }

    /// Keeps the writes so far. They can no longer be rolled back.
    pub(crate) fn keep(&mut self) {
        self.undo.clear();
    }

    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failed.take()
    }
}

impl WriteState for Working {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        match self.layers.active.get(key, self.version) {
            Some(value) => value,
            None => self.get_below(key),
        }
    }

    fn write(&mut self, key: &[u8], value: Option<Bytes>) {
        if value.is_some() {
            self.gaps.put(key);
        }
        let prior = self.layers.active.put(key, value.clone(), self.version);
        match &prior {
            Prior::Older(old) | Prior::Same(old) => {
                self.hash.replace(key, old.as_ref(), value.as_ref());
            }
            Prior::Unknown(new) => {
                let old = self.get_below(key);
                let part = self.hash.replace(key, old.as_ref(), value.as_ref());
                self.befores.push(Before { key: new.clone(), part, present: old.is_some() });
            }
        }
        self.undo.push(key, prior);
    }

    fn page(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Page {
        if !self.may_read_base() {
            return Page::default();
        }
        if direction == Direction::Backward {
            return self.part(range, direction, limit).page;
        }
        let looked_at = self.gaps.without(range);
        let Part { page, passed_deleted } = self.part(&looked_at, direction, limit);
        let first = page.items.first().map(|(key, _)| key);
        let end = first.or(page.rest.as_ref().map(|rest| &rest.start)).or(range.end.as_ref());
        if let Some(end) = end.filter(|_| self.failed.is_none()) {
            self.gaps.found(&range.start, end, passed_deleted);
        }
        page
    }

    fn mark(&self) -> Mark {
        self.undo.marked.set(self.undo.writes.len());
        Mark { writes: self.undo.writes.len(), hash: self.hash.0 }
    }

    fn rollback(&mut self, to: &Mark) {
        self.undo_to(to);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::store::{Live, MemoryStore, Store};
    use atoll_contract::application::KeyRange;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u8, Option<u8>),
        Read(u8),
        /// Scans from this key on.
        Scan(u8),
        /// Keeps the writes since the last savepoint.
        Keep,
        /// Undoes them.
        Rollback,
        Publish,
        /// Freezes the active layer.
        Freeze,
        /// Ends the commit of the frozen layer.
        Committed,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0u8..6, proptest::option::of(any::<u8>())).prop_map(|(key, value)| Step::Write(key, value)),
            3 => (0u8..6).prop_map(Step::Read),
            2 => (0u8..6).prop_map(Step::Scan),
            2 => Just(Step::Keep),
            1 => Just(Step::Rollback),
            2 => Just(Step::Publish),
            1 => Just(Step::Freeze),
            1 => Just(Step::Committed),
        ]
    }

    fn key(n: u8) -> Bytes {
        Bytes::from(vec![n])
    }

    type Model = BTreeMap<Bytes, Bytes>;

    fn shows(layers: &Layers, version: u64, model: &Model) {
        for n in 0..6 {
            assert_eq!(layers.get(&key(n), version).expect("in memory"), model.get(&key(n)).cloned());
        }
        let part = layers.page(&KeyRange::all(), Direction::Forward, version, 100).expect("in memory");
        assert_eq!(part.page.items, model.iter().map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>());
    }

    /// A snapshot that claims to be on disk.
    #[derive(Debug)]
    struct OnDisk(Arc<dyn StoreSnapshot>);

    impl StoreSnapshot for OnDisk {
        fn is_in_memory(&self) -> bool {
            false
        }

        fn get_in_memory(&self, _key: &[u8]) -> InMemory {
            InMemory::OnDisk
        }

        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
            self.0.get(key)
        }

        fn page(&self, r: &KeyRange, d: Direction, limit: usize) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
            self.0.page(r, d, limit)
        }
    }

    #[test]
    fn what_is_not_in_memory_is_told_and_taken_back() {
        let live = Arc::new(Live::default());
        let mut store = MemoryStore::new();
        store.commit(vec![(key(1), Some(key(7)))]).expect("in memory");
        let base: Arc<dyn StoreSnapshot> = Arc::new(OnDisk(store.snapshot()));
        let active = Arc::new(VersionedMap::new(live));
        let layers = Layers { active, frozen: None, settled: None, base };
        let mut working = Working::new(layers, 1, StateHash::default());
        let mark = working.mark();
        working.reads = Reads::InMemory;
        for write in [false, true] {
            if write {
                working.write(&key(1), Some(key(8)));
            } else {
                assert_eq!(working.get(&key(1)), None);
            }
            assert!(matches!(working.take_failure(), Some(Failure::NotInMemory)));
            working.rollback(&mark);
            assert!(working.befores.is_empty() && working.hash == StateHash::default());
        }
        working.reads = Reads::Anywhere;
        assert_eq!(working.get(&key(1)), Some(key(7)), "as it was");
        working.reads = Reads::InMemory;
        assert_eq!(working.get(&key(1)), Some(key(7)), "it was read a moment ago");
        assert!(working.take_failure().is_none());
    }

    #[test]
    fn of_long_values_that_a_command_replaces_again_and_again_few_are_kept() {
        let active = Arc::new(VersionedMap::new(Arc::new(Live::default())));
        let layers = Layers { active, frozen: None, settled: None, base: MemoryStore::new().snapshot() };
        let mut working = Working::new(layers, 1, StateHash::default());
        let long = |n: u8| Some(Bytes::from(vec![n; 2 * LONG_BYTES]));
        let mut marks = Vec::new();
        for command in 0..3 {
            marks.push((working.mark(), working.get(&key(0)), working.get(&key(1)), working.hash));
            for n in 0..100 {
                working.write(&key(0), long(n));
                working.write(&key(1), long(n + command));
            }
            assert!(working.undo.writes.len() <= 4 * marks.len(), "{} are kept", working.undo.writes.len());
        }
        for (mark, first, second, hash) in marks.into_iter().rev() {
            working.rollback(&mark);
            assert_eq!((working.get(&key(0)), working.get(&key(1)), working.hash), (first, second, hash));
        }
        assert!(working.undo.writes.is_empty());
    }

    #[test]
    fn steps_that_delete_from_the_beginning_pass_over_each_key_a_few_times() {
        const KEYS: usize = 20_000;
        let name = |n: usize| Bytes::from(format!("{n:08}"));
        let active = Arc::new(VersionedMap::new(Arc::new(Live::default())));
        let base = MemoryStore::new().snapshot();
        let layers = Layers { active: active.clone(), frozen: None, settled: None, base };
        let mut working = Working::new(layers, 1, StateHash::default());
        (0..KEYS).for_each(|n| working.write(&name(n), Some(Bytes::new())));
        working.keep();
        let (mut deleted, mut steps) = (0, 0);
        let whole = KeyRange { start: name(0), end: Some(name(KEYS)) };
        loop {
            let mut rest = Some(whole.clone());
            let mut found = Vec::new();
            while let Some(range) = rest.filter(|_| found.is_empty()) {
                let page = working.page(&range, Direction::Forward, 100);
                (found, rest) = (page.items, page.rest);
            }
            if found.is_empty() {
                break;
            }
            deleted += found.len();
            found.into_iter().for_each(|(key, _)| working.write(&key, None));
            working.keep();
            steps += 1;
        }
        assert_eq!(deleted, KEYS);
        let passed = active.passed.load(std::sync::atomic::Ordering::Relaxed);
        assert!(passed <= 4 * KEYS, "{passed} looks at {KEYS} keys in {steps} steps");
    }

    proptest! {
        /// Reads, the hash and published states agree with a plain map, whether a value is in the active layer, the frozen layer,
        /// the store, or the memory of values that were read.
        #[test]
        fn the_state_is_a_plain_map_whenever_what_is_committed(
            steps in proptest::collection::vec(step(), 1..120)
        ) {
            let live = Arc::new(Live::default());
            let fresh = || Arc::new(VersionedMap::new(live.clone()));
            let mut store = MemoryStore::new();
            let layers = Layers { active: fresh(), frozen: None, settled: None, base: store.snapshot() };
            let mut working = Working::new(layers, 1, StateHash::default());
            let (mut model, mut kept) = (Model::new(), Model::new());
            let mut mark = working.mark();
            let mut published = Vec::new();
            for step in steps {
                match step {
                    Step::Write(n, value) => {
                        let value = value.map(|v| Bytes::from(vec![v; if v % 2 == 0 { 3 } else { 2 * LONG_BYTES }]));
                        working.write(&key(n), value.clone());
                        match value {
                            Some(value) => drop(model.insert(key(n), value)),
                            None => drop(model.remove(&key(n))),
                        }
                    }
                    Step::Read(n) => prop_assert_eq!(working.get(&key(n)), model.get(&key(n)).cloned()),
                    Step::Scan(from) => {
                        let range = KeyRange { start: key(from), end: Some(key(6)) };
                        let page = working.page(&range, Direction::Forward, 100);
                        let all: Vec<_> = model.range(key(from)..).map(|(k, v)| (k.clone(), v.clone())).collect();
                        prop_assert_eq!(page.items, all);
                    }
                    Step::Rollback => {
                        working.rollback(&mark);
                        model = kept.clone();
                    }
                    _ => {
                        working.keep();
                        kept = model.clone();
                    }
                }
                match step {
                    Step::Publish => {
                        let version = working.version;
                        working.version += 1;
                        published.push((working.layers.clone(), live.hold(version), model.clone()));
                    }
                    Step::Freeze if working.layers.frozen.is_none() => {
                        working.freeze(fresh());
                    }
                    Step::Committed => {
                        if let Some(frozen) = working.layers.frozen.clone() {
                            store.commit(frozen.newest()).expect("in memory");
                            working.committed(store.snapshot());
                        }
                    }
                    _ => {}
                }
                if !matches!(step, Step::Write(..) | Step::Read(_) | Step::Scan(_)) {
                    mark = working.mark();
                }
            }
            let mut plain = StateHash::default();
            for (key, value) in &model {
                plain.replace(key, None, Some(value));
            }
            prop_assert_eq!(working.hash, plain);
            shows(&working.layers, working.version, &model);
            for (layers, hold, model) in &published {
                shows(layers, hold.version, model);
            }
        }
    }
}

//! The row cache of a store on disk: values of single keys. A thread that must not wait for the disk answers most point reads from
//! it, and learns of the others that it must not make them.
//!
//! States of the store are numbered. A row says from which state on it is true; it stays true until a commit replaces or removes
//! it. A snapshot uses only rows that are not newer than itself.

#![allow(clippy::disallowed_types)] // The order of the rows is seen by nobody.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use atoll_core::sync::lock;
use bytes::Bytes;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

use super::{Change, InMemory};

/// The number of parts with a lock each. A higher value lets more threads read at once.
const SHARDS: usize = 16;
/// The approximate memory overhead of a row, in bytes.
const ROW_BYTES: usize = 128;
/// A row with more bytes than this fraction of its shard is not kept, because it would displace too many others.
const LARGEST_OF_SHARD: usize = 8;

#[derive(Clone, Debug)]
struct Row {
    /// None: the key does not exist.
    value: Option<Bytes>,
    /// The first state for which this is known to be true.
    since: u64,
}

#[derive(Clone, Debug)]
struct RowWeight;

impl Weighter<Bytes, Row> for RowWeight {
    fn weight(&self, key: &Bytes, row: &Row) -> u64 {
        bytes_of(key, row.value.as_ref()) as u64
    }
}

fn bytes_of(key: &[u8], value: Option<&Bytes>) -> usize {
    ROW_BYTES + key.len() + value.map_or(0, Bytes::len)
}

type Shard = Cache<Bytes, Row, RowWeight, RandomState>;

/// See the module documentation.
pub(super) struct RowCache {
    shards: Vec<Mutex<Shard>>,
    /// Clients choose keys, so the hash is a keyed one.
    hasher: RandomState,
    /// The number of the newest state.
    newest: AtomicU64,
    largest: usize,
}

impl RowCache {
    /// Returns an empty cache that holds about `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        let of_shard = bytes / SHARDS as u64;
        let shard = || {
            let options = OptionsBuilder::new()
                .weight_capacity(of_shard)
                .estimated_items_capacity(usize::try_from(of_shard).unwrap_or(usize::MAX) / 512)
                .build();
            // Both capacities are given, and nothing else is required.
            options.ok().map(|options| {
                Mutex::new(Cache::with_options(
                    options,
                    RowWeight,
                    RandomState::new(),
                    DefaultLifecycle::default(),
                ))
            })
        };
        RowCache {
            shards: (0..SHARDS).filter_map(|_| shard()).collect(),
            hasher: RandomState::new(),
            newest: AtomicU64::new(0),
            largest: usize::try_from(of_shard).unwrap_or(usize::MAX) / LARGEST_OF_SHARD,
        }
    }

    fn shard(&self, key: &[u8]) -> Option<MutexGuard<'_, Shard>> {
        let hash = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0);
        self.shards.get(hash).map(lock)
    }

    /// Returns the number of the newest state, for a snapshot of it.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    /// Returns the value of a key in a state, if the cache knows it.
    pub(super) fn get(&self, key: &[u8], state: u64) -> InMemory {
        let shard = self.shard(key);
        match shard.as_ref().and_then(|shard| shard.get(key)) {
            Some(row) if row.since <= state => InMemory::Known(row.value.clone()),
            _ => InMemory::OnDisk,
        }
    }

    /// Adds a row that was read from a snapshot of a state. Does nothing if there is a newer state by now, because a commit may
    /// have changed the key.
    pub(super) fn fill(&self, key: &[u8], value: Option<&Bytes>, state: u64) {
        if bytes_of(key, value) > self.largest {
            return;
        }
        let row = Row { value: value.map(|value| Bytes::copy_from_slice(value)), since: state };
        let Some(mut shard) = self.shard(key) else { return };
        // A commit first raises the number, and then replaces each row under this lock. If the number is still the same here, the
        // commit will find this row.
        if self.newest() == state {
            shard.insert(Bytes::copy_from_slice(key), row);
        }
    }

    /// Begins a new state. Call it before the change is made.
    pub(super) fn advance(&self) {
        self.newest.fetch_add(1, Ordering::SeqCst);
    }

    /// Replaces the rows that were changed in the newest state. Call it before the first snapshot of that state is taken.
    pub(super) fn replace(&self, changes: &[Change]) {
        let since = self.newest();
        for (key, value) in changes {
            let Some(mut shard) = self.shard(key) else { continue };
            if bytes_of(key, value.as_ref()) > self.largest {
                shard.remove(&key[..]);
                continue;
            }
            // A slice would keep all of the memory that it was cut from.
            let value = value.as_ref().map(|value| Bytes::copy_from_slice(value));
            shard.insert(Bytes::copy_from_slice(key), Row { value, since });
        }
    }

    /// Begins a new state of which nothing is known.
    pub(super) fn clear(&self) {
        self.advance();
        self.shards.iter().for_each(|shard| lock(shard).clear());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Rows = BTreeMap<u8, u8>;

    #[derive(Clone, Debug)]
    enum Step {
        /// Begins a commit.
        Begin(BTreeMap<u8, Option<u8>>),
        /// Ends it. Snapshots show its state from now on.
        End,
        /// Reads a key from the snapshot of a state, the n-th from the end, and fills the cache.
        Fill(u8, usize),
        /// The store was closed or refilled.
        Clear,
    }

    const KEYS: u8 = 4;

    fn step() -> impl Strategy<Value = Step> {
        let changes = proptest::collection::btree_map(0..KEYS, proptest::option::of(any::<u8>()), 1..4);
        prop_oneof![
            2 => changes.prop_map(Step::Begin),
            2 => Just(Step::End),
            4 => (0..KEYS, 0usize..3).prop_map(|(key, back)| Step::Fill(key, back)),
            1 => Just(Step::Clear),
        ]
    }

    fn bytes(n: u8) -> Bytes {
        Bytes::from(vec![n])
    }

    proptest! {
        /// Whatever the cache says about a key in a state is true, however reads of old and new states and commits interleave.
        #[test]
        fn a_row_is_true_in_every_state_that_uses_it(steps in proptest::collection::vec(step(), 1..60)) {
            let rows = RowCache::new(1 << 20);
            // The states that have snapshots, with their numbers.
            let mut states = vec![(rows.newest(), Rows::new())];
            let mut under_way: Option<(Vec<Change>, Rows)> = None;
            for step in steps {
                match step {
                    Step::Begin(changes) if under_way.is_none() => {
                        let mut next = states.last().expect("there is one").1.clone();
                        for (key, value) in &changes {
                            match value {
                                Some(value) => next.insert(*key, *value),
                                None => next.remove(key),
                            };
                        }
                        let changes = changes.into_iter().map(|(key, value)| (bytes(key), value.map(bytes)));
                        rows.advance();
                        under_way = Some((changes.collect(), next));
                    }
                    Step::End => {
                        if let Some((changes, next)) = under_way.take() {
                            rows.replace(&changes);
                            states.push((rows.newest(), next));
                        }
                    }
                    Step::Fill(key, back) => {
                        let (number, state) = &states[states.len().saturating_sub(back + 1)];
                        rows.fill(&[key], state.get(&key).copied().map(bytes).as_ref(), *number);
                    }
                    Step::Clear if under_way.is_none() => {
                        rows.clear();
                        let same = states.last().expect("there is one").1.clone();
                        states.push((rows.newest(), same));
                    }
                    Step::Begin(_) | Step::Clear => {}
                }
                for (number, state) in &states {
                    for key in 0..KEYS {
                        if let InMemory::Known(value) = rows.get(&[key], *number) {
                            prop_assert_eq!(value, state.get(&key).copied().map(bytes), "key {} in {}", key, number);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_were_read_or_committed_are_found() {
        let rows = RowCache::new(1 << 20);
        assert_eq!(rows.get(&[1], 0), InMemory::OnDisk);
        rows.fill(&[1], None, 0);
        assert_eq!(rows.get(&[1], 0), InMemory::Known(None));
        rows.advance();
        rows.replace(&[(bytes(1), Some(bytes(7))), (bytes(2), None)]);
        assert_eq!(rows.get(&[1], 1), InMemory::Known(Some(bytes(7))));
        assert_eq!(rows.get(&[2], 1), InMemory::Known(None));
        assert_eq!(rows.get(&[1], 0), InMemory::OnDisk, "it is newer than this state");
    }

    #[test]
    fn the_memory_is_bounded_and_large_values_are_left_out() {
        const CAPACITY: usize = 1 << 20;
        let rows = RowCache::new(CAPACITY as u64);
        let large = Bytes::from(vec![0; CAPACITY / SHARDS / LARGEST_OF_SHARD]);
        rows.fill(b"large", Some(&large), 0);
        assert_eq!(rows.get(b"large", 0), InMemory::OnDisk);
        rows.fill(b"large", Some(&bytes(1)), 0);
        rows.replace(&[(Bytes::from_static(b"large"), Some(large))]);
        assert_eq!(rows.get(b"large", 0), InMemory::OnDisk, "the row before it is not true any more");
        for n in 0..100_000_u32 {
            rows.fill(&n.to_be_bytes(), Some(&Bytes::from(vec![0; 100])), 0);
        }
        let held: u64 = rows.shards.iter().map(|shard| lock(shard).weight()).sum();
        assert!((CAPACITY as u64 / 2..=CAPACITY as u64).contains(&held), "{held} bytes");
    }
}

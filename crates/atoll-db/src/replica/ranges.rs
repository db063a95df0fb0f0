//! The hash of the state by ranges of keys, so that a scrub can name the keys where the store differs from what was written to it.
//!
//! The committer writes the hashes in the same batch as the changes, under keys of the engine. The ranges cover all keys of the
//! applications without gaps; their sums add up to the hash of the state. A range with many keys is divided, which reads it once.
//! Neighbours with few keys are joined. Replicas need not have the same ranges, which depend on when each replica commits.

use std::collections::BTreeMap;

use atoll_core::testing::hit;
use atoll_core::{Decode, Encode, record};
use bytes::Bytes;

use super::record::StateRecord;
use super::state_hash::{self, Before};
use crate::store::{Change, StoreError, StoreSnapshot, may_continue};
use atoll_contract::application::AppId;
use atoll_contract::application::full_key;
use atoll_contract::application::{Direction, KeyRange};

const ENGINE: AppId = AppId(0);
const PREFIX: &[u8] = b"range/";
/// The first key that an application can have. The keys of the engine come before it and are not included in the hash.
pub(crate) const FIRST: &[u8] = &[1];
/// A range is divided if it has more keys than one in this many of all keys, and more than the setting. If this is larger, ranges
/// are smaller, and keys are read again until there are more of them.
const DIVIDE_ABOVE_SHARE: u64 = 64;
/// The parts of a divided range have that bound divided by this many keys. More: smaller ranges. Fewer: every key is read more
/// often.
const PARTS: u64 = 4;
/// Two neighbours are joined if together they have fewer keys than that bound divided by this.
const JOIN_BELOW_SHARE: u64 = 8;
/// The maximum number of ranges. Each takes memory, and a key of the engine in every snapshot.
const MOST_RANGES: usize = 4096;
/// The maximum number of ranges that one commit divides. Others wait for the next commit.
const DIVIDED_AT_ONCE: usize = 2;
/// The number of entries that are read from the store at a time.
const PAGE_ENTRIES: usize = 256;

record! {
    /// The record of a range, stored under its first key.
    pub struct RangeRecord {
        /// The number of keys in it.
        pub keys: u64,
        /// The sum of their hashes; see `state_hash.rs`.
        pub sum: u128,
    }
}

/// A range from `start` to the start of the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) start: Bytes,
    pub(crate) keys: u64,
    pub(crate) sum: u128,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// The ranges in order. The first one begins at [`FIRST`].
    pub(crate) rows: Vec<Row>,
    /// See [`crate::Options::range_keys`].
    most_keys: u64,
    /// The ranges that changed since [`Ranges::take_changes`]. None for a range that no longer exists.
    changed: BTreeMap<Bytes, Option<RangeRecord>>,
}

impl Ranges {
    /// Reads the ranges of a store. If it has none, returns one range with all keys. A range may have `most_keys` keys before it is
    /// divided.
    pub(crate) fn read(from: &dyn StoreSnapshot, most_keys: u64) -> Result<Ranges, StoreError> {
        let prefix = full_key(ENGINE, PREFIX);
        let mut rows = Vec::new();
        let mut left = KeyRange::prefix(&prefix);
        loop {
            let page = from.page(&left, Direction::Forward, PAGE_ENTRIES)?;
            for (key, value) in &page {
                let RangeRecord { keys, sum } = RangeRecord::from_bytes(value.clone())
                    .map_err(|e| StoreError::lasting("read the hashes of its ranges", e.to_string()))?;
                rows.push(Row { start: Bytes::copy_from_slice(&key[prefix.len()..]), keys, sum });
            }
            match page.last() {
                Some((last, _)) if may_continue(&page, PAGE_ENTRIES) => left = left.above(last),
                _ => break,
            }
        }
        if rows.first().is_none_or(|row| row.start != FIRST) {
            // If the store never had ranges, one range covers all keys. If it has lost some, a scrub will find what is missing.
            let sum = if rows.is_empty() { StateRecord::read(from)?.hash } else { 0 };
            rows.insert(0, Row { start: Bytes::from_static(FIRST), keys: 0, sum });
        }
        Ok(Ranges { rows, most_keys: most_keys.max(PARTS), changed: BTreeMap::new() })
    }

    /// Returns the keys that a range covers.
    pub(crate) fn range(&self, index: usize) -> KeyRange {
        let start = self.rows[index].start.clone();
        KeyRange { start, end: self.rows.get(index + 1).map(|next| next.start.clone()) }
    }

    /// Returns the sum over all ranges, which is the hash of the state.
    pub(crate) fn total(&self) -> u128 {
        self.rows.iter().fold(0, |sum, row| sum.wrapping_add(row.sum))
    }

    /// Updates the ranges for a commit. `newest` has the new value of each key, in key order, and `befores` what the keys had
    /// before.
    pub(crate) fn note(&mut self, newest: &[Change], mut befores: Vec<Before>) {
        befores.sort_by(|a, b| a.key.cmp(&b.key));
        // If a key occurs several times, its first occurrence holds what it had before the commit.
        befores.dedup_by(|later, first| later.key == first.key);
        let mut befores = befores.into_iter().peekable();
        let mut touched = Vec::new();
        for (key, value) in newest {
            while befores.peek().is_some_and(|before| before.key < *key) {
                befores.next();
            }
            let Some(before) = befores.next_if(|before| before.key == *key) else { continue };
            let index = self.rows.partition_point(|row| row.start <= *key).saturating_sub(1);
            let row = &mut self.rows[index];
            let now = value.as_ref().map_or(0, |value| state_hash::of(key, value));
            row.sum = row.sum.wrapping_sub(before.part).wrapping_add(now);
            let more = i64::from(value.is_some()) - i64::from(before.present);
            row.keys = row.keys.saturating_add_signed(more);
            if touched.last() != Some(&index) {
                touched.push(index);
            }
        }
        let join_below = self.divide_above() / JOIN_BELOW_SHARE;
        for index in touched.into_iter().rev() {
            self.changed(index);
            if index > 0 && self.rows[index - 1].keys + self.rows[index].keys < join_below {
                let gone = self.rows.remove(index);
                self.changed.insert(gone.start, None);
                let before = &mut self.rows[index - 1];
                before.sum = before.sum.wrapping_add(gone.sum);
                before.keys += gone.keys;
                self.changed(index - 1);
            }
        }
    }

    fn changed(&mut self, index: usize) {
        let Row { start, keys, sum } = &self.rows[index];
        self.changed.insert(start.clone(), Some(RangeRecord { keys: *keys, sum: *sum }));
    }

    fn divide_above(&self) -> u64 {
        let keys: u64 = self.rows.iter().map(|row| row.keys).sum();
        self.most_keys.max(keys / DIVIDE_ABOVE_SHARE)
    }

    /// Returns the changes of the ranges that must be written to the store. Each is returned once.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        let prefix = [&[ENGINE.0], PREFIX].concat();
        let change = |(start, record): (Bytes, Option<RangeRecord>)| {
            (Bytes::from([&prefix[..], &start].concat()), record.map(|record| record.to_bytes()))
        };
        std::mem::take(&mut self.changed).into_iter().map(change).collect()
    }

    /// Divides some of the ranges that have become large. `base` must show everything that was noted.
    pub(crate) fn divide(&mut self, base: &dyn StoreSnapshot) -> Result<(), StoreError> {
        let above = self.divide_above();
        for _ in 0..DIVIDED_AT_ONCE {
            let large = (0..self.rows.len()).find(|index| self.rows[*index].keys > above);
            let Some(index) = large.filter(|_| self.rows.len() < MOST_RANGES) else { return Ok(()) };
            let parts = read_parts(base, &self.range(index), above / PARTS, MOST_RANGES - self.rows.len())?;
            let sum = parts.iter().fold(0u128, |sum, row| sum.wrapping_add(row.sum));
            if sum != self.rows[index].sum {
                // The store is damaged here, and it is unknown in which part. The range keeps its sum, so that a scrub finds the
                // damage.
                hit("db.ranges.differ");
                self.rows[index].keys = 0;
                continue;
            }
            hit("db.ranges.divided");
            let last = index + parts.len();
            self.rows.splice(index..=index, parts);
            (index..last).for_each(|index| self.changed(index));
        }
        Ok(())
    }
}

/// Reads a range and divides it into parts of about `keys` keys, at least one and at most `most` parts.
fn read_parts(
    base: &dyn StoreSnapshot,
    range: &KeyRange,
    keys: u64,
    most: usize,
) -> Result<Vec<Row>, StoreError> {
    let mut parts = vec![Row { start: range.start.clone(), keys: 0, sum: 0 }];
    let mut left = range.clone();
    loop {
        let page = base.page(&left, Direction::Forward, PAGE_ENTRIES)?;
        for (key, value) in &page {
            let room = parts.len() < most;
            let mut last = parts.len() - 1;
            if parts[last].keys >= keys && room {
                parts.push(Row { start: Bytes::copy_from_slice(key), keys: 0, sum: 0 });
                last += 1;
            }
            parts[last].keys += 1;
            parts[last].sum = parts[last].sum.wrapping_add(state_hash::of(key, value));
        }
        match page.last() {
            Some((last, _)) if may_continue(&page, PAGE_ENTRIES) => left = left.above(last),
            _ => return Ok(parts),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::{MemoryStore, Store};

    struct Kept {
        store: MemoryStore,
        ranges: Ranges,
        state: BTreeMap<Bytes, Bytes>,
    }

    impl Kept {
        fn new() -> Self {
            let store = MemoryStore::new();
            let ranges = Ranges::read(&*store.snapshot(), 4096).unwrap();
            Kept { store, ranges, state: BTreeMap::new() }
        }

        fn commit(&mut self, changes: BTreeMap<Bytes, Option<Bytes>>) {
            let before = |key: &Bytes| Before::of(key.clone(), self.state.get(key));
            let befores = changes.keys().map(before).collect();
            for (key, value) in &changes {
                match value {
                    Some(value) => drop(self.state.insert(key.clone(), value.clone())),
                    None => drop(self.state.remove(key)),
                }
            }
            let mut changes: Vec<Change> = changes.into_iter().collect();
            self.ranges.note(&changes, befores);
            changes.extend(self.ranges.take_changes());
            self.store.commit(changes).unwrap();
            let base = self.store.snapshot();
            self.ranges.divide(&*base).unwrap();
            self.store.commit(self.ranges.take_changes()).unwrap();
        }

        /// Checks that the ranges, in memory and in the store, agree with the state.
        fn judge(&self) {
            let base = self.store.snapshot();
            let stored = Ranges::read(&*base, 4096).unwrap();
            assert_eq!(stored.rows, self.ranges.rows);
            for (index, row) in stored.rows.iter().enumerate() {
                let range = stored.range(index);
                let inside = self.state.range(range.start.clone()..).take_while(|(k, _)| range.contains(k));
                let sum = inside.clone().fold(0u128, |sum, (k, v)| sum.wrapping_add(state_hash::of(k, v)));
                assert_eq!((row.keys, row.sum), (inside.count() as u64, sum), "{range:?}");
            }
        }
    }

    fn key(n: u64) -> Bytes {
        Bytes::from([&[1][..], &n.to_be_bytes()].concat())
    }

    #[test]
    fn ranges_follow_the_state_as_it_grows_and_shrinks() {
        let mut kept = Kept::new();
        let value = |n: u64| Some(Bytes::from(n.to_le_bytes().to_vec()));
        for round in 0..30u64 {
            let at = |i: u64| key((round * 1_000 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            kept.commit((0..1_000).map(|i| (at(i), value(i))).collect());
            kept.judge();
        }
        assert!(kept.ranges.rows.len() > 8, "{} ranges", kept.ranges.rows.len());
        let keys: Vec<Bytes> = kept.state.keys().cloned().collect();
        for some in keys.chunks(1_000) {
            kept.commit(some.iter().map(|key| (key.clone(), None)).collect());
            kept.judge();
        }
        assert_eq!(kept.ranges.rows, [Row { start: Bytes::from_static(FIRST), keys: 0, sum: 0 }]);
    }

    #[test]
    fn a_store_without_ranges_has_one_with_everything() {
        let mut kept = Kept::new();
        kept.commit((0..10_000).map(|n| (key(n), Some(Bytes::from_static(b"v")))).collect());
        let base = kept.store.snapshot();
        let gone = Ranges::read(&*base, 4096).unwrap().rows.into_iter();
        let gone = gone.map(|row| (full_key(ENGINE, &[PREFIX, &row.start].concat()), None)).collect();
        kept.store.commit(gone).unwrap();
        kept.ranges = Ranges::read(&*kept.store.snapshot(), 4096).unwrap();
        assert_eq!(kept.ranges.rows.len(), 1);
        // The sum is set here, because the test wrote no state record that would contain it.
        kept.ranges.rows[0] = Row { start: Bytes::from_static(FIRST), keys: 9_999, sum: sum(&kept.state) };
        kept.commit([(key(7), Some(Bytes::from_static(b"w")))].into());
        kept.commit([(key(8), None)].into());
        kept.judge();
        assert!(kept.ranges.rows.len() > 4);
    }

    fn sum(state: &BTreeMap<Bytes, Bytes>) -> u128 {
        state.iter().fold(0, |sum, (k, v)| sum.wrapping_add(state_hash::of(k, v)))
    }

    /// A range whose sum does not match is not divided, because it is unknown which part is damaged.
    #[test]
    fn a_range_with_a_fault_stays_whole() {
        let mut kept = Kept::new();
        kept.commit((0..4_000).map(|n| (key(n), Some(Bytes::from_static(b"v")))).collect());
        kept.store.commit(vec![(key(3), Some(Bytes::from_static(b"altered")))]).unwrap();
        kept.commit((4_000..6_000).map(|n| (key(n), Some(Bytes::from_static(b"v")))).collect());
        assert_eq!(kept.ranges.rows.len(), 1);
    }
}

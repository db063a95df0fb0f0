//! Keys with the versions that snapshots may still need. Part of the replicated state.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Reader};

/// An index into the log: the state after all positions below it. A change at position p has index p + 1, so 0 is before everything.
pub type Index = u64;

/// Values of keys at the indices from a floor to now. Below the floor, only the newest version of each key is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History<V> {
    keys: BTreeMap<Bytes, BTreeMap<Index, Option<V>>>,
    /// The keys that changed at each index above the floor.
    changes: BTreeMap<Index, Vec<Bytes>>,
    count: u64,
    floor: Index,
    max_changes: u64,
}

impl<V: Clone + PartialEq> History<V> {
    /// Returns an empty history that keeps at most this many changes; then the floor rises. The limit is the same on all replicas.
    pub fn new(max_changes: u64) -> Self {
        History { keys: BTreeMap::new(), changes: BTreeMap::new(), count: 0, floor: 0, max_changes }
    }

    /// Returns the lowest index at which reads are answered.
    pub fn floor(&self) -> Index {
        self.floor
    }

    /// Returns the value of a key at an index, which is at or above the floor.
    pub fn get(&self, key: &[u8], at: Index) -> Option<&V> {
        self.keys.get(key)?.range(..=at).next_back()?.1.as_ref()
    }

    /// Returns the index of the newest version at or below `at`, 0 if there is none. A deletion is a version, too.
    pub fn version(&self, key: &[u8], at: Index) -> Index {
        let newest = self.keys.get(key).and_then(|versions| versions.range(..=at).next_back());
        newest.map_or(0, |(index, _)| *index)
    }

    /// Returns the keys in `[from, to)` that have a value at an index, in order.
    pub fn range<'a>(
        &'a self,
        from: &'a [u8],
        to: &'a [u8],
        at: Index,
    ) -> impl Iterator<Item = (&'a Bytes, &'a V)> + 'a {
        let keys =
            (from < to).then(|| self.keys.range::<[u8], _>((Bound::Included(from), Bound::Excluded(to))));
        let here = move |(key, versions): (&'a Bytes, &'a BTreeMap<Index, Option<V>>)| {
            Some((key, versions.range(..=at).next_back()?.1.as_ref()?))
        };
        keys.into_iter().flatten().filter_map(here)
    }

    /// Returns whether a key in `[from, to)` has a version above an index, which is at or above the floor.
    pub fn has_changed(&self, from: &[u8], to: &[u8], above: Index) -> bool {
        let later = self.changes.range((Bound::Excluded(above), Bound::Unbounded));
        later.flat_map(|(_, keys)| keys).any(|key| from <= &key[..] && &key[..] < to)
    }

    /// Writes a version. `index` is at or above those of all versions so far.
    pub fn put(&mut self, key: Bytes, index: Index, value: Option<V>) {
        if self.keys.entry(key.clone()).or_default().insert(index, value).is_none() {
            self.changes.entry(index).or_default().push(key);
            self.count += 1;
        }
        while self.count > self.max_changes
            && let Some(oldest) = self.changes.keys().next().copied()
            && oldest < index
        {
            self.forget(oldest);
        }
    }

    /// Raises the floor. Versions that no index at or above it sees are dropped.
    pub fn forget(&mut self, floor: Index) {
        self.floor = self.floor.max(floor);
        while let Some(first) = self.changes.first_entry().filter(|first| *first.key() <= self.floor) {
            for key in first.remove() {
                self.count -= 1;
                self.prune(&key);
            }
        }
    }

    fn prune(&mut self, key: &[u8]) {
        let Some(versions) = self.keys.get_mut(key) else { return };
        let newest =
            versions.range(..=self.floor).next_back().map(|(index, value)| (*index, value.is_none()));
        if let Some((newest, is_deletion)) = newest {
            versions.retain(|index, _| *index > newest || (*index == newest && !is_deletion));
            if versions.is_empty() {
                self.keys.remove(key);
            }
        }
    }

    /// Returns the keys that changed above an index, each once, in order.
    pub fn changed_above(&self, index: Index) -> Vec<Bytes> {
        let later = self.changes.range((Bound::Excluded(index), Bound::Unbounded));
        let mut keys: Vec<Bytes> = later.flat_map(|(_, keys)| keys).cloned().collect();
        keys.sort();
        keys.dedup();
        keys
    }

    /// Replaces a value in all versions of a key. Returns how many had it.
    pub fn replace(&mut self, key: &[u8], old: &V, new: &V) -> usize {
        let versions = self.keys.get_mut(key).into_iter().flat_map(BTreeMap::values_mut).flatten();
        versions.filter(|value| **value == *old).map(|value| *value = new.clone()).count()
    }

    /// Returns every value that some allowed index sees, with its key.
    pub fn values(&self) -> impl Iterator<Item = (&Bytes, &V)> + '_ {
        self.keys
            .iter()
            .flat_map(|(key, versions)| versions.values().flatten().map(move |value| (key, value)))
    }
}

impl<V: Encode> Encode for History<V> {
    fn encode(&self, out: &mut BytesMut) {
        (self.floor, self.max_changes).encode(out);
        self.keys.encode(out);
    }
}

impl<V: Decode> Decode for History<V> {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (floor, max_changes) = Decode::decode(from)?;
        let keys: BTreeMap<Bytes, BTreeMap<Index, Option<V>>> = Decode::decode(from)?;
        let (mut changes, mut count) = (BTreeMap::<Index, Vec<Bytes>>::new(), 0);
        for (key, versions) in &keys {
            for index in versions.keys().filter(|index| **index > floor) {
                changes.entry(*index).or_default().push(key.clone());
                count += 1;
            }
        }
        Ok(History { keys, changes, count, floor, max_changes })
    }
}

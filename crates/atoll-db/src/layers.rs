//! The layers of a replica's state (contracts X18): overlay maps, with the changes that are applied but not yet committed and with
//! the last commit, on top of a snapshot of the store.

use std::sync::Arc;

use bytes::Bytes;

use crate::store::{InMemory, StoreError, StoreSnapshot, VersionedMap, may_continue};
use atoll_contract::application::{Direction, KeyRange, Page};

/// Shows one state of the replica if it is read at one version. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// Receives the writes.
    pub(crate) active: Arc<VersionedMap>,
    /// Receives no more writes, because it is being committed.
    pub(crate) frozen: Option<Arc<VersionedMap>>,
    /// The last commit, unless it was large. The store also has it, but point reads are more expensive there.
    pub(crate) settled: Option<Arc<VersionedMap>>,
    /// The committed state.
    pub(crate) base: Arc<dyn StoreSnapshot>,
}

/// A part of a scan.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) page: Page,
    /// Whether the scan has skipped deleted keys, as far as the overlay knows them.
    pub(crate) passed_deleted: bool,
}

type Item = (Bytes, Option<Bytes>);

impl Layers {
    /// Returns the value of a key in the overlay: None if the overlay does not have the key, Some(None) if the key is deleted.
    #[allow(clippy::option_option)] // As in the map below.
    pub(crate) fn get_overlay(&self, key: &[u8], at: u64) -> Option<Option<Bytes>> {
        self.active.get(key, at).or_else(|| self.get_below(key, at))
    }

    /// Like [`Layers::get_overlay`], but without the active layer.
    #[allow(clippy::option_option)]
    pub(crate) fn get_below(&self, key: &[u8], at: u64) -> Option<Option<Bytes>> {
        self.frozen.iter().chain(&self.settled).find_map(|layer| layer.get(key, at))
    }

    pub(crate) fn get(&self, key: &[u8], at: u64) -> Result<Option<Bytes>, StoreError> {
        match self.get_overlay(key, at) {
            Some(value) => Ok(value),
            None => self.base.get(key),
        }
    }

    pub(crate) fn get_in_memory(&self, key: &[u8], at: u64) -> InMemory {
        match self.get_overlay(key, at) {
            Some(value) => InMemory::Known(value),
            None => self.base.get_in_memory(key),
        }
    }

    /// Returns the next part of a range: about `limit` entries. It may have fewer entries, or none, if the range is finished or
    /// many keys were deleted.
    pub(crate) fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        at: u64,
        limit: usize,
    ) -> Result<Part, StoreError> {
        if range.is_empty() {
            return Ok(Part::default());
        }
        // Scan the overlay first, but not far, and then the store only up to the same key. The store may have very many keys that
        // its snapshot hides (deleted keys, and those of the current commit), and a scan must not skip them again for each page.
        let mut covered = range.clone();
        let mut above = Vec::new();
        for layer in self.frozen.iter().chain(Some(&self.active)) {
            let (over, until) = layer.page(&covered, direction, at, limit);
            if let Some(last) = until {
                covered = up_to(covered, &last, direction);
            }
            above = merge(above, over, direction);
        }
        let base = self.base.page(&covered, direction, limit)?;
        if may_continue(&base, limit)
            && let Some((last, _)) = base.last()
        {
            covered = up_to(covered, last, direction);
        }
        let base = base.into_iter().map(|(key, value)| (key, Some(value))).collect();
        let merged = merge(base, above, direction);
        let mut passed_deleted = false;
        let mut inside = |(key, value): Item| {
            passed_deleted |= value.is_none();
            Some((key, value?)).filter(|(key, _)| covered.contains(key))
        };
        let items = merged.into_iter().filter_map(&mut inside).collect();
        let rest = match direction {
            Direction::Forward => match &covered.end {
                Some(end) if range.end.as_ref() != Some(end) => {
                    Some(KeyRange { start: end.clone(), end: range.end.clone() })
                }
                _ => None,
            },
            Direction::Backward if covered.start != range.start => {
                Some(KeyRange { start: range.start.clone(), end: Some(covered.start.clone()) })
            }
            Direction::Backward => None,
        };
        let rest = rest.filter(|r| !r.is_empty());
        Ok(Part { page: Page { items, rest }, passed_deleted })
    }
}

/// Returns the part of a range up to and including `last`, in the given direction.
fn up_to(range: KeyRange, last: &Bytes, direction: Direction) -> KeyRange {
    match direction {
        Direction::Forward => {
            let end = KeyRange::all().above(last).start;
            KeyRange { start: range.start, end: Some(end) }
        }
        Direction::Backward => KeyRange { start: last.clone(), end: range.end },
    }
}

/// Merges two lists that are sorted in the given direction. If both have a key, the entry of `over` is kept.
fn merge(under: Vec<Item>, over: Vec<Item>, direction: Direction) -> Vec<Item> {
    if over.is_empty() {
        return under;
    }
    let mut merged = Vec::with_capacity(under.len() + over.len());
    let (mut under, mut over) = (under.into_iter().peekable(), over.into_iter().peekable());
    loop {
        let order = match (under.peek(), over.peek()) {
            (Some((u, _)), Some((o, _))) => u.cmp(o),
            (Some(_), None) => {
                merged.extend(under);
                return merged;
            }
            (None, _) => {
                merged.extend(over);
                return merged;
            }
        };
        let order = if direction == Direction::Forward { order } else { order.reverse() };
        match order {
            std::cmp::Ordering::Less => merged.extend(under.next()),
            std::cmp::Ordering::Greater => merged.extend(over.next()),
            std::cmp::Ordering::Equal => {
                drop(under.next());
                merged.extend(over.next());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::store::Live;

    /// A snapshot of a store that also has entries that the snapshot hides: keys that were deleted or are being committed. A search
    /// for visible entries skips the hidden ones one by one.
    #[derive(Debug, Default)]
    struct Passing {
        /// None: the entry is hidden.
        entries: BTreeMap<Bytes, Option<Bytes>>,
        passed: AtomicUsize,
    }

    impl StoreSnapshot for Passing {
        fn is_in_memory(&self) -> bool {
            false
        }

        fn get_in_memory(&self, _key: &[u8]) -> InMemory {
            InMemory::OnDisk
        }

        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
            Ok(self.entries.get(key).cloned().flatten())
        }

        fn page(
            &self,
            range: &KeyRange,
            direction: Direction,
            limit: usize,
        ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
            let inside = self.entries.range(range.start.clone()..);
            let inside = inside.take_while(|(key, _)| range.contains(key));
            let shown = |(key, value): (&Bytes, &Option<Bytes>)| {
                self.passed.fetch_add(1, Ordering::Relaxed);
                Some((key.clone(), value.clone()?))
            };
            match direction {
                Direction::Forward => Ok(inside.filter_map(shown).take(limit).collect()),
                Direction::Backward => {
                    let all: Vec<_> = inside.collect();
                    Ok(all.into_iter().rev().filter_map(shown).take(limit).collect())
                }
            }
        }
    }

    const ENTRIES: usize = 20_000;

    fn key(n: usize) -> Bytes {
        Bytes::from(format!("{n:08}"))
    }

    /// Scans all keys page by page and returns the number of entries.
    fn all_of(layers: &Layers, direction: Direction, at: u64) -> usize {
        let (mut rest, mut count) = (Some(KeyRange::all()), 0);
        while let Some(range) = rest {
            let part = layers.page(&range, direction, at, 128).expect("in memory");
            count += part.page.items.len();
            rest = part.page.rest;
        }
        count
    }

    #[test]
    fn a_scan_passes_over_what_the_store_hides_once() {
        for (present, direction) in
            [(true, Direction::Forward), (false, Direction::Forward), (true, Direction::Backward)]
        {
            let base = Arc::new(Passing {
                entries: (0..ENTRIES).map(|n| (key(n), None)).collect(),
                ..Passing::default()
            });
            let active = Arc::new(VersionedMap::new(Arc::new(Live::default())));
            for n in 0..ENTRIES {
                active.put(&key(n), present.then(Bytes::new), 1);
            }
            let layers = Layers { active, frozen: None, settled: None, base: base.clone() };
            assert_eq!(all_of(&layers, direction, 1), if present { ENTRIES } else { 0 });
            let passed = base.passed.load(Ordering::Relaxed);
            assert!(passed <= 2 * ENTRIES, "{passed} of {ENTRIES} hidden entries were passed over");
        }
    }

    #[test]
    fn a_scan_of_an_older_version_passes_over_newer_entries_twice_at_most() {
        let entries = (0..ENTRIES).map(|n| (key(n), Some(Bytes::new()))).collect();
        let base = Arc::new(Passing { entries, ..Passing::default() });
        let active = Arc::new(VersionedMap::new(Arc::new(Live::default())));
        for n in 0..ENTRIES {
            active.put(&key(n), None, 2);
        }
        let layers = Layers { active: active.clone(), frozen: None, settled: None, base };
        assert_eq!(all_of(&layers, Direction::Forward, 1), ENTRIES);
        let passed = active.passed.load(Ordering::Relaxed);
        assert!(passed <= 2 * ENTRIES + 2, "{passed} looks at {ENTRIES} newer entries");
    }
}

//! What is applied and not yet committed lies over what is committed (contracts X18): two overlay maps over a snapshot of the store.

use std::sync::Arc;

use bytes::Bytes;

use crate::key_range::{Direction, KeyRange};
use crate::store::{StoreError, StoreSnapshot, VersionedMap};

/// One state of the replica, if read at one version. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// Takes the writes.
    pub(crate) active: Arc<VersionedMap>,
    /// Written no more: being committed.
    pub(crate) frozen: Option<Arc<VersionedMap>>,
    /// What was committed last, unless it was large. It is in the store, too, whose point reads cost more.
    pub(crate) settled: Option<Arc<VersionedMap>>,
    /// What is committed.
    pub(crate) base: Arc<dyn StoreSnapshot>,
}

/// A part of a scan.
pub(crate) struct Page {
    /// In the order of the scan.
    pub(crate) items: Vec<(Bytes, Bytes)>,
    /// What is left of the range; None: nothing.
    pub(crate) rest: Option<KeyRange>,
}

type Item = (Bytes, Option<Bytes>);

impl Layers {
    /// The value of a key as the overlay has it: None if only the store knows.
    #[allow(clippy::option_option)] // As in the map below.
    pub(crate) fn get_overlay(&self, key: &[u8], at: u64) -> Option<Option<Bytes>> {
        self.active.get(key, at).or_else(|| self.get_below(key, at))
    }

    /// The same without what takes the writes.
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

    /// The next part of a range: about `limit` entries, none only if nothing is left or much was deleted.
    pub(crate) fn page(
        &self,
        range: &KeyRange,
        direction: Direction,
        at: u64,
        limit: usize,
    ) -> Result<Page, StoreError> {
        if range.is_empty() {
            return Ok(Page { items: Vec::new(), rest: None });
        }
        let base = self.base.page(range, direction, limit)?;
        // The part of the range that every layer was looked through for.
        let mut covered = range.clone();
        if base.len() >= limit
            && let Some((last, _)) = base.last()
        {
            covered = up_to(covered, last, direction);
        }
        let mut merged: Vec<Item> = base.into_iter().map(|(key, value)| (key, Some(value))).collect();
        for layer in self.frozen.iter().chain(Some(&self.active)) {
            let (over, whole) = layer.page(&covered, direction, at, limit);
            if !whole && let Some((last, _)) = over.last() {
                covered = up_to(covered, last, direction);
            }
            merged = merge(merged, over, direction);
        }
        let inside = |(key, value): Item| Some((key, value?)).filter(|(key, _)| covered.contains(key));
        let items = merged.into_iter().filter_map(inside).collect();
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
        Ok(Page { items, rest: rest.filter(|r| !r.is_empty()) })
    }
}

/// The part of a range up to `last` (in it) in a direction.
fn up_to(range: KeyRange, last: &Bytes, direction: Direction) -> KeyRange {
    match direction {
        Direction::Forward => {
            let end = KeyRange::all().above(last).start;
            KeyRange { start: range.start, end: Some(end) }
        }
        Direction::Backward => KeyRange { start: last.clone(), end: range.end },
    }
}

/// Both in the order of the direction; of equal keys the one of `over` stays.
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

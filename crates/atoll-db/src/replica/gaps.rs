//! Ranges that scans found empty. Deleted keys stay in the layers and in the store for a while, and a scan has to skip each of
//! them. If a caller repeatedly deletes keys from the beginning of a range, each step would skip everything that the earlier steps
//! deleted. The state that commands are applied to therefore remembers the ranges that the last scans found empty, and later scans
//! begin after them.
//!
//! This changes the cost of a scan, never its result: only a write, or the rollback of a write, can add a key to such a range, and
//! both update the gaps.

use std::collections::VecDeque;

use bytes::Bytes;

use atoll_contract::application::KeyRange;

/// The number of gaps that are kept. Every write compares its key with each of them.
const MOST: usize = 4;

/// There is no key from `start` (inclusive) to `end` (exclusive).
#[derive(Debug)]
struct Gap {
    start: Bytes,
    end: Bytes,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Gaps(VecDeque<Gap>);

impl Gaps {
    /// Returns the part of a range that a forward scan still has to search.
    pub(crate) fn without(&self, range: &KeyRange) -> KeyRange {
        let found = self.0.iter().find(|gap| gap.start <= range.start && range.start < gap.end);
        let start = found.map_or_else(|| range.start.clone(), |gap| gap.end.clone());
        KeyRange { start, end: range.end.clone() }
    }

    /// Records that a scan found no key from `start` (inclusive) to `end` (exclusive). A new gap is kept only if the scan skipped
    /// deleted keys.
    pub(crate) fn found(&mut self, start: &Bytes, end: &Bytes, passed_deleted: bool) {
        if end <= start {
            return;
        }
        let known = self.0.iter().position(|gap| gap.start <= *start && *start <= gap.end);
        let gap = match known.and_then(|place| self.0.remove(place)) {
            Some(known) => Gap { end: known.end.max(end.clone()), ..known },
            None if passed_deleted => Gap { start: start.clone(), end: end.clone() },
            None => return,
        };
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        // The gap that was used most recently is dropped last.
        self.0.push_back(gap);
    }

    /// Records that a key was written, and shortens the gap that contains it.
    pub(crate) fn put(&mut self, key: &[u8]) {
        for gap in &mut self.0 {
            if *gap.start <= *key && *key < *gap.end {
                gap.end = Bytes::copy_from_slice(key);
            }
        }
        self.0.retain(|gap| gap.start < gap.end);
    }

    /// Drops all gaps, because a rollback may have restored deleted keys.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

//! Ranges that a scan found empty. Deleted keys stay in the layers and in the store for a while, and a scan passes over each of
//! them. A caller that repeatedly deletes from the beginning of a range, a step at a time, would pass over everything that the
//! earlier steps deleted. The state that commands are applied to therefore remembers where the last scans found nothing, and begins
//! behind that.
//!
//! This changes what a scan costs, never what it finds: only a write, or the rollback of a write, can put a key into such a range.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::key_range::KeyRange;

/// How many are remembered. Every write looks at each of them.
const MOST: usize = 4;

/// No key is from `start` (in it) to `end` (not in it).
#[derive(Debug)]
struct Gap {
    start: Bytes,
    end: Bytes,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Gaps(VecDeque<Gap>);

impl Gaps {
    /// The part of a range that a forward scan still has to look at.
    pub(crate) fn without(&self, range: &KeyRange) -> KeyRange {
        let found = self.0.iter().find(|gap| gap.start <= range.start && range.start < gap.end);
        let start = found.map_or_else(|| range.start.clone(), |gap| gap.end.clone());
        KeyRange { start, end: range.end.clone() }
    }

    /// A scan found no key from `start` (in it) to `end` (not in it). It is remembered if it passed over deleted ones.
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
        // The most recently used gap is forgotten last.
        self.0.push_back(gap);
    }

    /// There is such a key now.
    pub(crate) fn put(&mut self, key: &Bytes) {
        for gap in &mut self.0 {
            if gap.start <= *key && *key < gap.end {
                gap.end = key.clone();
            }
        }
        self.0.retain(|gap| gap.start < gap.end);
    }

    /// Forgets all gaps: deleted keys may be back.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

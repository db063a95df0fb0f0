//! What a handle knows about its Loglet. All of it stays true: the log only grows, and knowledge only rises.

use std::collections::BTreeMap;

use atoll_contract::Offset;
use atoll_core::Tick;

use crate::invariants;

/// How many objects a handle remembers the offsets of. Others are found by bisection.
const MAX_SPANS: usize = 4096;

/// An index of the log, and the offset of the first entry of the object there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) index: u64,
    pub(crate) first: Offset,
}

#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The beginning of the first block that is not deleted, as far as known.
    base: At,
    /// Behind the last object of entries that is known.
    next: At,
    /// Whether the object at `next` is the seal.
    sealed: bool,
    /// Offsets below this one are given up.
    trim: Offset,
    /// The number of the next trim.
    trims: u64,
    /// The index and the number of entries of objects, by their first offset.
    spans: BTreeMap<Offset, (u64, u32)>,
    /// When the end of the log was looked for last.
    pub(crate) looked: Tick,
    /// Whether this node sees the right store.
    pub(crate) store_checked: bool,
    /// The block up to which blocks were deleted by this handle or before it.
    pub(crate) cleared: Option<u64>,
}

impl Known {
    pub(crate) fn base(&self) -> At {
        self.base
    }

    pub(crate) fn next(&self) -> At {
        self.next
    }

    pub(crate) fn sealed(&self) -> bool {
        self.sealed
    }

    /// Returns the base and what is behind the last object.
    pub(crate) fn ends(&self) -> (At, At) {
        (self.base, self.next)
    }

    /// Returns the offset below which all is given up, and the number of the next trim.
    pub(crate) fn trims(&self) -> (Offset, u64) {
        (self.trim, self.trims)
    }

    /// Entries are at an index.
    pub(crate) fn saw(&mut self, index: u64, first: Offset, count: u32) {
        if index >= self.next.index {
            invariants::grows(self.sealed, index, self.next, first);
            self.next = At { index: index + 1, first: first.plus(count.into()) };
        }
        if count > 0 {
            self.spans.insert(first, (index, count));
        }
        if self.spans.len() > MAX_SPANS {
            self.spans.pop_first();
        }
    }

    /// The last object of entries is at an index, and ends at this offset.
    pub(crate) fn saw_last(&mut self, index: u64, end: Offset) {
        if index >= self.next.index {
            invariants::grows_to(self.sealed, index, self.next, end);
            self.next = At { index: index + 1, first: end };
        }
    }

    /// The seal is at an index.
    pub(crate) fn saw_seal(&mut self, index: u64) {
        invariants::seal_is_next(index, self.next);
        self.sealed = true;
    }

    /// Everything below an index is deleted, and ended at this offset.
    pub(crate) fn saw_base(&mut self, base: At) {
        if base.index > self.base.index {
            self.base = base;
            self.spans = self.spans.split_off(&base.first);
        }
        if base.index > self.next.index {
            self.next = base;
        }
    }

    /// Learns the trim with a number.
    pub(crate) fn saw_trim(&mut self, number: u64, to: Offset) {
        self.trim = self.trim.max(to);
        self.trims = self.trims.max(number + 1);
    }

    /// Returns the index of the object with an offset, if it is remembered or follows one that is: a reader of a whole log knows no more.
    pub(crate) fn index_of(&self, offset: Offset) -> Option<u64> {
        let (first, (index, count)) = self.spans.range(..=offset).next_back()?;
        let end = first.plus((*count).into());
        if offset < end {
            return Some(*index);
        }
        (offset == end && index + 1 < self.next.index).then_some(index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_lead_to_objects() {
        let mut known = Known::default();
        known.saw(0, Offset(0), 3);
        known.saw(1, Offset(3), 2);
        known.saw(5, Offset(20), 1);
        assert_eq!(known.next(), At { index: 6, first: Offset(21) });
        let of = |known: &Known| [0, 2, 3, 4, 5, 20, 21].map(|o| known.index_of(Offset(o)));
        assert_eq!(of(&known), [Some(0), Some(0), Some(1), Some(1), Some(2), Some(5), None]);
        known.saw_base(At { index: 1, first: Offset(3) });
        assert_eq!(of(&known), [None, None, Some(1), Some(1), Some(2), Some(5), None]);
        known.saw_base(At { index: 9, first: Offset(30) });
        assert_eq!(known.next(), At { index: 9, first: Offset(30) });
    }
}

//! The index of one Loglet on one node.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::{Loc, Lsn};

use super::index::Index;

/// The location of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Passed to the journal under this number; not durable yet.
    Staged(Lsn),
    /// Durable at this location.
    At(Loc),
}

/// Consecutive entries that arrived together and were journaled as one record.
#[derive(Clone, Debug)]
pub struct Run {
    /// The number of entries; at least one.
    pub count: u32,
    /// The length of the encoded entries in bytes.
    pub len_bytes: u32,
    /// Where it is on the disk, or its number on the way there.
    pub place: Place,
    /// The encoded entries while they are cached. Always present while the run is staged.
    pub cached: Option<Bytes>,
    /// Whether the run came by back-fill. Such a run is no evidence of a tail.
    pub filled: bool,
}

/// Runs by their first offset; they never overlap.
#[derive(Debug, Default)]
pub struct Runs {
    by_first: Index,
    /// The offsets in `[trim, horizon)` that no run covers: the start of each range, and its end, which is exclusive.
    holes: BTreeMap<Offset, Offset>,
    /// The offset above every offset that a run covers or that was trimmed.
    horizon: Offset,
    len_bytes: u64,
}

impl Runs {
    /// Adds a run; its offsets must not be covered yet.
    pub fn insert(&mut self, first: Offset, run: Run) {
        let end = first.plus(run.count.into());
        if first > self.horizon {
            self.holes.insert(self.horizon, first);
        } else {
            self.close_hole(first..end);
        }
        self.horizon = self.horizon.max(end);
        self.len_bytes += u64::from(run.len_bytes);
        self.by_first.insert(first, run);
    }

    /// Removes `[range)` from the holes.
    fn close_hole(&mut self, range: Range<Offset>) {
        let before = self.holes.range(..=range.start).next_back().map(|(s, e)| (*s, *e));
        if let Some((start, end)) = before
            && end > range.start
        {
            self.holes.remove(&start);
            if start < range.start {
                self.holes.insert(start, range.start);
            }
            if range.end < end {
                self.holes.insert(range.end, end);
            }
        }
        let inside: Vec<(Offset, Offset)> =
            self.holes.range(range.start..range.end).map(|(s, e)| (*s, *e)).collect();
        for (start, end) in inside {
            if start < range.end {
                self.holes.remove(&start);
                if range.end < end {
                    self.holes.insert(range.end, end);
                }
            }
        }
    }

    /// Returns the run that contains an offset, and its first offset.
    pub fn holding(&self, at: Offset) -> Option<(Offset, &Run)> {
        let (first, run) = self.by_first.last_upto(at)?;
        (at < first.plus(run.count.into())).then_some((first, run))
    }

    /// Returns the run that starts at `first`, for changes.
    pub fn get_mut(&mut self, first: Offset) -> Option<&mut Run> {
        self.by_first.get_mut(first)
    }

    /// Returns the run that starts at `first`.
    pub fn get(&self, first: Offset) -> Option<&Run> {
        self.by_first.get(first)
    }

    /// Returns the first run that starts at or after `at`.
    pub fn next_from(&self, at: Offset) -> Option<(Offset, &Run)> {
        self.by_first.from(at).next()
    }

    /// Returns whether runs cover every offset of the range.
    pub fn covers(&self, range: Range<Offset>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.holding(at) {
                Some((first, run)) => at = first.plus(run.count.into()),
                None => return false,
            }
        }
        true
    }

    /// Returns the missing offsets of `[trim, upto)` as at most `limit` ranges, lowest first.
    pub fn missing(&self, upto: Offset, limit: usize) -> Vec<Range<Offset>> {
        let mut out: Vec<Range<Offset>> = self
            .holes
            .iter()
            .take_while(|(start, _)| **start < upto)
            .take(limit)
            .map(|(start, end)| *start..(*end).min(upto))
            .collect();
        if self.horizon < upto && out.len() < limit {
            out.push(self.horizon..upto);
        }
        out
    }

    /// Returns the number of missing offsets in `[trim, upto)`.
    pub fn missing_count(&self, upto: Offset) -> u64 {
        let holes: u64 = self
            .holes
            .iter()
            .take_while(|(start, _)| **start < upto)
            .map(|(start, end)| (*end).min(upto).since(*start))
            .sum();
        holes + upto.since(self.horizon)
    }

    /// Trims to `to`: offsets below it no longer count as missing. [`Runs::sweep`] removes the runs there.
    pub fn give_up_below(&mut self, to: Offset) {
        self.close_hole(Offset::ZERO..to);
        self.horizon = self.horizon.max(to);
    }

    /// Removes durable runs that end at or below `to`, lowest first and at most `limit` of them, and returns their locations. If it returns
    /// fewer than `limit`, none is left. A staged run stays, because it has no location to free yet.
    pub fn sweep(&mut self, to: Offset, limit: usize) -> Vec<Loc> {
        let below: Vec<(Offset, Loc)> = self
            .by_first
            .from(Offset::ZERO)
            .take_while(|(first, _)| *first < to)
            .filter(|(first, run)| first.plus(run.count.into()) <= to)
            .filter_map(|(first, run)| match run.place {
                Place::At(loc) => Some((first, loc)),
                Place::Staged(_) => None,
            })
            .take(limit)
            .collect();
        for (first, _) in &below {
            if let Some(run) = self.by_first.remove(*first) {
                self.len_bytes -= u64::from(run.len_bytes);
            }
        }
        below.into_iter().map(|(_, loc)| loc).collect()
    }

    /// Returns every run that starts at or after `at`, in order.
    pub fn from(&self, at: Offset) -> impl Iterator<Item = (Offset, &Run)> {
        self.by_first.from(at)
    }

    /// Returns the number of runs.
    pub fn len(&self) -> usize {
        self.by_first.len()
    }

    /// Returns whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.by_first.len() == 0
    }

    /// Returns the encoded length of all runs in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn run(count: u32) -> Run {
        let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
        Run { count, len_bytes: 10, place: Place::At(loc), cached: None, filled: false }
    }

    /// Runs that are inserted in any order leave exactly the uncovered offsets as holes.
    #[test]
    fn holes_are_what_no_run_covers() {
        // Every subset of runs of 1 to 4 entries in [0, 40), inserted from both ends.
        let all: Vec<(u64, u32)> = (0..10).map(|i| (i * 4, (i % 4 + 1) as u32)).collect();
        for mask in 0u32..1024 {
            let mut runs = Runs::default();
            let mut covered = [false; 40];
            let picked: Vec<_> = all.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 1).collect();
            let (front, back) = picked.split_at(picked.len() / 2);
            for (_, (first, count)) in back.iter().rev().chain(front) {
                runs.insert(Offset(*first), run(*count));
                covered[*first as usize..(*first + u64::from(*count)) as usize].fill(true);
            }
            for upto in [0u64, 7, 23, 40] {
                let mut missing = vec![];
                for r in runs.missing(Offset(upto), usize::MAX) {
                    missing.extend(r.start.0..r.end.0);
                }
                let expected: Vec<u64> = (0..upto).filter(|i| !covered[*i as usize]).collect();
                assert_eq!(missing, expected, "mask {mask:b} upto {upto}");
                assert_eq!(runs.missing_count(Offset(upto)), expected.len() as u64);
            }
        }
    }

    #[test]
    fn trim_frees_whole_runs_and_forgets_holes() {
        let mut runs = Runs::default();
        runs.insert(Offset(0), run(4));
        runs.insert(Offset(8), run(4));
        runs.insert(Offset(20), run(2));
        runs.give_up_below(Offset(10));
        assert_eq!(runs.sweep(Offset(10), 9).len(), 1);
        assert_eq!(runs.missing(Offset(30), 9), vec![Offset(12)..Offset(20), Offset(22)..Offset(30)]);
        assert!(runs.covers(Offset(8)..Offset(12)));
        assert!(!runs.covers(Offset(8)..Offset(13)));
        runs.give_up_below(Offset(40));
        assert_eq!(runs.sweep(Offset(40), 1).len(), 1);
        assert_eq!(runs.sweep(Offset(40), 9).len(), 1);
        assert_eq!(runs.missing_count(Offset(40)), 0);
        assert_eq!(runs.len_bytes(), 0);
    }
}

//! The index of one loglet on one node.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::{Loc, Lsn};

use super::index::Index;

/// The location of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Handed to the journal under this number; not durable yet.
    Staged(Lsn),
    /// Durable, here.
    At(Loc),
}

/// Consecutive entries that arrived together and were journaled as one record.
#[derive(Clone, Debug)]
pub struct Run {
    /// Entries; at least one.
    pub count: u32,
    /// Encoded length.
    pub len_bytes: u32,
    /// On disk, or on its way there.
    pub place: Place,
    /// The encoded entries while they are cached. Always present while the run is staged.
    pub cached: Option<Bytes>,
    /// The run came by back-fill: it is a copy, and not evidence of a tail.
    pub filled: bool,
}

/// Runs by their first offset; they never overlap.
#[derive(Debug, Default)]
pub struct Runs {
    by_first: Index,
    /// Offsets in `[trim, horizon)` that no run covers: start to end, end not in it.
    holes: BTreeMap<Offset, Offset>,
    /// Above every offset that a run covers or that a trim gave up.
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

    /// The run that holds an offset, and its first offset.
    pub fn holding(&self, at: Offset) -> Option<(Offset, &Run)> {
        let (first, run) = self.by_first.last_upto(at)?;
        (at < first.plus(run.count.into())).then_some((first, run))
    }

    /// The run that starts here.
    pub fn get_mut(&mut self, first: Offset) -> Option<&mut Run> {
        self.by_first.get_mut(first)
    }

    /// The run that starts here.
    pub fn get(&self, first: Offset) -> Option<&Run> {
        self.by_first.get(first)
    }

    /// The first run that starts at or after `at`.
    pub fn next_from(&self, at: Offset) -> Option<(Offset, &Run)> {
        self.by_first.from(at).next()
    }

    /// True if every offset of the range is covered.
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

    /// The missing offsets of `[trim, upto)`: at most `limit` ranges, lowest first.
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

    /// The number of missing offsets in `[trim, upto)`.
    pub fn missing_count(&self, upto: Offset) -> u64 {
        let holes: u64 = self
            .holes
            .iter()
            .take_while(|(start, _)| **start < upto)
            .map(|(start, end)| (*end).min(upto).since(*start))
            .sum();
        holes + upto.since(self.horizon)
    }

    /// Offsets below `to` no longer count as missing. [`Runs::sweep`] removes the runs there.
    pub fn give_up_below(&mut self, to: Offset) {
        self.close_hole(Offset::ZERO..to);
        self.horizon = self.horizon.max(to);
    }

    /// Forgets durable runs that end at or below `to`, lowest first, at most `limit` of them; returns their places. If it
    /// returns fewer, none is left. A staged run stays, because it has no place to free yet.
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

    /// Every run that starts at or after `at`, in order.
    pub fn from(&self, at: Offset) -> impl Iterator<Item = (Offset, &Run)> {
        self.by_first.from(at)
    }

    /// How many runs.
    pub fn len(&self) -> usize {
        self.by_first.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.by_first.len() == 0
    }

    /// Encoded bytes of all runs.
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

    /// Runs in any order leave exactly the uncovered offsets as holes.
    #[test]
    fn holes_are_what_no_run_covers() {
        // Runs of 1 to 4 entries over [0, 40); every subset by a fixed sequence, inserted from both ends.
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

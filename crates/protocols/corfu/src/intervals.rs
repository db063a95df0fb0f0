//! Sets of addresses as disjoint intervals.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers, kept as the fewest disjoint intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Returns the set with these intervals, in any order.
    pub fn of(intervals: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut set = Intervals::default();
        for (start, end) in intervals {
            set.add(start..end);
        }
        set
    }

    /// Adds the numbers of a range.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((s, e)) = self.0.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            (start, end) = (s, end.max(e));
        }
        while let Some((s, e)) = self.0.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            self.0.remove(&s);
            end = end.max(e);
        }
        self.0.insert(start, end);
    }

    /// Removes the numbers of a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        for part in self.within(range.clone()) {
            let Some((s, e)) = self.0.range(..=part.start).next_back().map(|(s, e)| (*s, *e)) else {
                continue;
            };
            self.0.remove(&s);
            if s < part.start {
                self.0.insert(s, part.start);
            }
            if part.end < e {
                self.0.insert(part.end, e);
            }
        }
    }

    /// Returns whether a number is in the set.
    pub fn contains(&self, at: u64) -> bool {
        self.first_missing(at) > at
    }

    /// Returns the first number from `from` on that is not in the set.
    pub fn first_missing(&self, from: u64) -> u64 {
        match self.0.range(..=from).next_back() {
            Some((_, end)) if *end > from => *end,
            _ => from,
        }
    }

    /// Returns the parts of the set in a range, lowest first.
    pub fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.0.range(..=range.start).next_back().filter(|(_, e)| **e > range.start);
        let first = before.map(|(_, e)| range.start..(*e).min(range.end));
        let after = range.start.saturating_add(1)..range.end.max(range.start.saturating_add(1));
        let rest = self.0.range(after).map(|(s, e)| *s..(*e).min(range.end));
        first.into_iter().chain(rest).collect()
    }

    /// Returns the parts of a range that are not in the set, lowest first.
    pub fn missing_in(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut at, mut out) = (range.start, Vec::new());
        for part in self.within(range.clone()) {
            if at < part.start {
                out.push(at..part.start);
            }
            at = part.end;
        }
        if at < range.end {
            out.push(at..range.end);
        }
        out
    }

    /// Returns the number above the highest one; 0 if the set is empty.
    pub fn end(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(_, end)| *end)
    }

    /// Returns the intervals, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    /// Returns how many intervals there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many numbers are in the set.
    pub fn count(&self) -> u64 {
        self.iter().map(|(start, end)| end - start).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn intervals_are_a_set(ops in proptest::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 0..40), from in 0u64..50) {
            let (mut set, mut plain) = (Intervals::default(), BTreeSet::new());
            for (add, start, length) in ops {
                let range = start..start + length;
                if add {
                    set.add(range.clone());
                    plain.extend(range);
                } else {
                    set.remove(range.clone());
                    plain.retain(|n| !range.contains(n));
                }
                let bounds: Vec<_> = set.iter().collect();
                prop_assert!(bounds.windows(2).all(|w| w[0].1 < w[1].0), "{bounds:?}");
            }
            prop_assert_eq!(set.count(), plain.len() as u64);
            prop_assert_eq!(set.end(), plain.last().map_or(0, |n| n + 1));
            let missing = (from..).find(|n| !plain.contains(n));
            prop_assert_eq!(Some(set.first_missing(from)), missing);
            let inside: Vec<u64> = set.within(from..from + 9).into_iter().flatten().collect();
            let outside: Vec<u64> = set.missing_in(from..from + 9).into_iter().flatten().collect();
            prop_assert_eq!(inside, plain.range(from..from + 9).copied().collect::<Vec<_>>());
            prop_assert_eq!(outside, (from..from + 9).filter(|n| !plain.contains(n)).collect::<Vec<_>>());
            prop_assert_eq!(Intervals::of(set.iter()), set);
        }
    }
}

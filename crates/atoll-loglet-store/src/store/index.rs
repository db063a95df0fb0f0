//! The runs of one Loglet, by their first offset. Most Loglets of a long log are sealed and have only one or a few runs. Those runs are
//! stored in a list without spare room, because the smallest node of a tree has room for eleven.

use std::collections::BTreeMap;

use atoll_contract::Offset;

use super::runs::Run;

/// The most runs in a list. A larger list would make late runs expensive to insert, because all runs after them must move.
const FEW: usize = 8;

/// The runs of one Loglet; see the module documentation. The list is sorted.
#[derive(Debug)]
pub(super) enum Index {
    Few(Vec<(Offset, Run)>),
    Many(BTreeMap<Offset, Run>),
}

impl Default for Index {
    fn default() -> Self {
        Index::Few(Vec::new())
    }
}

impl Index {
    /// Returns the number of runs.
    pub fn len(&self) -> usize {
        match self {
            Index::Few(list) => list.len(),
            Index::Many(map) => map.len(),
        }
    }

    /// Adds a run, or replaces the one that begins at `first`.
    pub fn insert(&mut self, first: Offset, run: Run) {
        match self {
            Index::Few(list) => match list.binary_search_by_key(&first, |(known, _)| *known) {
                Ok(at) => list[at].1 = run,
                Err(at) if list.len() < FEW => {
                    list.reserve_exact(1);
                    list.insert(at, (first, run));
                }
                Err(_) => {
                    let mut map: BTreeMap<Offset, Run> = std::mem::take(list).into_iter().collect();
                    map.insert(first, run);
                    *self = Index::Many(map);
                }
            },
            Index::Many(map) => {
                map.insert(first, run);
            }
        }
    }

    /// Returns the run that begins at `first`.
    pub fn get(&self, first: Offset) -> Option<&Run> {
        match self {
            Index::Few(list) => {
                let at = list.binary_search_by_key(&first, |(known, _)| *known).ok()?;
                Some(&list[at].1)
            }
            Index::Many(map) => map.get(&first),
        }
    }

    /// Returns the run that begins at `first`, for changes.
    pub fn get_mut(&mut self, first: Offset) -> Option<&mut Run> {
        match self {
            Index::Few(list) => {
                let at = list.binary_search_by_key(&first, |(known, _)| *known).ok()?;
                Some(&mut list[at].1)
            }
            Index::Many(map) => map.get_mut(&first),
        }
    }

    /// Removes a run.
    pub fn remove(&mut self, first: Offset) -> Option<Run> {
        match self {
            Index::Few(list) => {
                let at = list.binary_search_by_key(&first, |(known, _)| *known).ok()?;
                Some(list.remove(at).1)
            }
            Index::Many(map) => map.remove(&first),
        }
    }

    /// Returns the last run that starts at or before `at`.
    pub fn last_upto(&self, at: Offset) -> Option<(Offset, &Run)> {
        match self {
            Index::Few(list) => {
                let after = list.partition_point(|(first, _)| *first <= at);
                let (first, run) = &list[after.checked_sub(1)?];
                Some((*first, run))
            }
            Index::Many(map) => map.range(..=at).next_back().map(|(first, run)| (*first, run)),
        }
    }

    /// Returns the runs that start at or after `at`, in order.
    pub fn from(&self, at: Offset) -> impl Iterator<Item = (Offset, &Run)> {
        let (few, many) = match self {
            Index::Few(list) => (&list[list.partition_point(|(first, _)| *first < at)..], None),
            Index::Many(map) => (&[][..], Some(map.range(at..))),
        };
        let few = few.iter().map(|(first, run)| (*first, run));
        few.chain(many.into_iter().flatten().map(|(first, run)| (*first, run)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::runs::Place;
    use super::*;
    use atoll_core::Lsn;

    fn run(n: u32) -> Run {
        Run { count: 1, len_bytes: n, place: Place::Staged(Lsn(1)), cached: None, filled: false }
    }

    /// A list and a tree give the same answers for any order of insertions and removals.
    #[test]
    fn few_and_many_answer_alike() {
        let (mut index, mut plain) = (Index::default(), BTreeMap::new());
        let mut next = 1u64;
        for step in 0..4000u32 {
            // Grows to about twelve runs and shrinks to none, alternately.
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = Offset((next >> 33) % 24);
            if step % 100 < 60 {
                index.insert(first, run(step));
                plain.insert(first, step);
            } else {
                assert_eq!(index.remove(first).map(|r| r.len_bytes), plain.remove(&first));
            }
            if step % 100 == 99 {
                (index, plain) = (Index::default(), BTreeMap::new());
            }
            assert_eq!(index.len(), plain.len());
            for at in (0..25).map(Offset) {
                let len = |r: &Run| r.len_bytes;
                assert_eq!(index.get(at).map(len), plain.get(&at).copied());
                assert_eq!(index.get_mut(at).map(|r| len(r)), plain.get(&at).copied());
                let last = plain.range(..=at).next_back().map(|(f, n)| (*f, *n));
                assert_eq!(index.last_upto(at).map(|(f, r)| (f, len(r))), last);
                let from: Vec<_> = index.from(at).map(|(f, r)| (f, len(r))).collect();
                assert_eq!(from, plain.range(at..).map(|(f, n)| (*f, *n)).collect::<Vec<_>>());
            }
        }
    }
}

//! Records which Loglets have runs in which segment of the journal, so that compaction examines only those Loglets, however many others
//! there are.

use std::collections::BTreeMap;

use atoll_contract::LogletId;
use atoll_core::{Loc, invariant};

/// The number of durable runs of each Loglet in each segment. It takes about 30 bytes for each pair of Loglet and segment.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    by_segment: BTreeMap<u64, BTreeMap<LogletId, u32>>,
}

impl Occupied {
    /// Records that a run of the Loglet got this location.
    pub fn add(&mut self, loglet: LogletId, loc: Loc) {
        *self.by_segment.entry(loc.segment).or_default().entry(loglet).or_default() += 1;
    }

    /// Records that runs of the Loglet left these locations.
    pub fn remove(&mut self, loglet: LogletId, locs: &[Loc]) {
        for loc in locs {
            let here = self.by_segment.get_mut(&loc.segment);
            let count = here.and_then(|all| all.get_mut(&loglet));
            invariant!(count.is_some(), "a run of {loglet:?} leaves {loc:?}, where none of it is");
            let Some(count) = count else { continue };
            *count -= 1;
            if *count > 0 {
                continue;
            }
            if let Some(all) = self.by_segment.get_mut(&loc.segment) {
                all.remove(&loglet);
                if all.is_empty() {
                    self.by_segment.remove(&loc.segment);
                }
            }
        }
    }

    /// Returns the Loglets with runs in a segment, in order, starting at `from`.
    pub fn of(&self, segment: u64, from: LogletId) -> impl Iterator<Item = LogletId> {
        self.by_segment.get(&segment).into_iter().flat_map(move |all| all.range(from..).map(|(id, _)| *id))
    }

    #[cfg(test)]
    /// Returns whether no segment has a run.
    pub fn is_empty(&self) -> bool {
        self.by_segment.is_empty()
    }
}

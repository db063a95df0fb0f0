//! Which loglets have runs in which segment of the journal. Compaction looks only at those loglets, however many others there are.

use std::collections::BTreeMap;

use atoll_contract::LogletId;
use atoll_core::{Loc, invariant};

/// The number of runs of each loglet in each segment, complete. About 30 bytes for each pair of loglet and segment.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    by_segment: BTreeMap<u64, BTreeMap<LogletId, u32>>,
}

impl Occupied {
    /// Records that a run of the loglet got this place.
    pub fn add(&mut self, loglet: LogletId, loc: Loc) {
        *self.by_segment.entry(loc.segment).or_default().entry(loglet).or_default() += 1;
    }

    /// Records that runs of the loglet left these places.
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

    /// The loglets with runs in a segment, in order, starting from `from`.
    pub fn of(&self, segment: u64, from: LogletId) -> impl Iterator<Item = LogletId> {
        self.by_segment.get(&segment).into_iter().flat_map(move |all| all.range(from..).map(|(id, _)| *id))
    }

    #[cfg(test)]
    /// True if no segment has a run.
    pub fn is_empty(&self) -> bool {
        self.by_segment.is_empty()
    }
}

//! Which loglets have runs in which segment of the journal: compaction looks at those alone, however many others there are.

use std::collections::BTreeMap;

use atoll_contract::LogletId;
use atoll_core::{Loc, invariant};

/// How many runs of each loglet each segment holds, none left out. Some 30 bytes for a loglet in a segment.
#[derive(Debug, Default)]
pub(super) struct Occupied {
    by_segment: BTreeMap<u64, BTreeMap<LogletId, u32>>,
}

impl Occupied {
    /// A run of the loglet has got this place.
    pub fn add(&mut self, loglet: LogletId, loc: Loc) {
        *self.by_segment.entry(loc.segment).or_default().entry(loglet).or_default() += 1;
    }

    /// Runs of the loglet have left these places.
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

    /// The loglets with runs in a segment, from this one on, in order.
    pub fn of(&self, segment: u64, from: LogletId) -> impl Iterator<Item = LogletId> {
        self.by_segment.get(&segment).into_iter().flat_map(move |all| all.range(from..).map(|(id, _)| *id))
    }

    #[cfg(test)]
    /// Whether no segment has a run.
    pub fn is_empty(&self) -> bool {
        self.by_segment.is_empty()
    }
}

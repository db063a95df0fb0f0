//! Checks the chains of virtual logs, as the registers choose them (virtuallog §1, §12).
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | vlog-VL1 | each chosen version follows from the one before; a stop appears only when its Loglet is sealed on a majority |
//! | vlog-VL2 | segments leave no gap, only the last one is open, and Loglet ids are used once |
//! | vlog-VL6 | every stop is above what its Loglet has acknowledged and will acknowledge |
//! | vlog-VL9 | no change moves positions: segments keep start and stop, and leave the chain only when trimmed or empty |
//! | vlog-V24 | a deletion seals the active Loglet, and the next segment starts where that one ended |
//! | one chain | a chain that moves to another store is there as it was when it left, and nobody writes where it was |
//! | pages | when a chain names an index page, the page is chosen and holds what the chain says |
//!
//! The oracle checks a chain together with the segments in its index pages. Moving a segment to a page is therefore not a change.

use std::collections::{BTreeMap, BTreeSet};

use atoll_contract::testing::Chosen;
use atoll_contract::{LogPos, LogletId, Nonce, Version, Versioned};
use atoll_core::NodeId;
use atoll_log::chain::{Chain, Segment};
use atoll_log::page::{Page, PageRef};
use atoll_log::virtual_log::{CHAIN_PREFIX, PAGE_PREFIX};
use atoll_protocols::duties;
use atoll_register_store::Left;
use bytes::Bytes;

use crate::oracle::plugins::Plugins;
use crate::world::observer::Violations;

/// A chain with all its segments, including those in index pages.
#[derive(Clone, Debug)]
pub struct Whole {
    segments: Vec<Segment>,
    trim: LogPos,
    /// How many of the segments are in index pages.
    paged: usize,
}

impl Whole {
    /// Returns all segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the first readable position.
    pub fn trim(&self) -> LogPos {
        self.trim
    }

    /// Returns the segment of a Loglet.
    pub fn segment(&self, loglet: LogletId) -> Option<&Segment> {
        self.segments.iter().find(|s| s.loglet == loglet)
    }

    /// Returns the segment that holds, or will hold, a position.
    pub fn locate(&self, at: LogPos) -> Option<&Segment> {
        let after = self.segments.partition_point(|s| s.start <= at);
        after.checked_sub(1).map(|i| &self.segments[i])
    }
}

#[derive(Debug, Default)]
struct History {
    version: u64,
    value: Bytes,
    chain: Option<Whole>,
    /// All Loglets that were ever in the chain.
    ids: BTreeSet<LogletId>,
    /// Loglets in the order in which they became active.
    active: Vec<LogletId>,
    changes: u64,
}

/// All chains of a run.
#[derive(Debug, Default)]
pub struct ChainOracle {
    logs: BTreeMap<String, History>,
    /// Index pages that were chosen and not deleted, by the names of their registers.
    pages: BTreeMap<String, Bytes>,
    paged: u64,
}

impl ChainOracle {
    /// Returns how many changes of chains were chosen, including trims.
    pub fn changes(&self) -> u64 {
        self.logs.values().map(|h| h.changes).sum()
    }

    /// Returns how many segments were added after the first one of each log.
    pub fn extends(&self) -> u64 {
        self.logs.values().map(|h| (h.ids.len() as u64).saturating_sub(1)).sum()
    }

    /// Returns how many of the chosen chains had index pages.
    pub fn paged(&self) -> u64 {
        self.paged
    }

    /// Returns whether the newest chain of any log names a node as a server or as the sequencer of the active segment.
    pub fn names(&self, node: NodeId) -> bool {
        let mut segments = self.newest_of_all().flat_map(|(_, c)| c.segments());
        segments.any(|s| {
            let duties = duties(&s.kind, &s.config);
            duties.is_holder(node) || (s.stop.is_none() && duties.is_sequencer(node))
        })
    }

    /// Returns the servers and the sequencer of a log's active segment, if its kind has a sequencer.
    pub fn serving(&self, name: &str) -> Option<(Vec<NodeId>, NodeId)> {
        let active = self.newest(name)?.segments().last()?;
        let duties = duties(&active.kind, &active.config);
        let (sequencer, _) = duties.sequencers().next()?;
        Some((duties.holders().map(|(node, _)| node).collect(), sequencer))
    }

    /// Returns how many Loglets became active in a log after `old`.
    pub fn later_than(&self, name: &str, old: LogletId) -> usize {
        let Some(history) = self.logs.get(name) else { return 0 };
        let at = history.active.iter().position(|id| *id == old);
        at.map_or(0, |at| history.active.len() - 1 - at)
    }

    /// Returns the newest chain of every log.
    pub fn newest_of_all(&self) -> impl Iterator<Item = (&str, &Whole)> {
        self.logs.iter().filter_map(|(name, h)| Some((name.as_str(), h.chain.as_ref()?)))
    }

    /// Returns the newest chain of a log.
    pub fn newest(&self, name: &str) -> Option<&Whole> {
        self.logs.get(name)?.chain.as_ref()
    }

    /// Checks and notes a chosen version of a register.
    pub fn chosen(&mut self, chosen: &Chosen, plugins: &mut Plugins, verdict: &mut Violations) {
        if chosen.name.starts_with(PAGE_PREFIX) {
            if chosen.value.is_empty() {
                self.pages.remove(&chosen.name);
            } else if self.pages.insert(chosen.name.clone(), chosen.value.clone()).is_some() {
                verdict.fail(format!("vlog-VL2 index page written twice: {}", chosen.name));
            }
            return;
        }
        let Some(name) = chosen.name.strip_prefix(CHAIN_PREFIX) else { return };
        let (version, value) = match self.current(name, chosen) {
            Ok(Some(current)) => current,
            Ok(None) => return,
            Err(why) => return verdict.fail(why),
        };
        let chain = match Chain::parse(value.clone()) {
            Ok(chain) => chain,
            Err(e) => return verdict.fail(format!("vlog-VL2 unreadable chain: {name}: {e}")),
        };
        let active = chain.active().loglet;
        let chain = match self.whole(name, &chain) {
            Ok(chain) => chain,
            Err(why) => return verdict.fail(why),
        };
        self.paged += u64::from(chain.paged > 0);
        let history = self.logs.entry(name.to_owned()).or_default();
        shape(name, &chain, verdict);
        for s in chain.segments() {
            plugins.chained(&s.kind, s.loglet, &s.config);
        }
        let before = history.chain.replace(chain.clone());
        let skipped = version > history.version + 1;
        (history.version, history.value) = (version, value);
        history.changes += 1;
        if history.active.last() != Some(&active) {
            history.active.push(active);
        }
        let before_ids = history.ids.clone();
        history.ids.extend(chain.segments().iter().map(|s| s.loglet));
        if skipped {
            return;
        }
        if let Some(before) = before {
            step(name, &before, &chain, &before_ids, plugins, verdict);
        }
    }

    /// Returns the version and the value that users see of a register, unless they have seen it already. The error says that it is another
    /// one than it may be, after a move of the register.
    fn current(&self, name: &str, chosen: &Chosen) -> Result<Option<(u64, Bytes)>, String> {
        let seen =
            Versioned { version: Version(chosen.version), value: chosen.value.clone(), nonce: Nonce(0) };
        let left = Left::read(&seen).map_err(|why| format!("vlog-VL2 unreadable chain: {name}: {why}"))?;
        let Some(Left { value: Versioned { version, value, .. }, turn, to, arrived }) = left else {
            return Ok(None);
        };
        let newest = self.logs.get(name).filter(|_| turn > 0);
        let newest = newest.map(|history| (history.version, &history.value));
        match (newest, to) {
            (Some(newest), None) if version.0 > newest.0 => Ok(Some((version.0, value))),
            // The state with which a turn begins or ends.
            (Some(newest), None) if newest == (version.0, &value) => Ok(None),
            (Some(newest), Some(_)) if arrived || newest == (version.0, &value) => Ok(None),
            (Some((newest, _)), to) => Err(format!(
                "vlog-VL2 two chains: {name}: version {version} of turn {turn} is written after version {newest}, to go on at {to:?}"
            )),
            (None, _) => Ok(Some((version.0, value))),
        }
    }

    /// Returns the chain with the contents of its index pages. Each page must already be chosen.
    fn whole(&self, name: &str, chain: &Chain) -> Result<Whole, String> {
        let mut segments = Vec::new();
        let mut left: Vec<PageRef> = chain.pages().iter().rev().cloned().collect();
        while let Some(next) = left.pop() {
            // Index pages that are completely trimmed are deleted.
            if next.stop <= chain.trim() {
                continue;
            }
            let Some(value) = self.pages.get(&format!("{PAGE_PREFIX}{name}/{}", next.id)) else {
                return Err(format!(
                    "vlog-VL2 the chain names an index page that is not there: {name}: {}",
                    next.id
                ));
            };
            match Page::parse(value.clone(), &next) {
                Ok(Page::Segments(all)) => {
                    segments.extend(all.into_iter().filter(|s| s.stop > Some(chain.trim())));
                }
                Ok(Page::Pages(_, all)) => left.extend(all.into_iter().rev()),
                Err(e) => return Err(format!("vlog-VL2 unreadable index page: {name}: {}: {e}", next.id)),
            }
        }
        let paged = segments.len();
        segments.extend(chain.segments().iter().cloned());
        Ok(Whole { segments, trim: chain.trim(), paged })
    }
}

/// Checks vlog-VL2.
fn shape(name: &str, chain: &Whole, verdict: &mut Violations) {
    let segments = chain.segments();
    for pair in segments.windows(2) {
        if pair[0].stop != Some(pair[1].start) {
            verdict.fail(format!(
                "vlog-VL2 gap: {name}: {:?} is followed by a segment from {}",
                pair[0].stop, pair[1].start
            ));
        }
    }
    if segments.last().is_none_or(|s| s.stop.is_some()) {
        verdict.fail(format!("vlog-VL2 no active segment: {name}"));
    }
    let ids: BTreeSet<LogletId> = segments.iter().map(|s| s.loglet).collect();
    if ids.len() != segments.len() {
        verdict.fail(format!("vlog-VL2 a loglet is in the chain twice: {name}"));
    }
}

/// Checks the step from one version to the next: vlog-VL1, vlog-VL6, vlog-VL9.
fn step(
    name: &str,
    before: &Whole,
    after: &Whole,
    used: &BTreeSet<LogletId>,
    plugins: &mut Plugins,
    verdict: &mut Violations,
) {
    if after.trim() < before.trim() {
        verdict.fail(format!("vlog-VL9 trim back: {name}: {} after {}", after.trim(), before.trim()));
    }
    let first = after.segments().first().map_or(LogPos::ZERO, |s| s.start);
    for old in before.segments() {
        let Some(stop) = old.stop else {
            let Some(now) = after.segment(old.loglet) else {
                // The segment was sealed while empty, or the log was deleted. In both cases another segment starts where this one ended.
                let follows = |s: &&Segment| s.start == old.start || (s.is_deletion() && s.start > old.start);
                match after.segments().iter().find(follows) {
                    Some(next) => {
                        plugins.installed(&old.kind, old.loglet, old.offset_of(next.start), verdict);
                    }
                    None => {
                        verdict
                            .fail(format!("vlog-VL9 the active segment went: {name}: loglet {}", old.loglet));
                    }
                }
                continue;
            };
            if now.start != old.start || now.base != old.base {
                verdict.fail(format!("vlog-VL9 the active segment moved: {name}: loglet {}", old.loglet));
            }
            if let Some(stop) = now.stop {
                plugins.installed(&old.kind, old.loglet, now.offset_of(stop), verdict);
            }
            continue;
        };
        // A rebuilt segment whose beginning was trimmed starts where the trim point was at that time.
        let starts_as = |start| start == old.start || (start > old.start && start <= after.trim());
        let kept = after.segments().iter().any(|s| s.stop == old.stop && starts_as(s.start));
        let trimmed = stop <= after.trim() && stop <= first;
        if !kept && !trimmed && stop > old.start {
            verdict.fail(format!(
                "vlog-VL9 a segment went: {name}: [{}, {stop}) of loglet {}, trim {}, the chain starts at {first}",
                old.start,
                old.loglet,
                after.trim()
            ));
        }
    }
    for new in after.segments() {
        if before.segment(new.loglet).is_none() && used.contains(&new.loglet) {
            verdict.fail(format!("vlog-VL2 loglet id used again: {name}: {}", new.loglet));
        }
    }
}

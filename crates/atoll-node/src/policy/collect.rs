//! Deletes the Loglets on this node that no chain will ever name (vlog-V8). Most were created by a node that died before it installed them,
//! or that lost the install and died before it deleted them. The others were deleted, but the deletion did not reach this node. Each node
//! collects on its own disk only. `atoll_log::origin` explains how these Loglets are recognised, and why a Loglet whose slow creator is
//! still alive is not deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_contract::{LogPos, LogletId};
use atoll_core::{Env, Tick};
use atoll_log::origin::{Suspects, mark_in, mark_of_log};
use atoll_log::page::PageId;
use atoll_log::{LogError, virtual_log::VirtualLog};

use crate::logs::{Known, Logs};

/// Rounds are this many times less frequent than patrols, because nothing waits for them.
const RARER: u32 = 5;
/// A Loglet is deleted once it has been found abandoned for this long: readers of an older chain may still use one that was replaced
/// (vlog-M4). Safety does not need the wait.
const GRACE: Duration = Duration::from_secs(30);
/// Most deletions in one round: the rest comes in the next.
const PER_ROUND: usize = 64;
/// Most Loglets that one round looks for in the index pages of the logs: other rounds look for the rest.
const PER_LOOK: usize = 32 * 1024;
/// Index pages are checked this many times less often.
const PAGES_RARER: u64 = 20;
/// Most index pages that are looked at in one round.
const PAGES_PER_ROUND: usize = 64;
/// How long a register, or this node's own disk, may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Pause between two index pages of a log. Nothing waits for the result, and a log with a million segments has enough pages for minutes.
const PAGE_PAUSE: Duration = Duration::from_millis(25);

/// The procedure that each node runs; see the module documentation.
#[derive(Clone, Debug)]
pub struct Collector {
    /// This node's executor.
    pub env: Env,
    /// The logs that it knows: all of the cluster, after a patrol of the guardian.
    pub logs: Logs,
    /// How often a patrol looks.
    pub every: Duration,
}

/// A Loglet, behind its kind.
type Place = (&'static str, LogletId);

impl Collector {
    /// Runs until the node ends.
    pub async fn run(self) {
        // Bounded by what the disk holds.
        let mut since: BTreeMap<Place, Tick> = BTreeMap::new();
        // Where the next look begins, in the order of all Loglets that no chain names itself.
        let mut above = None;
        let mut page_above = None;
        for round in 1.. {
            self.env.sleep(self.env.jitter(self.every * RARER)).await;
            if round % PAGES_RARER == 0 {
                self.collect_pages(&mut page_above).await;
            }
            let look = self.next_look(&mut above).await;
            if look.is_empty() {
                continue;
            }
            let abandoned = self.abandoned(&look).await;
            let now = self.env.now();
            since.retain(|place, _| abandoned.contains(place) || !look.contains(place));
            for place in abandoned {
                since.entry(place).or_insert(now);
            }
            let due: Vec<Place> =
                since.iter().filter(|(_, s)| now.since(**s) >= GRACE).map(|(p, _)| *p).collect();
            for place in due.into_iter().take(PER_ROUND) {
                if self.delete(place).await {
                    since.remove(&place);
                }
            }
        }
    }

    /// Some of the Loglets on this disk that no chain names itself. Successive calls cover all of them.
    async fn next_look(&self, above: &mut Option<Place>) -> BTreeSet<Place> {
        let named = named(&self.logs.known());
        let mut look = BTreeSet::new();
        for provider in self.logs.registry().providers() {
            let kind = provider.kind();
            let mut last = match *above {
                Some((before, _)) if before > kind => continue,
                Some((same, id)) if same == kind => Some(id),
                _ => None,
            };
            loop {
                let (held, more) = provider.held_here(last).await.unwrap_or_default();
                last = held.last().copied();
                look.extend(held.into_iter().filter(|id| !named.contains(id)).map(|id| (kind, id)));
                if look.len() >= PER_LOOK {
                    *above = last.map(|id| (kind, id));
                    return look;
                }
                if !more {
                    break;
                }
            }
        }
        *above = None;
        look
    }

    /// Empties index pages that no chain names, some in each round. Successive rounds cover all of them.
    async fn collect_pages(&self, above: &mut Option<(String, PageId)>) {
        let Ok(Ok(Ok(all))) = self.env.within(ANSWER, self.logs.list_pages()).await else { return };
        let is_above = |page: &&(String, PageId)| above.as_ref().is_none_or(|above| *page > above);
        let next: Vec<_> = all.iter().filter(is_above).take(PAGES_PER_ROUND).cloned().collect();
        for (name, id) in &next {
            if let Ok(log) = self.logs.open(name) {
                let _ = self.env.within(ANSWER, log.collect_page(*id)).await;
            }
        }
        *above = next.last().cloned();
    }

    /// Which of these are abandoned. They were all seen before this call, and only chains that are read now prove it.
    async fn abandoned(&self, look: &BTreeSet<Place>) -> BTreeSet<Place> {
        let mut by_mark: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        for place in look {
            by_mark.entry(mark_in(place.1)).or_default().push(*place);
        }
        let mut abandoned = BTreeSet::new();
        for name in self.logs.names() {
            let Some(places) = by_mark.get(&mark_of_log(&name)) else { continue };
            let Ok(log) = self.logs.open(&name) else { continue };
            let suspects = Suspects::new(log.name(), places.iter().map(|p| p.1));
            let gone = match self.env.within(ANSWER, log.refresh()).await {
                Ok(Ok(Ok(_))) => self.held_against(&log, suspects).await,
                // The chain and its pages name nothing any more, but the first Loglet of the next log of this name may already exist.
                Ok(Ok(Err(LogError::Deleted))) => {
                    let deleted = log.chain().filter(|c| c.chain.is_deleted());
                    deleted.map(|c| suspects.abandoned(&c.chain))
                }
                _ => continue,
            };
            if let Some(gone) = gone {
                abandoned.extend(places.iter().filter(|place| gone.contains(&place.1)).copied());
            }
        }
        abandoned
    }

    /// Holds Loglets against all segments of a log, one index page after the other. None if one could not be read.
    async fn held_against(&self, log: &VirtualLog, mut suspects: Suspects) -> Option<BTreeSet<LogletId>> {
        let mut from = LogPos::ZERO;
        while !suspects.is_empty() {
            let page = self.env.within(ANSWER, log.segments_from(from)).await.ok()?.ok()?.ok()?;
            let Some(next) = page.next else { return Some(suspects.abandoned(&page.chain.chain)) };
            suspects.spare(&page.segments);
            from = next;
            self.env.sleep(PAGE_PAUSE).await;
        }
        None
    }

    /// Deletes it from this disk, behind a tombstone (vlog-L7, vlog-V6). A failure is tried again in the next round.
    async fn delete(&self, (kind, loglet): Place) -> bool {
        atoll_core::testing::hit("policy.collect");
        let Ok(provider) = self.logs.registry().provider(kind) else { return false };
        let done = provider.delete_here(loglet).await;
        if done {
            tracing::info!(%loglet, "deleted a loglet that no chain names: its maker died, or a deletion missed this node");
        }
        done
    }
}

/// The Loglets that the chains name themselves, as they are known here.
fn named(known: &[Known]) -> BTreeSet<LogletId> {
    known.iter().flat_map(|log| log.chain.chain.segments()).map(|s| s.loglet).collect()
}

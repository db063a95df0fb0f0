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

/// Rounds are this many times less frequent than patrols, because nothing depends on their progress.
const RARER: u32 = 5;
/// A Loglet is deleted only after it has been found abandoned for this long, because readers with an older chain may still use one that was
/// replaced (vlog-M4). Safety does not depend on this wait.
const GRACE: Duration = Duration::from_secs(30);
/// The maximum number of deletions in one round. Later rounds delete the rest.
const PER_ROUND: usize = 64;
/// The number of Loglets that one round looks up in the index pages of the logs; the last batch of a round may exceed it. Later rounds look
/// up the rest.
const PER_LOOK: usize = 32 * 1024;
/// Only every so many rounds collect index pages.
const PAGES_RARER: u64 = 20;
/// The maximum number of index pages that one round checks.
const PAGES_PER_ROUND: usize = 64;
/// How long to wait for a register.
const ANSWER: Duration = Duration::from_secs(2);
/// The pause between two index pages of a log. Nothing depends on the result, and a log with a million segments has so many pages that
/// reading them takes minutes.
const PAGE_PAUSE: Duration = Duration::from_millis(25);

/// The procedure that each node runs; see the module documentation.
#[derive(Clone, Debug)]
pub struct Collector {
    /// This node's executor.
    pub env: Env,
    /// The logs that this node knows. After a patrol of the guardian, these are all logs of the cluster.
    pub logs: Logs,
    /// The interval between patrols.
    pub every: Duration,
}

/// The kind and the id of a Loglet. The order of these pairs is the order in which Loglets are visited.
type Place = (&'static str, LogletId);

impl Collector {
    /// Runs until the node stops.
    pub async fn run(self) {
        // Since when each Loglet has been found abandoned. Bounded by the number of Loglets on the disk.
        let mut since: BTreeMap<Place, Tick> = BTreeMap::new();
        // The place after which the next round starts.
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

    /// Returns some of the Loglets on this disk that no chain names directly. Successive calls cover all of them.
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
                let is_named = |id: &LogletId| named.contains(id) || named.contains(&id.whole());
                look.extend(held.into_iter().filter(|id| !is_named(id)).map(|id| (kind, id)));
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

    /// Empties some of the index pages that no chain names. Successive calls cover all of them.
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

    /// Returns which of these Loglets are abandoned. They were all found before this call, and only a chain that is read after that can
    /// prove it.
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
                // The chain and its pages no longer name any Loglet, but the first Loglet of the next log with this name may already exist.
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

    /// Compares the suspects with all segments of a log, one index page after the other, and returns the abandoned ones. None if no suspect
    /// is abandoned, or if an index page could not be read.
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

    /// Deletes a Loglet from this disk and leaves a tombstone (vlog-L7, vlog-V6). Returns false on failure; a later round retries.
    async fn delete(&self, (kind, loglet): Place) -> bool {
        atoll_core::testing::hit("policy.collect");
        let Ok(provider) = self.logs.registry().provider(kind) else { return false };
        let done = provider.delete_here(loglet).await;
        if done {
            tracing::info!(%loglet, "deleted a loglet that no chain names; its creator died, or this node missed the deletion");
        }
        done
    }
}

/// Returns the Loglets that the known chains name directly.
fn named(known: &[Known]) -> BTreeSet<LogletId> {
    known.iter().flat_map(|log| log.chain.chain.segments()).map(|s| s.loglet).collect()
}

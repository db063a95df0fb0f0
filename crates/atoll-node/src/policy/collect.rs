//! Deletes the Loglets on this node that no chain will ever name (virtuallog V8): made by a reconfigurer that died before its
//! install, or that lost and died before it could clean up; and those that a deletion did not reach. Each node looks after its
//! own disk. Which Loglets they are, and why a slow maker that lives cannot lose one under him, is in `atoll_log::origin`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_core::{Env, RoleKind, Tick, roles};
use atoll_log::origin::{is_abandoned, mark_in, mark_of_log};
use atoll_log::{LogletId, virtual_log::VirtualLog};
use atoll_loglets::native::message::{Answer, Delete, Verdict};

use crate::logs::Logs;
use crate::survey;

/// Rounds are this many times rarer than the patrol: nobody waits for them.
const RARER: u32 = 5;
/// A Loglet goes when it was found abandoned for so long: readers of an older chain may still use one that was replaced
/// (virtuallog M4). Safety needs no wait.
const GRACE: Duration = Duration::from_secs(30);
/// Most deletions in one round: the rest comes in the next.
const PER_ROUND: usize = 64;
/// How long a register, or this node's own disk, may take.
const ANSWER: Duration = Duration::from_secs(2);

/// The procedure of each node; see the module's words.
#[derive(Clone, Debug)]
pub struct Collector {
    /// This node's executor.
    pub env: Env,
    /// The logs that it knows: all of the cluster, after a patrol.
    pub logs: Logs,
    /// How often a patrol looks.
    pub every: Duration,
}

/// A Loglet and the role that keeps it.
type Place = (RoleKind, LogletId);

impl Collector {
    /// Runs until the node ends.
    pub async fn run(self) {
        // Bounded by what the disk holds.
        let mut since: BTreeMap<Place, Tick> = BTreeMap::new();
        loop {
            self.env.sleep(self.env.jitter(self.every * RARER)).await;
            let abandoned = self.abandoned().await;
            let now = self.env.now();
            since.retain(|place, _| abandoned.contains(place));
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

    /// What is on this disk and abandoned. First what is there, then the chains: only a chain that was read later proves it.
    async fn abandoned(&self) -> BTreeSet<Place> {
        let mut unnamed: BTreeMap<u64, Vec<Place>> = BTreeMap::new();
        let opened = self.logs.opened();
        let named = named(&opened);
        for role in [roles::LOG_SERVER, roles::LOCAL_STORE] {
            for id in survey::held_here(&self.env, role).await {
                if !named.contains(&id) {
                    unnamed.entry(mark_in(id)).or_default().push((role, id));
                }
            }
        }
        let mut abandoned = BTreeSet::new();
        if unnamed.is_empty() {
            return abandoned;
        }
        for log in opened {
            let Some(places) = unnamed.get(&mark_of_log(log.name())) else { continue };
            let Ok(Ok(Ok(chain))) = self.env.within(ANSWER, log.refresh()).await else { continue };
            let gone = |place: &&Place| is_abandoned(place.1, log.name(), &chain.chain);
            abandoned.extend(places.iter().filter(gone).copied());
        }
        abandoned
    }

    /// Deletes it from this disk, behind a tombstone (L7, V6). A failure is tried again in the next round.
    async fn delete(&self, (role, loglet): Place) -> bool {
        atoll_core::testing::hit("policy.collect");
        let asked = self.env.call_role(self.env.node(), role, Delete { loglet });
        let answer: Option<Answer> = self.env.within(ANSWER, asked).await.ok().and_then(Result::ok);
        let done = answer.is_some_and(|a| a.verdict == (Verdict::Done {}));
        if done {
            tracing::info!(%loglet, "deleted a loglet that no chain names: its maker died, or a deletion missed this node");
        }
        done
    }
}

/// All Loglets of the chains as they are known here.
fn named(opened: &[std::sync::Arc<VirtualLog>]) -> BTreeSet<LogletId> {
    let chains = opened.iter().filter_map(|log| log.chain());
    chains.flat_map(|c| c.chain.segments().iter().map(|s| s.loglet).collect::<Vec<_>>()).collect()
}

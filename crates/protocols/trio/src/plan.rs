//! Chooses the three nodes of the next loglet. It prefers three different nodes, so that the loss of one takes one role away.

use std::cmp::Reverse;
use std::time::Duration;

use atoll_contract::{LogletSpec, PlanError};
use atoll_core::{Candidate, Directory, Identify, Identity, NodeId, StorageId};

use crate::config::TrioConfig;
use crate::provider::{CLERK, MIRROR, STORE, TrioProvider};

/// How long a node may take to identify itself before it counts as down.
const IDENTIFY_TIMEOUT: Duration = Duration::from_millis(300);

/// Everything that a choice depends on.
struct Choice<'a> {
    spec: &'a LogletSpec,
    previous: Option<TrioConfig>,
    candidates: Vec<Candidate>,
    up: Vec<Identity>,
    directory: &'a dyn Directory,
}

impl TrioProvider {
    /// Returns a configuration that satisfies the specification.
    pub(crate) async fn choose(
        &self,
        spec: &LogletSpec,
        previous: Option<TrioConfig>,
    ) -> Result<TrioConfig, PlanError> {
        spec.check(self, &[])?;
        let candidates = self.directory.candidates();
        // A node that is known to be down is asked only if the specification names it.
        let mut ask: Vec<NodeId> = candidates.iter().filter(|c| c.alive).map(|c| c.node).collect();
        ask.extend(spec.named());
        ask.sort_unstable();
        ask.dedup();
        let until = self.env.now().after(IDENTIFY_TIMEOUT);
        let replies = self.env.gather(&ask, Identify {}, until, |_| false).await;
        let up = replies.into_ok().map(|(_, identity)| identity).collect();
        let choice = Choice { spec, previous, candidates, up, directory: &*self.directory };
        let store = choice.store()?;
        let clerk = choice.clerk(store.node)?;
        let mirror = choice.mirror(store.node, clerk.node)?;
        Ok(TrioConfig {
            clerk: (clerk.node, clerk.incarnation),
            store: (store.node, store.storage),
            mirror: (mirror.node, mirror.storage),
        })
    }
}

impl Choice<'_> {
    fn store(&self) -> Result<&Identity, PlanError> {
        let held = self.previous.map(|p| p.store);
        let rank = |i: &Identity| (!i.failed).then(|| (self.unfit(i), !is(held, i), i.node));
        self.pick(STORE, rank).unwrap_or(Err(PlanError::Missing { role: STORE, up: 0, wanted: 1 }))
    }

    /// Chooses a clerk that the store reaches, and then one that as many members reach as possible. Otherwise two nodes that see different
    /// members take turns as clerk (vlog-V18).
    fn clerk(&self, store: NodeId) -> Result<&Identity, PlanError> {
        let kept = self.previous.map(|p| p.clerk.0);
        let rank = |i: &Identity| {
            let reaches = |other: NodeId| other == i.node || self.directory.reaches(other, i.node);
            let reached = self.candidates.iter().filter(|c| reaches(c.node)).count();
            let taste = (Reverse(reached), i.node == store, kept != Some(i.node), i.node);
            i.sequencer.then(|| (!reaches(store), self.unfit(i), taste))
        };
        self.pick(CLERK, rank).unwrap_or(Err(PlanError::Missing { role: CLERK, up: 0, wanted: 1 }))
    }

    /// Chooses a mirror on another node than the store's, unless there is no other member: on the same disk, it would be no second copy.
    fn mirror(&self, store: NodeId, clerk: NodeId) -> Result<&Identity, PlanError> {
        let held = self.previous.map(|p| p.mirror);
        let is_alone = self.candidates.iter().filter(|c| c.log).count() <= 1;
        let rank = |i: &Identity| {
            let is_other = is_alone || i.node != store;
            is_other.then(|| (self.unfit(i), i.node == clerk, !is(held, i), i.node))
        };
        self.pick(MIRROR, rank).unwrap_or(Err(PlanError::Missing { role: MIRROR, up: 0, wanted: 1 }))
    }

    /// Returns the node that the specification names for a role, otherwise that with the lowest rank. None if no node has a rank.
    fn pick<K: Ord>(
        &self,
        role: &str,
        rank: impl Fn(&Identity) -> Option<K>,
    ) -> Option<Result<&Identity, PlanError>> {
        let accepts = |i: &&Identity| if role == CLERK { i.sequencer } else { i.log };
        match self.spec.placed(role) {
            Some([node]) => {
                let named = self.up.iter().find(|i| i.node == *node);
                let refused =
                    PlanError::Invalid { what: "node of a trio loglet", allowed: "one with the role" };
                Some(match named {
                    Some(identity) if accepts(&identity) => Ok(identity),
                    Some(_) => Err(refused),
                    None => Err(PlanError::NodeDown(*node)),
                })
            }
            Some(_) => Some(Err(PlanError::Invalid {
                what: "nodes of a role of a trio loglet",
                allowed: "one node",
            })),
            None => {
                let ranked = self.up.iter().filter(accepts).filter_map(|i| Some((rank(i)?, i)));
                ranked.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, identity)| Ok(identity))
            }
        }
    }

    /// Returns how unfit a node is. Lower is better.
    fn unfit(&self, i: &Identity) -> u8 {
        let seen = self.candidates.iter().find(|c| c.node == i.node);
        let is_failing = seen.is_some_and(|c| c.failing);
        let is_leaving = i.draining || seen.is_some_and(|c| c.draining || c.leaving);
        u8::from(i.failed) * 8
            + u8::from(is_failing) * 4
            + u8::from(self.spec.avoid.contains(&i.node)) * 2
            + u8::from(is_leaving)
    }
}

/// Returns whether a node still has the data directory with which it held the previous loglet.
fn is(held: Option<(NodeId, StorageId)>, i: &Identity) -> bool {
    held == Some((i.node, i.storage))
}

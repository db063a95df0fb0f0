//! Finds the group of acceptors that holds the registers, and creates the first group.
//!
//! A group names the storage identities of its acceptors (rmw-T9), and a node draws its storage identity when it first starts. So one
//! founder creates the first group: the one with the lowest id among the founders that may hold registers, and only when *all* of these
//! have answered and none knows a group. The group has the first five of them at most. A founder that lost its disk learns the old group
//! from the others and is not in it. If that founder is the one with the lowest id, it creates a new group only if no founder remembers
//! one. In that case no vote of the old group was ever acknowledged, because an acceptor votes only in a group that it has on disk, and a
//! majority of that group, all of them founders, would have it on disk. (A single founder that loses its disk has lost everything.)
//!
//! A node that joins later is not a founder. It needs the address of any one member. It asks that member for the table of members, and then
//! asks all nodes that hold registers for the group. A node that knows a table never creates a group, because one already exists.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::Cluster;
use atoll_core::{Env, Identify, Identity, NodeId, StorageId};

use crate::keep_group::MOST_ACCEPTORS;
use crate::message::{Open, Status};
use crate::{GroupConfig, KnownGroup, Member};

/// How long one round waits for replies.
const ROUND: Duration = Duration::from_millis(500);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);

/// What is needed to find the group.
#[derive(Clone, Debug)]
pub(super) struct FindGroup {
    /// This node's executor.
    pub(super) env: Env,
    /// The storage identity of this node's data directory.
    pub(super) storage: StorageId,
    /// What the acceptor on this node knows.
    pub(super) known: KnownGroup,
    /// This node's view of the cluster.
    pub(super) cluster: Arc<dyn Cluster>,
}

impl FindGroup {
    /// Returns the group once it is known and durable on this node. Retries forever, because the node can do nothing without it.
    pub(super) async fn run(&self) -> GroupConfig {
        loop {
            match self.known.get() {
                Some(group) if self.can_reach(&group) => return group,
                Some(_) => self.cluster.ask_members().await,
                None => {
                    if let Some(group) = self.round().await {
                        self.spread(&group).await;
                    }
                }
            }
            if !self.known.get().is_some_and(|group| self.can_reach(&group)) {
                self.env.sleep(self.env.jitter(PAUSE)).await;
            }
        }
    }

    /// Whether this node knows the addresses of the acceptors. At first, a newcomer knows only the address of one member.
    fn can_reach(&self, group: &GroupConfig) -> bool {
        let roster = self.cluster.roster();
        let me = self.env.node();
        roster.version > 0 || group.members.iter().all(|m| m.node == me || roster.get(m.node).is_some())
    }

    /// Returns the newest group that a node reported. If none did, and this node is the founder that creates the first group, and all
    /// founders answered, creates it.
    async fn round(&self) -> Option<GroupConfig> {
        let until = self.env.now().after(ROUND);
        let (founders, asked) = (self.cluster.founders(), self.asked());
        let replies =
            self.env.gather(&asked, Status {}, until, |r| r.ok().any(|(_, s)| s.serving.is_some())).await;
        let answered = replies.ok().filter(|(node, _)| founders.contains(node)).count();
        let newest = replies.into_ok().filter_map(|(_, s)| s.serving).max_by_key(|g| g.epoch);
        if newest.is_some() {
            return newest;
        }
        self.cluster.ask_members().await;
        let is_creator = founders.first() == Some(&self.env.node());
        if !is_creator || answered < founders.len() || self.cluster.roster().version > 0 {
            return None;
        }
        self.create(&founders).await
    }

    /// Returns the nodes that may know the group: the founders, and the nodes that hold registers according to the newest table.
    fn asked(&self) -> Vec<NodeId> {
        let roster = self.cluster.roster();
        let later = roster.members.iter().filter(|row| roster.version > 0 && row.meta).map(|row| row.node);
        let mut all: Vec<NodeId> = self.cluster.founders().into_iter().chain(later).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    async fn create(&self, founders: &[NodeId]) -> Option<GroupConfig> {
        let until = self.env.now().after(ROUND);
        let replies = self.env.gather(founders, Identify {}, until, |_| false).await;
        let identities: Vec<Identity> = replies.into_ok().map(|(_, i)| i).collect();
        if identities.len() < founders.len() {
            return None;
        }
        atoll_core::testing::hit("members.first_group");
        // As many as it would have anyway after the first change; more than nine make no group at all.
        let first = identities.iter().take(MOST_ACCEPTORS);
        GroupConfig::new(1, first.map(|i| Member { node: i.node, storage: i.storage }).collect()).ok()
    }

    /// Makes the group durable on this node first, so that the node never creates another one, and then sends it to the other acceptors.
    async fn spread(&self, group: &GroupConfig) {
        let open = Open { storage: self.storage, group: group.clone() };
        let mine = self.env.call(self.env.node(), open).await;
        if mine.is_err() || self.known.get().is_none() {
            return;
        }
        for member in group.members.iter().filter(|m| m.node != self.env.node()) {
            // A node that does not receive the group asks for it by itself.
            drop(self.env.call(member.node, Open { storage: member.storage, group: group.clone() }));
        }
    }
}

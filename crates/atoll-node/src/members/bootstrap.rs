//! Finds the group of acceptors that holds the registers, and creates the first group.
//!
//! A group names the storage identities of its acceptors (rmw-T9), and a node draws its storage identity when it first starts. So one
//! founder creates the first group: the one with the lowest id among the founders with the role `meta`, and only when *all* of these have
//! answered and none knows a group. A founder that lost its disk learns the old group from the others and is not in it. If that founder is
//! the one with the lowest id, it creates a new group only if no founder remembers one. In that case no vote of the old group was ever
//! acknowledged, because an acceptor votes only in a group that it has on disk, and a majority of the founders would have the group on
//! disk. (A single founder that loses its disk has lost everything.)
//!
//! A node that joins later is not a founder. It needs the address of any one member. It asks that member for the table of members, and then
//! asks all nodes that hold registers for the group. A node that knows a table never creates a group, because one already exists.

use std::time::Duration;

use atoll_core::{Env, Identify, Identity, NodeId, StorageId};
use atoll_rmwpaxos::message::{Open, Status};
use atoll_rmwpaxos::{GroupConfig, KnownGroup, Member};

use super::Members;
use super::role::AskTable;
use super::table::MemberTable;

/// How long one round waits for replies.
const ROUND: Duration = Duration::from_millis(500);
/// The pause between two rounds.
const PAUSE: Duration = Duration::from_millis(50);

/// What is needed to find the group.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// This node's executor.
    pub env: Env,
    /// The storage identity of this node's data directory.
    pub storage: StorageId,
    /// What the acceptor on this node knows.
    pub known: KnownGroup,
    /// The founders with the role `meta`, according to the configuration file, in ascending order.
    pub founders: Vec<NodeId>,
    /// This node's view of the members. [`Bootstrap::find_group`] adopts newer tables into it.
    pub members: Members,
}

impl Bootstrap {
    /// Returns the group once it is known and durable on this node. Retries forever, because the node can do nothing without it.
    pub async fn find_group(&self) -> GroupConfig {
        loop {
            match self.known.get() {
                Some(group) if self.can_reach(&group) => return group,
                Some(_) => self.learn_members().await,
                None => {
                    if let Some(group) = self.round().await {
                        self.tell(&group).await;
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
        let table = self.members.table();
        let me = self.env.node();
        group.members.iter().all(|m| m.node == me || table.nodes.contains_key(&m.node)) || table.version > 0
    }

    /// Returns the newest group that a node reported. If none did, and this node is the founder that creates the first group, and all
    /// founders answered, creates it.
    async fn round(&self) -> Option<GroupConfig> {
        let until = self.env.now().after(ROUND);
        let asked = self.asked();
        let replies =
            self.env.gather(&asked, Status {}, until, |r| r.ok().any(|(_, s)| s.serving.is_some())).await;
        let answered = replies.ok().filter(|(node, _)| self.founders.contains(node)).count();
        let newest = replies.into_ok().filter_map(|(_, s)| s.serving).max_by_key(|g| g.epoch);
        if newest.is_some() {
            return newest;
        }
        self.learn_members().await;
        let maker = self.founders.first() == Some(&self.env.node());
        if !maker || answered < self.founders.len() || self.members.table().version > 0 {
            return None;
        }
        self.make().await
    }

    /// Returns the nodes that may know the group: the founders, and the nodes that hold registers according to the newest table.
    fn asked(&self) -> Vec<NodeId> {
        let table = self.members.table();
        let later = table.nodes.iter().filter(|(_, m)| table.version > 0 && m.meta).map(|(n, _)| *n);
        let mut all: Vec<NodeId> = self.founders.iter().copied().chain(later).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Asks the known members for the table of members, and adopts the newest answer.
    async fn learn_members(&self) {
        let until = self.env.now().after(ROUND);
        let peers = self.members.peers();
        let replies =
            self.env.gather(&peers, AskTable {}, until, |r| r.ok().any(|(_, t)| t.version > 0)).await;
        let tables = replies.into_ok().filter(|(_, t)| t.version > 0);
        let newest = tables
            .filter_map(|(_, t)| MemberTable::decode(t.version, t.value).ok())
            .max_by_key(|t| t.version);
        if newest.is_some_and(|table| self.members.adopt(table)) {
            atoll_core::testing::hit("members.seeded");
        }
    }

    async fn make(&self) -> Option<GroupConfig> {
        let until = self.env.now().after(ROUND);
        let replies = self.env.gather(&self.founders, Identify {}, until, |_| false).await;
        let identities: Vec<Identity> = replies.into_ok().map(|(_, i)| i).collect();
        if identities.len() < self.founders.len() {
            return None;
        }
        atoll_core::testing::hit("members.first_group");
        let members = identities.iter().map(|i| Member { node: i.node, storage: i.storage }).collect();
        GroupConfig::new(1, members).ok()
    }

    /// Makes the group durable on this node first, so that the node never creates another one, and then sends it to the other acceptors.
    async fn tell(&self, group: &GroupConfig) {
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

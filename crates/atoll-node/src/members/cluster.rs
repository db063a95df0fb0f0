//! The members as the procedures of a protocol see them; implements [`Cluster`].

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_contract::{Cluster, Roster, RosterRow};
use atoll_core::{BoxFuture, Directory, Env, NodeId, Notify};

use super::Members;
use super::change::Changes;
use super::role::AskTable;
use super::table::MemberTable;

/// How long a question to the other members waits for answers.
const ROUND: Duration = Duration::from_millis(500);

/// The view of one node. Clones are cheap and share the same state.
#[derive(Clone, Debug)]
pub struct NodeCluster {
    env: Env,
    members: Members,
    founders: Vec<NodeId>,
    /// Set once the registers are installed, because the table of members is in one of them.
    changes: Arc<OnceLock<Changes>>,
}

impl NodeCluster {
    /// Creates the view. `founders` are the founders that may hold registers, in the order of their ids.
    pub fn new(env: Env, members: Members, founders: Vec<NodeId>) -> Self {
        NodeCluster { env, members, founders, changes: Arc::default() }
    }

    /// Provides access to the table in its register. Only the first call has an effect.
    pub fn settle(&self, changes: Changes) {
        let _ = self.changes.set(changes);
    }
}

impl Cluster for NodeCluster {
    fn founders(&self) -> Vec<NodeId> {
        self.founders.clone()
    }

    fn roster(&self) -> Roster {
        let table = self.members.table();
        let candidates = self.members.candidates();
        let row = |(node, member): (&NodeId, &super::table::Member)| {
            let seen = candidates.iter().find(|c| c.node == *node);
            RosterRow {
                node: *node,
                storage: member.storage,
                meta: member.meta,
                draining: member.draining,
                alive: seen.is_some_and(|c| c.alive),
                failing: seen.is_some_and(|c| c.failing),
            }
        };
        Roster { version: table.version, members: table.nodes.iter().map(row).collect() }
    }

    fn is_alive(&self, node: NodeId) -> bool {
        self.members.is_alive(node)
    }

    fn changed(&self) -> Notify {
        self.members.changed.clone()
    }

    fn ask_members(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
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
        })
    }

    fn reread_members(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            match self.changes.get() {
                Some(changes) => changes.refresh().await.is_ok(),
                None => false,
            }
        })
    }
}

#[cfg(test)]
#[path = "cluster_test.rs"]
mod tests;

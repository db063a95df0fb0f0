//! The node and its cluster, as its doors see them.

use std::time::{Duration, Instant};

use atoll_core::{Incarnation, NodeId};
use atoll_door::{DATABASE_LOG, NodeView};

use crate::members::Members;
use crate::policy::Guardian;
use crate::replica::is_in_service;
use crate::space_alarm::SpaceAlarm;

/// For this long after the start, a node that has not been heard from yet counts as alive, because it may not have had time to report.
const UNHEARD_FOR: Duration = Duration::from_secs(10);

/// See the module documentation. Created when the doors open.
pub(crate) struct DoorView {
    members: Members,
    guardian: Guardian,
    space_alarm: SpaceAlarm,
    started: Instant,
    /// The configured address at which other nodes reach this one.
    peer: String,
}

impl DoorView {
    pub(crate) fn new(members: Members, guardian: Guardian, space_alarm: SpaceAlarm, peer: String) -> Self {
        DoorView { members, guardian, space_alarm, started: Instant::now(), peer }
    }
}

impl NodeView for DoorView {
    fn node(&self) -> NodeId {
        self.members.identity().node
    }

    fn members(&self) -> Vec<NodeId> {
        self.members.table().nodes.keys().copied().collect()
    }

    fn peers(&self) -> Vec<NodeId> {
        self.members.peers()
    }

    fn serving(&self) -> Vec<NodeId> {
        let unheard = self.started.elapsed() < UNHEARD_FOR;
        let alive = |node: &NodeId| match self.members.liveness(*node) {
            None => unheard,
            Some(life) if life.incarnation.is_none() && unheard => true,
            // A node that only this node has lost still serves its clients.
            Some(_) => self.members.is_up(*node) && is_in_service(&self.members, *node),
        };
        let others = self.members.peers().into_iter().filter(alive);
        others.chain([self.node()]).collect()
    }

    fn life(&self, node: NodeId) -> Option<Incarnation> {
        self.members.liveness(node).and_then(|life| life.incarnation)
    }

    fn longest_apply_delay(&self) -> Duration {
        self.members.longest_apply_delay()
    }

    fn orders_database(&self) -> bool {
        self.guardian.sequenced_by(self.node()).iter().any(|log| log == DATABASE_LOG)
    }

    fn is_short_of_space(&self) -> bool {
        self.space_alarm.is_short()
    }

    fn peer_address(&self) -> String {
        let listed = self.members.table().nodes.get(&self.node()).map(|member| member.peer.clone());
        listed.filter(|peer| !peer.is_empty()).unwrap_or_else(|| self.peer.clone())
    }
}

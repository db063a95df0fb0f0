//! Tells the ZooKeeper server what it needs to know about the cluster.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Incarnation, NodeId};
use atoll_door::NodeView;
use atoll_zookeeper::{Addresses, Cluster};

/// The cluster as the node sees it, and where clients reach this node.
pub(crate) struct Living {
    node: Arc<dyn NodeView>,
    /// The address at which the door listens.
    client: Option<SocketAddr>,
}

impl Living {
    pub(crate) fn new(node: Arc<dyn NodeView>, client: Option<SocketAddr>) -> Living {
        Living { node, client }
    }
}

impl Cluster for Living {
    fn living(&self) -> Vec<NodeId> {
        self.node.serving()
    }

    fn life(&self, node: NodeId) -> Option<Incarnation> {
        self.node.life(node)
    }

    fn members(&self) -> usize {
        self.node.peers().len() + 1
    }

    fn leads(&self) -> bool {
        self.node.orders_database()
    }

    fn longest_apply_delay(&self) -> Duration {
        self.node.longest_apply_delay()
    }

    fn is_short_of_space(&self) -> bool {
        self.node.is_short_of_space()
    }

    fn member_ids(&self) -> Vec<NodeId> {
        self.node.members()
    }

    fn addresses(&self) -> Option<Addresses> {
        let (client, peer) = (self.client?, self.node.peer_address());
        // Clients cannot connect to a wildcard address.
        let host = peer.rsplit_once(':').map(|(host, _)| host).filter(|_| client.ip().is_unspecified());
        let client = host.map_or_else(|| client.to_string(), |host| format!("{host}:{}", client.port()));
        Some(Addresses { peer, client })
    }
}

//! Maintains `/zookeeper/config`: announces this node, and removes nodes that are no longer members.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::NodeId;
use atoll_db::{Direction, View};

use super::Shared;
use super::housekeeping::{did, every, rank};
use crate::command::{Announce, Command, Forget};
use crate::tree::config::{Server, listed};
use crate::tree::key;
use crate::tree::read::ReadError;

/// How often to check whether the list is up to date.
const LOOKED_EVERY: Duration = Duration::from_millis(500);
/// A node must be missing from the members in this many checks in a row before the first node removes it. Each further node waits
/// this many more checks for each living node with a lower id.
const LOOKS: usize = 3;

/// The addresses of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The address for other nodes, as host:port.
    pub peer: String,
    /// The address for ZooKeeper clients, as host:port.
    pub client: String,
}

/// Runs until it is dropped.
pub(crate) async fn run(shared: &Arc<Shared>) {
    // Nothing can be read before the start check is over. This cannot fail here, because the engine outlives this task.
    let _ = shared.engine.checked().await;
    let mut ticks = every(LOOKED_EVERY);
    let mut looks = 0;
    loop {
        ticks.tick().await;
        let (its, view) = (shared.clone(), shared.engine.view());
        // If the work was broken off, the node is stopping.
        let found = match shared.beside(move || look(&its, &view)).await {
            Ok(Ok(found)) => found,
            Err(_) => continue,
            Ok(Err(error)) => {
                tracing::error!(%error, "/zookeeper/config cannot be updated");
                continue;
            }
        };
        if let Some(Addresses { peer, client }) = &found.mine {
            let node = shared.engine.proposer().node.0.into();
            did(shared, &Command::Announce(Announce { node, peer, client })).await;
        }
        looks = if found.gone.is_empty() { 0 } else { looks + 1 };
        if looks >= LOOKS * (1 + rank(shared)) {
            let nodes = found.gone.iter().map(|node| node.0.into()).collect();
            did(shared, &Command::Forget(Forget { nodes })).await;
            looks = 0;
        }
    }
}

struct Found {
    /// The addresses to announce.
    mine: Option<Addresses>,
    /// Nodes that are listed but are not members.
    gone: Vec<NodeId>,
}

fn look(shared: &Shared, view: &View) -> Result<Found, ReadError> {
    let (me, members) = (shared.engine.proposer().node, shared.cluster.member_ids());
    // A node that is not a member must not announce itself: it would be removed and announced again and again.
    let mut mine = shared.cluster.addresses().filter(|_| members.contains(&me));
    let mut gone = Vec::new();
    for found in view.scan(&key::servers(), Direction::Forward) {
        let (key, value) = found?;
        let damaged = |_| ReadError::Damaged { what: "a server".to_owned() };
        let (id, Server { peer, client }) = listed(&key, &value).map_err(damaged)?;
        let is_mine = NodeId(id) == me;
        if is_mine && mine.as_ref().is_some_and(|a| a.peer == peer && a.client == client) {
            mine = None;
        }
        if !members.is_empty() && !members.contains(&NodeId(id)) {
            gone.push(NodeId(id));
        }
    }
    Ok(Found { mine, gone })
}

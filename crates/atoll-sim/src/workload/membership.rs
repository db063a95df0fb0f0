//! An operator of the membership: adds nodes, often with empty disks, drains and removes them.

use std::time::Duration;

use atoll_core::NodeId;

use crate::scenario::nemesis::LOSSES_APART;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::workload::log::{is_repaired, is_spare, members};
use crate::world::fault::{Death, Fault};

/// How long the operator waits for a drained node to become empty.
const DRAIN_WITHIN: Duration = Duration::from_secs(20);

/// Changes the members from time to time, but keeps at least three.
pub async fn operator(stage: Stage<NodeHandles>, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let now = members(&stage);
        let outside: Vec<usize> = (0..stage.cluster.hosts()).filter(|h| !now.contains(h)).collect();
        if !outside.is_empty() && stage.below(2) == 0 {
            let host = outside[stage.below(outside.len() as u64) as usize];
            // A plan that was made with an older table may still count on what the host stored before it was removed.
            if is_spare(&stage, host, LOSSES_APART) {
                add(&stage, host).await;
            }
        } else if now.len() > 3 && is_repaired(&stage) {
            let host = now[stage.below(now.len() as u64) as usize];
            if remove(&stage, host).await {
                stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
            }
        }
        stage.report();
    }
}

fn node(host: usize) -> NodeId {
    NodeId(host as u32 + 1)
}

/// Adds a host. Empties its disk, unless a chain or a group may rely on it by now.
async fn add(stage: &Stage<NodeHandles>, host: usize) {
    let Some(life) = stage.cluster.any_from(stage.below(64) as usize % stage.cluster.hosts()) else { return };
    let changes = life.handles.0.changes.clone();
    let added = life.env.launch("operator.add", async move {
        changes.add(node(host), &format!("host{host}:1"), None).await.is_ok()
    });
    if stage.cluster.ask(&life, added).await == Some(Ok(true)) {
        let back_after = 10_000_000;
        stage.cluster.inject(match is_spare(stage, host, LOSSES_APART) {
            true => Fault::Wipe { host, back_after },
            false => Fault::Crash { host, death: Death::Kill, back_after: Some(back_after) },
        });
    }
}

/// Drains a member, waits until nothing names it, and removes it. Returns whether it was removed in time. Its process runs on.
pub async fn remove(stage: &Stage<NodeHandles>, host: usize) -> bool {
    let at = stage.below(64) as usize % stage.cluster.hosts();
    let Some(life) = stage.cluster.any_from(at) else { return false };
    let changes = life.handles.0.changes.clone();
    let drain = life.env.launch("operator.drain", async move { changes.drain(node(host)).await.is_ok() });
    if stage.cluster.ask(&life, drain).await != Some(Ok(true)) {
        return false;
    }
    let until = stage.env.now().after(DRAIN_WITHIN);
    while stage.env.now() < until {
        stage.pause(Duration::from_millis(300)).await;
        let at = stage.below(64) as usize % stage.cluster.hosts();
        let Some(life) = stage.cluster.any_from(at) else { continue };
        if life.node == node(host) || holds(stage, host) {
            continue;
        }
        let changes = life.handles.0.changes.clone();
        let remove =
            life.env.launch("operator.remove", async move { changes.remove(node(host), None).await.is_ok() });
        if stage.cluster.ask(&life, remove).await == Some(Ok(true)) {
            return true;
        }
    }
    false
}

/// Returns whether a chain or the group of acceptors names a host.
fn holds(stage: &Stage<NodeHandles>, host: usize) -> bool {
    let wire = stage.oracles.wire.lock();
    let in_chain = wire.chain.names(node(host));
    in_chain || wire.plugins.newest_group().is_some_and(|g| g.members.iter().any(|m| m.node == node(host)))
}

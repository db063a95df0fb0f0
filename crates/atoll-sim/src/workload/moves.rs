//! Movers of keyspaces: they ask for more, fewer and other nodes, and die in the middle; any node completes what they began.

use std::time::Duration;

use atoll_contract::keyspace::{CatalogError, KeyspaceSpec, Layout};
use atoll_core::NodeId;
use atoll_core::testing::hit;

use crate::scenario::phases::Stage;
use crate::workload::keyspace::{self as load, Handles, NAME, Reef, on};
use crate::world::clients::Life;
use crate::world::fault::Fault;

/// Moves the keyspace within the nodes `nodes`, or all if there are none. Returns the layout at the end.
async fn relocate(
    life: &Life<Handles>,
    replicas: u32,
    nodes: Vec<NodeId>,
) -> Option<Result<Layout, CatalogError>> {
    let catalog = life.handles.catalog.clone();
    let spec = KeyspaceSpec { replicas: Some(replicas), nodes, ..KeyspaceSpec::default() };
    on(life, async move { catalog.relocate(NAME, &spec).await }).await
}

/// Adopts the layout that is in the register, if it can be read.
async fn refresh(stage: &Stage<Handles>, reef: &Reef) {
    let Some(life) = stage.cluster.any_from(stage.below(64) as usize % stage.cluster.hosts()) else { return };
    let catalog = life.handles.catalog.clone();
    if let Some(Ok(layout)) = on(&life, async move { catalog.layout(NAME).await }).await {
        reef.adopt(layout);
    }
}

/// Moves the keyspace until the load is over, to at least so many replicas of each shard. The node that does it may die.
pub async fn mover(stage: Stage<Handles>, reef: Reef, least: u32) {
    let hosts = stage.cluster.hosts() as u64;
    reef.begins();
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(700)).await;
        let life = stage.cluster.wait_any(&stage.env, stage.below(hosts) as usize).await;
        let replicas = [least, 3, 3, 3, 5][stage.below(5) as usize].min(hosts as u32);
        // All nodes, or all but some.
        let left_out = stage.below(hosts - u64::from(replicas) + 1);
        let first = stage.below(hosts);
        let nodes = (0..hosts - left_out).map(|n| NodeId(((first + n) % hosts) as u32 + 1)).collect();
        if stage.below(3) == 0 {
            let (host, frames) = (life.node.0 as usize - 1, stage.below(60));
            let back_after = stage.below(300_000_000);
            stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after });
        }
        match relocate(&life, replicas, nodes).await {
            Some(Ok(layout)) => {
                hit("sim.keyspace.moved");
                reef.adopt(layout);
            }
            _ => {
                hit("sim.keyspace.mover_fails");
                refresh(&stage, &reef).await;
            }
        }
    }
    reef.ends();
}

/// Moves the keyspace to other three nodes again and again, until the load is over. Nobody dies, so every move must succeed.
pub async fn shuttle(stage: Stage<Handles>, reef: Reef) {
    let hosts = stage.cluster.hosts() as u64;
    reef.begins();
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(200)).await;
        let life = stage.cluster.wait_any(&stage.env, stage.below(hosts) as usize).await;
        let first = stage.below(hosts);
        let nodes = (0..3).map(|n| NodeId(((first + n) % hosts) as u32 + 1)).collect();
        match relocate(&life, 3, nodes).await {
            Some(Ok(layout)) => {
                hit("sim.keyspace.moved");
                reef.adopt(layout);
            }
            failed => stage.cluster.fail(format!("MOVE: it failed in a healthy cluster: {failed:?}")),
        }
    }
    reef.ends();
}

/// Completes what movers began, and keeps the layout of the clients up to date.
pub async fn tender(stage: Stage<Handles>, reef: Reef) {
    loop {
        stage.pause(Duration::from_millis(400)).await;
        refresh(&stage, &reef).await;
        let hosts = stage.cluster.hosts();
        let life = stage.cluster.wait_any(&stage.env, stage.below(64) as usize % hosts).await;
        let catalog = life.handles.catalog.clone();
        if let Some(Ok(1..)) = on(&life, async move { catalog.tend().await }).await {
            hit("sim.keyspace.move_completed");
        }
    }
}

/// Demands progress after everything was healed: every replica that was lost is replaced, and all keys can be used. Then, in some runs, a
/// host dies for good, and its replicas move to the others.
pub async fn demand(stage: Stage<Handles>, reef: Reef, keys: u64, dead: Vec<usize>) {
    stage.pause(Duration::from_millis(500)).await;
    load::clients_end(&stage, &reef).await;
    stage.waits_for("a keyspace".to_owned());
    load::provide(&stage, &reef).await;
    settle(&stage, &reef, 3, "the replacement of lost replicas").await;
    load::write_all(&stage, &reef, keys, 1).await;
    if !dead.is_empty() {
        for host in &dead {
            stage.cluster.inject(Fault::Crash {
                host: *host,
                death: crate::world::fault::Death::Kill,
                back_after: None,
            });
        }
        stage.pause(Duration::from_millis(500)).await;
        settle(&stage, &reef, 3, "the move off a dead node").await;
        let nodes = reef.layout().map(|layout| layout.nodes()).unwrap_or_default();
        if nodes.iter().any(|node| dead.contains(&(node.0 as usize - 1))) {
            stage
                .cluster
                .fail(format!("bizur §6: the keyspace was moved off the dead hosts {dead:?}, to {nodes:?}"));
        }
        hit("sim.keyspace.moved_off");
    }
    load::demand_all(stage, reef, keys, 2).await;
}

/// Moves the keyspace to the nodes that are up, until that has succeeded.
async fn settle(stage: &Stage<Handles>, reef: &Reef, replicas: u32, what: &str) {
    stage.waits_for(what.to_owned());
    loop {
        let life = stage.cluster.wait_any(&stage.env, stage.below(64) as usize % stage.cluster.hosts()).await;
        match relocate(&life, replicas, Vec::new()).await {
            Some(Ok(layout)) => return reef.adopt(layout),
            _ => {
                // A keyspace in memory may have lost a majority; then there is another one.
                load::provide(stage, reef).await;
                stage.pause(Duration::from_millis(100)).await;
            }
        }
    }
}

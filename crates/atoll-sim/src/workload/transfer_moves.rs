//! Moves of the replicas of an in-place keyspace to other nodes, while clients make transfers. The nodes that move them may die. After
//! everything was healed, no request may fail while the replicas move.

use std::time::Duration;

use atoll_contract::keyspace::KeyspaceSpec;
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_core::testing::hit;

use crate::scenario::phases::Stage;
use crate::workload::keyspace::{Handles, NAME, clients_end};
use crate::workload::transfers::{Bank, Way, demand};
use crate::world::fault::Fault;

/// How long a node tries a transaction that its client has left, and a little more.
const LEFT_ALONE: Duration = Duration::from_secs(5);

/// Moves the replicas to other nodes from time to time, until the load is over. The node that does it may die.
pub async fn mover(stage: Stage<Handles>, bank: Bank, places: Vec<KeyspaceSpec>) {
    bank.reef().begins();
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(700)).await;
        let host = stage.below(64) as usize % stage.cluster.hosts();
        let life = stage.cluster.wait_any(&stage.env, host).await;
        if stage.below(3) == 0 {
            let (host, frames) = (life.node.0 as usize - 1, stage.below(40));
            let back_after = stage.below(300_000_000);
            stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after });
        }
        let place = places[stage.below(places.len() as u64) as usize].clone();
        let catalog = life.handles.catalog.clone();
        let moved = life.env.launch("operator", async move { catalog.relocate(NAME, &place).await });
        if let Ok(Ok(_)) = moved.await {
            hit("sim.move.done");
        }
    }
    bank.reef().ends();
}

/// Completes what movers began, as the patrols of nodes do.
pub async fn tender(stage: Stage<Handles>) {
    loop {
        stage.pause(Duration::from_millis(400)).await;
        let host = stage.below(64) as usize % stage.cluster.hosts();
        let life = stage.cluster.wait_any(&stage.env, host).await;
        let catalog = life.handles.catalog.clone();
        if let Ok(Ok(1..)) = life.env.launch("operator", async move { catalog.tend().await }).await {
            hit("sim.move.completed");
        }
    }
}

/// Begins a move. It is refused as long as one of the nodes is down, because a mover was to die and did so late.
async fn begin(stage: &Stage<Handles>, host: usize, place: &KeyspaceSpec) {
    loop {
        let life = stage.cluster.wait_any(&stage.env, host).await;
        let (keyspaces, wanted) = (life.handles.keyspaces.clone(), place.clone());
        let begun = life.env.launch("operator", async move { keyspaces.relocate(NAME, &wanted).await }).await;
        if let Ok(Ok(_)) = begun {
            return;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Returns the nodes with replicas, if no move is under way.
async fn moved(stage: &Stage<Handles>, host: usize) -> Option<Vec<NodeId>> {
    let life = stage.cluster.wait_any(&stage.env, host).await;
    let keyspaces = life.handles.keyspaces.clone();
    let look = life.env.launch("operator", async move { keyspaces.layout(NAME).await });
    let layout = look.await.ok()?.ok()?;
    (life.handles.keyspaces.left_to_move(&layout) == 0).then(|| layout.nodes())
}

/// Demands progress after everything was healed, and then that the replicas move to each of these places while no request fails.
pub async fn demand_moves(stage: Stage<Handles>, bank: Bank, places: Vec<KeyspaceSpec>) {
    // A move that is still under way would take the replicas elsewhere, and keys wait for it.
    clients_end(&stage, bank.reef()).await;
    stage.waits_for("the last move to be completed".to_owned());
    while moved(&stage, 0).await.is_none() {
        stage.pause(Duration::from_millis(50)).await;
    }
    // Clients have left transactions to nodes, which still wait for each other.
    stage.env.sleep(LEFT_ALONE).await;
    demand(stage.clone(), bank.clone(), Vec::new()).await;
    let mut seq = 0;
    for (n, place) in places.iter().enumerate() {
        stage.waits_for(format!("a move to the nodes {:?}", place.nodes));
        begin(&stage, n, place).await;
        loop {
            seq += 1;
            let way = Way { host: Some(seq as usize), must_answer: true };
            bank.step(&stage, way, OpId { client: ClientId(4), seq }).await;
            if let Some(held) = moved(&stage, n).await {
                if held.iter().any(|node| !place.nodes.contains(node)) {
                    let wanted = &place.nodes;
                    stage.cluster.fail(format!("MOVE: replicas are on {held:?} after a move to {wanted:?}"));
                }
                break;
            }
        }
        hit("sim.move.without_failure");
    }
}

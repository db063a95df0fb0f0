//! Clients that delete logs (virtuallog `delete.rs`). Positions are never reused, nothing is acknowledged behind a deletion, and a
//! client that asks learns of the deletion: the oracles of chains and of logs judge the first two, and this file checks the third.

use std::time::Duration;

use atoll_core::testing::hit;
use atoll_log::virtual_log::LogError;

use super::log::{create, live};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::fault::Fault;

/// Deletes a log and creates it anew, again and again; its node may die in the middle.
pub async fn deleter(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        if delete_once(&stage, &name).await {
            hit("sim.deleted");
            is_told(&stage, &name).await;
        }
        stage.pause(Duration::from_millis(stage.below(300))).await;
        // The log may be deleted although no answer said so.
        create(&stage, &name).await;
        stage.report();
    }
}

/// True if the deletion was answered, and it was this one that did it.
async fn delete_once(stage: &Stage<NodeHandles>, name: &str) -> bool {
    let Some(life) = live(stage, stage.below(64) as usize) else { return false };
    let Some(log) = life.handles.log(name) else { return false };
    if stage.below(4) == 0 {
        let host = life.node.0 as usize - 1;
        let back_after = 50_000_000 + stage.below(500_000_000);
        stage.cluster.inject(Fault::CrashAfterFrames { host, frames: stage.below(40), back_after });
    }
    // From here on, any position up to the tail may be gone.
    stage.oracles.log.trim_begins(name, u64::MAX);
    matches!(stage.cluster.ask(&life, log.delete()).await, Some(Ok(Ok(true))))
}

/// Any node says that the log is deleted, or nothing.
async fn is_told(stage: &Stage<NodeHandles>, name: &str) {
    let Some(life) = live(stage, stage.below(64) as usize) else { return };
    let Some(log) = life.handles.log(name) else { return };
    match stage.cluster.ask(&life, log.check_tail()).await {
        Some(Ok(Ok(tail))) => {
            stage
                .cluster
                .fail(format!("V24: node {} gives the tail {tail} of {name}, which was deleted", life.node));
        }
        Some(Ok(Err(LogError::Deleted))) => hit("sim.deleted.told"),
        _ => {}
    }
}

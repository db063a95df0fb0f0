//! Clients that delete logs. The oracles of chains and logs check that positions are never reused and that nothing is acknowledged after a
//! deletion. This file checks that a client that uses the log learns of the deletion (vlog-V24).

use std::time::Duration;

use atoll_core::testing::hit;
use atoll_log::virtual_log::LogError;

use super::log::{create, live};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::fault::Fault;

/// Deletes a log and creates it again, repeatedly. The node may die during the deletion.
pub async fn deleter(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        if delete_once(&stage, &name).await {
            hit("sim.deleted");
            is_told(&stage, &name).await;
        }
        stage.pause(Duration::from_millis(stage.below(300))).await;
        // The log may be deleted even if no answer said so.
        create(&stage, &name).await;
        stage.report();
    }
}

/// Deletes the log. Returns true if an answer said that this call deleted it.
async fn delete_once(stage: &Stage<NodeHandles>, name: &str) -> bool {
    let Some(life) = live(stage, stage.below(64) as usize) else { return false };
    let Some(log) = life.handles.log(name) else { return false };
    if stage.below(4) == 0 {
        let host = life.node.0 as usize - 1;
        let back_after = 50_000_000 + stage.below(500_000_000);
        stage.cluster.inject(Fault::CrashAfterFrames { host, frames: stage.below(40), back_after });
    }
    // From here on, every position may be trimmed.
    stage.oracles.log.trim_begins(name, u64::MAX);
    matches!(stage.cluster.ask(&life, log.delete()).await, Some(Ok(Ok(true))))
}

/// Checks that a tail check through any node returns no tail: the node reports the deletion, or another error.
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

//! Background work on tables, such as building an index: steps that are proposed one by one.

use std::time::Duration;

use atoll_core::codec::Encode;
use atoll_door::backend::Refusal;
use atoll_tables::{Body, Command, Pending, pending};
use bytes::Bytes;

use crate::convert;
use crate::handle::TablesHandle;
use crate::propose::propose;

/// How often a node checks whether background work has stalled. The node that received the request does the work at once, so this interval
/// matters only if that node is gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of rows in one step of background work. Other commands are applied between two steps.
const STEP_ROWS: u32 = 128;

/// Does background work that was requested at this node, or that makes no progress at other nodes.
pub(crate) async fn keep_up(tables: &TablesHandle) {
    let mut last: Vec<Pending> = Vec::new();
    loop {
        let asked = tokio::time::timeout(LOOK_EVERY, tables.kick.notified()).await.is_ok();
        let Ok(waiting) = pending(&tables.engine.view()) else { continue };
        if waiting.is_empty() || !(asked || waiting.iter().any(|one| last.contains(one))) {
            last = waiting;
            continue;
        }
        if let Err(error) = work(tables).await {
            tracing::warn!(error = %error.failure, "tables: background work is delayed");
        }
        last.clear();
    }
}

/// Proposes steps until no background work is pending.
async fn work(tables: &TablesHandle) -> Result<(), Refusal> {
    // The work of the last step, and the key where the next step continues.
    let mut came: Option<(u32, u16, Bytes)> = None;
    loop {
        let waiting = pending(&tables.engine.view()).map_err(|e| convert::store_refusal(&e))?;
        let Some(Pending { table, index, mut from }) = waiting.into_iter().next() else { return Ok(()) };
        if let Some((of, at, to)) = came.take().filter(|_| from.is_empty())
            && (of, at) == (table, index)
        {
            from = to;
        }
        let body = Body::Step { table, index, from, rows: STEP_ROWS };
        let command = Command { client: 0, seq: 0, body };
        let done = propose(&tables.engine, command.to_bytes()).await?.done;
        let to = done.read.and_then(|read| read.into_iter().flatten().next());
        came = to.map(|to| (table, index, to));
    }
}

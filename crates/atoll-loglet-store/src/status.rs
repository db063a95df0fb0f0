//! Asks servers of Loglets for their state. A request names some Loglets, never all that a server keeps, which may be a million.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_contract::{Extent, LogletId, Progress, Remains};
use atoll_core::level::since;
use atoll_core::{Env, NodeId, RoleKind};

use crate::message::{Delete, LogletStatus, STATUS_PAGE, Status, StatusOf, Verdict};

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// The most pages that are requested from one server.
const MAX_PAGES: usize = 1000;

/// Returns the status of these Loglets on one server; None if it does not answer. Loglets that it does not have are left out.
pub async fn ask_status(
    env: &Env,
    node: NodeId,
    role: RoleKind,
    loglets: &[LogletId],
) -> Option<BTreeMap<LogletId, LogletStatus>> {
    // An older program refuses a request for some Loglets, so request all of them. This node's own program is not older.
    if node != env.node() && !env.levels().allows(since::STATUS_OF) {
        return ask_all(env, node, role).await;
    }
    let mut all = BTreeMap::new();
    for part in loglets.chunks(STATUS_PAGE) {
        let asked = env.call_role(node, role, StatusOf { loglets: part.to_vec() });
        let page = env.within(ANSWER, asked).await.ok()?.ok()?;
        all.extend(page.loglets.into_iter().map(|l| (l.loglet, l)));
    }
    Some(all)
}

async fn ask_all(env: &Env, node: NodeId, role: RoleKind) -> Option<BTreeMap<LogletId, LogletStatus>> {
    let mut all = BTreeMap::new();
    let mut above = None;
    for _ in 0..MAX_PAGES {
        let page = env.within(ANSWER, env.call_role(node, role, Status { above })).await.ok()?.ok()?;
        above = page.loglets.last().map(|l| l.loglet);
        all.extend(page.loglets.into_iter().map(|l| (l.loglet, l)));
        if !page.more || above.is_none() {
            break;
        }
    }
    Some(all)
}

/// Returns how far a server is with an extent, according to its status of the Loglet. None means that it has nothing of the Loglet.
pub fn progress_of(status: Option<&LogletStatus>, extent: &Extent) -> Progress {
    let (from, to) = (extent.range.start, extent.range.end);
    let Some(status) = status else { return Progress { has_up_to: from, lacks: to.since(from) } };
    // What the server counts as missing is below its known tail; above that, it has everything below its local tail.
    let seen = status.state.known_tail.max(from).min(to);
    let held_above = status.state.local_tail.min(to).since(seen);
    let lacks = status.missing.min(to.since(from)) + to.since(seen).saturating_sub(held_above);
    let has_up_to = if status.missing > 0 { from } else { seen.max(status.state.local_tail.min(to)) };
    Progress { has_up_to, lacks }
}

/// Returns Loglets above this one that a role of this node keeps, in the order of their ids, and whether there are more. None if the role
/// does not answer.
pub async fn held_here(env: &Env, role: RoleKind, above: Option<LogletId>) -> Option<(Vec<LogletId>, bool)> {
    let page = env.within(ANSWER, env.call_role(env.node(), role, Status { above })).await.ok()?.ok()?;
    Some((page.loglets.into_iter().map(|l| l.loglet).collect(), page.more))
}

/// Returns what a role of this node keeps of a Loglet.
pub async fn remains_here(env: &Env, role: RoleKind, loglet: LogletId) -> Option<Remains> {
    let all = ask_status(env, env.node(), role, &[loglet]).await?;
    let LogletStatus { state, missing, .. } = all.get(&loglet)?;
    let range = state.trim..state.local_tail.max(state.known_tail);
    Some(Remains { range, missing: *missing, acknowledged: state.known_tail })
}

/// Tells a role of this node to delete a Loglet, and returns whether the tombstone is durable. False means that it is unknown.
pub async fn delete_here(env: &Env, role: RoleKind, loglet: LogletId, patience: Duration) -> bool {
    let asked = env.call_role(env.node(), role, Delete { loglet });
    let answer = env.within(patience, asked).await.ok().and_then(Result::ok);
    answer.is_some_and(|a| a.verdict == (Verdict::Done {}))
}

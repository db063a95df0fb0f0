//! How the logs and servers stand: asked of every LogServer, held against the chains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{Env, NodeId, RoleKind, roles};
use atoll_log::virtual_log::{Segment, VirtualLog};
use atoll_log::{LogPos, LogletId};
use atoll_loglets::native::message::{LogletStatus, Status};

use crate::logs::Logs;
use crate::members::Members;

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// The kind of Loglet that no LogServer holds.
const LOCAL: &str = "local";
/// Most pages that are asked of one server.
const MAX_PAGES: usize = 1000;

/// What every server that answered said of its loglets.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    servers: BTreeMap<NodeId, BTreeMap<LogletId, LogletStatus>>,
}

/// How far one server is with one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The first position that it does not have in order; None if it did not answer.
    pub has_up_to: Option<LogPos>,
    /// Readable positions of the segment that it lacks.
    pub lacks: u64,
}

impl Survey {
    /// Asks all members with a LogServer that are believed to be up.
    pub async fn take(env: &Env, members: &Members) -> Survey {
        let nodes: Vec<NodeId> = atoll_core::Directory::candidates(members)
            .into_iter()
            .filter(|c| c.log && c.alive)
            .map(|c| c.node)
            .collect();
        let mut waits = Vec::new();
        for node in nodes {
            let env2 = env.clone();
            waits.push((node, env.launch("survey.ask", async move { ask(&env2, node).await })));
        }
        let mut servers = BTreeMap::new();
        for (node, wait) in waits {
            if let Ok(Some(loglets)) = wait.await {
                servers.insert(node, loglets);
            }
        }
        Survey { servers }
    }

    /// Asks one server.
    pub async fn of(env: &Env, node: NodeId) -> Survey {
        Survey { servers: ask(env, node).await.map(|loglets| (node, loglets)).into_iter().collect() }
    }

    /// Whether a server answered.
    pub fn answered(&self, node: NodeId) -> bool {
        self.servers.contains_key(&node)
    }

    /// How far a server is with a segment whose readable part is `[from, to)`.
    pub fn progress(&self, node: NodeId, segment: &Segment, from: LogPos, to: LogPos) -> Progress {
        let Some(loglets) = self.servers.get(&node) else {
            return Progress { has_up_to: None, lacks: 0 };
        };
        // The LogServer knows nothing of it; its one node has it all or does not answer.
        if segment.kind == LOCAL {
            return Progress { has_up_to: Some(to), lacks: 0 };
        }
        let (from_offset, to_offset) = (segment.offset_of(from), segment.offset_of(to));
        let Some(status) = loglets.get(&segment.loglet) else {
            return Progress { has_up_to: Some(from), lacks: to.since(from) };
        };
        // What the server counts as missing lies below its known tail; above it, it has what is below its local tail.
        let seen = status.state.known_tail.max(from_offset).min(to_offset);
        let held_above = status.state.local_tail.min(to_offset).since(seen);
        let lacks = status.missing.min(to.since(from)) + to_offset.since(seen).saturating_sub(held_above);
        let has =
            if status.missing > 0 { from_offset } else { seen.max(status.state.local_tail.min(to_offset)) };
        Progress { has_up_to: Some(segment.position_of(has)), lacks }
    }
}

async fn ask(env: &Env, node: NodeId) -> Option<BTreeMap<LogletId, LogletStatus>> {
    ask_role(env, node, roles::LOG_SERVER).await
}

/// The Loglets that a role of this node keeps; none if it does not answer.
pub async fn held_here(env: &Env, role: RoleKind) -> Vec<LogletId> {
    ask_role(env, env.node(), role).await.map_or(Vec::new(), |all| all.into_keys().collect())
}

async fn ask_role(env: &Env, node: NodeId, role: RoleKind) -> Option<BTreeMap<LogletId, LogletStatus>> {
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

/// The segments of a log's chain itself, with the nodes that hold them, and the readable range of each. Those in index pages are not
/// among them: see [`atoll_log::Chain::pages`].
pub fn segments(logs: &Logs, log: &VirtualLog) -> Vec<(Segment, Vec<NodeId>, LogPos, LogPos)> {
    let Some(chain) = log.chain() else { return Vec::new() };
    let tail = log.known_tail();
    let trim = chain.chain.trim();
    chain
        .chain
        .segments()
        .iter()
        .map(|segment| {
            let servers = logs.registry().provider(&segment.kind).map_or(Vec::new(), |p| {
                p.members(&segment.config).servers.into_iter().map(|(n, _)| n).collect()
            });
            let to = segment.stop.unwrap_or(tail).max(segment.start);
            (segment.clone(), servers, segment.start.max(trim).min(to), to)
        })
        .collect()
}

/// What a node still holds of the logs, in words; None if nothing: it may be removed.
pub fn held_by(logs: &Logs, opened: &[Arc<VirtualLog>], node: NodeId) -> Option<String> {
    let mut entries: u64 = 0;
    let mut example = None;
    for log in opened {
        for (segment, servers, from, to) in segments(logs, log) {
            if servers.contains(&node) && (from < to || segment.stop.is_none()) {
                entries += 1;
                example.get_or_insert_with(|| log.name().to_owned());
            }
        }
        // A page that does not say where its segments are may hold some of this node's.
        let chain = log.chain();
        let pages = chain.iter().flat_map(|c| c.chain.pages());
        for page in pages.filter(|p| p.may_be_on(|holder, _| holder == node)) {
            entries += page.segments;
            example.get_or_insert_with(|| log.name().to_owned());
        }
    }
    example.map(|name| format!("{entries} segments, of log {name:?} among others"))
}

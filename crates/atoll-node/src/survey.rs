//! Surveys the state of logs and servers. The LogServers are asked for the Loglets of the chains, never for all that they keep, which may
//! be a million.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{LogPos, LogletId};
use atoll_core::level::since;
use atoll_core::{Env, NodeId, RoleKind};
use atoll_log::virtual_log::Segment;
use atoll_native::message::{LogletStatus, STATUS_PAGE, Status, StatusOf};

use crate::logs::{Known, Logs};
use crate::members::Members;
use atoll_native::roles::LOG_SERVER;

/// How long a server may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// The kind of Loglet that no LogServer holds.
const LOCAL: &str = "local";
/// How long a register may take to answer.
const READ: Duration = Duration::from_secs(2);
/// Chains that are read at the same time.
const READ_AT_ONCE: usize = 32;
/// Most pages that are asked of one server.
const MAX_PAGES: usize = 1000;

/// What every server that answered reported about its loglets.
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
    /// Asks all members with a LogServer that are believed to be up for these Loglets.
    pub async fn take(env: &Env, members: &Members, loglets: Vec<LogletId>) -> Survey {
        // An older program would refuse a request for some Loglets, so it is asked for all of them.
        let named = env.levels().allows(since::STATUS_OF).then(|| Arc::new(loglets));
        let nodes: Vec<NodeId> = atoll_core::Directory::candidates(members)
            .into_iter()
            .filter(|c| c.log && c.alive)
            .map(|c| c.node)
            .collect();
        let mut waits = Vec::new();
        for node in nodes {
            let (env2, named) = (env.clone(), named.clone());
            let ask = async move {
                match named {
                    Some(loglets) => ask_for(&env2, node, &loglets).await,
                    None => ask_all(&env2, node).await,
                }
            };
            waits.push((node, env.launch("survey.ask", ask)));
        }
        let mut servers = BTreeMap::new();
        for (node, wait) in waits {
            if let Ok(Some(loglets)) = wait.await {
                servers.insert(node, loglets);
            }
        }
        Survey { servers }
    }

    /// Asks this node's own server for these Loglets.
    pub async fn here(env: &Env, loglets: &[LogletId]) -> Survey {
        let node = env.node();
        let answer = ask_for(env, node, loglets).await;
        Survey { servers: answer.map(|loglets| (node, loglets)).into_iter().collect() }
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

/// Some of the Loglets that a role of this node keeps, in the order of their ids and above the given one, and whether there are more. Empty
/// if the role does not answer.
pub async fn held_here(env: &Env, role: RoleKind, above: Option<LogletId>) -> (Vec<LogletId>, bool) {
    let answer = env.within(ANSWER, env.call_role(env.node(), role, Status { above })).await;
    match answer {
        Ok(Ok(page)) => (page.loglets.into_iter().map(|l| l.loglet).collect(), page.more),
        _ => (Vec::new(), false),
    }
}

/// Asks a node for the status of these Loglets. A Loglet that is missing from the answer is not on that node.
async fn ask_for(env: &Env, node: NodeId, loglets: &[LogletId]) -> Option<BTreeMap<LogletId, LogletStatus>> {
    let mut all = BTreeMap::new();
    for part in loglets.chunks(STATUS_PAGE) {
        let page = env
            .within(ANSWER, env.call_role(node, LOG_SERVER, StatusOf { loglets: part.to_vec() }))
            .await
            .ok()?
            .ok()?;
        all.extend(page.loglets.into_iter().map(|l| (l.loglet, l)));
    }
    Some(all)
}

async fn ask_all(env: &Env, node: NodeId) -> Option<BTreeMap<LogletId, LogletStatus>> {
    let mut all = BTreeMap::new();
    let mut above = None;
    for _ in 0..MAX_PAGES {
        let page = env.within(ANSWER, env.call_role(node, LOG_SERVER, Status { above })).await.ok()?.ok()?;
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
pub fn segments(logs: &Logs, log: &Known) -> Vec<(Segment, Vec<NodeId>, LogPos, LogPos)> {
    let (chain, tail) = (&log.chain.chain, log.tail);
    let trim = chain.trim();
    chain
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

/// Describes what a node still holds of any log, judged by the chains that this node has cached. None if it holds nothing.
pub fn held_by(logs: &Logs, node: NodeId) -> Option<String> {
    let mut held = Held::default();
    logs.known().iter().for_each(|log| held.count(logs, log, node));
    held.words()
}

/// Describes what a node still holds of any log of the cluster. None if it holds nothing and may be removed. Reads every chain again,
/// because a cached one may date from before a segment was placed on the node. A chain that cannot be read counts as holding something
/// (vlog-V23).
pub async fn held_afresh(env: &Env, logs: &Logs, node: NodeId) -> Option<String> {
    let Ok(Ok(Ok(names))) = env.within(READ, logs.list()).await else {
        return Some("logs, maybe: the list of logs could not be read".to_owned());
    };
    let mut held = Held::default();
    for part in names.chunks(READ_AT_ONCE) {
        let asked: Vec<_> = part.iter().map(|name| (name, logs.read(name))).collect();
        for (name, asked) in asked {
            match env.within(READ, asked).await {
                Ok(Ok(Ok(known))) => held.count(logs, &known, node),
                _ => return Some(format!("log {name:?}, maybe: its chain could not be read")),
            }
        }
    }
    held.words()
}

/// Sums over logs.
#[derive(Debug, Default)]
struct Held {
    segments: u64,
    sequencers: u64,
    example: Option<String>,
}

impl Held {
    fn count(&mut self, logs: &Logs, log: &Known, node: NodeId) {
        let chain = &log.chain.chain;
        let trim = chain.trim();
        for segment in chain.segments() {
            let Ok(provider) = logs.registry().provider(&segment.kind) else { continue };
            let members = provider.members(&segment.config);
            let readable = segment.stop.is_none_or(|stop| segment.start.max(trim) < stop);
            let server = readable && members.servers.iter().any(|(n, _)| *n == node);
            let sequencer = segment.stop.is_none() && members.sequencer.is_some_and(|(n, _)| n == node);
            self.segments += u64::from(server);
            self.sequencers += u64::from(sequencer);
            if server || sequencer {
                self.example.get_or_insert_with(|| log.name.clone());
            }
        }
        // A page that does not say where its segments are may hold some of this node's.
        for page in chain.pages().iter().filter(|p| p.may_be_on(|holder, _| holder == node)) {
            self.segments += page.segments;
            self.example.get_or_insert_with(|| log.name.clone());
        }
    }

    fn words(self) -> Option<String> {
        let (segments, sequencers) = (self.segments, self.sequencers);
        self.example.map(|name| {
            format!("{segments} segments and {sequencers} sequencers, of log {name:?} among others")
        })
    }
}

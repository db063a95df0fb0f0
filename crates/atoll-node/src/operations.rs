//! Implements the cluster service's operations: status, and membership changes.

use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto;
use atoll_contract::{Binding, Duty};
use atoll_core::{Abandoned, Directory, Level, NodeId};
use atoll_door::backend::{Operations, Pending, Refusal};
use atoll_log::Chain;
use atoll_log::chain::MAX_CHAIN_BYTES;

use crate::ask_logs::{Answer, NoAnswer, ask_all};
use crate::assembly::NodeParts;
use crate::duties::duties;
use crate::logs::{Known, Logs};
use crate::members::Health;
use crate::members::change::ChangeError;
use crate::members::table::{Member, RoleSet};
use crate::members::upgrade::{LevelReport, UpgradeError};
use crate::survey::{self, Survey};

/// How long a drain waits until the node is empty, before it reports what is left.
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// How often a drain checks what this node has cached.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// How often a drain reads all chains afresh.
const DRAIN_LOOK_AFRESH: Duration = Duration::from_millis(500);

/// The operations of a node. See the module documentation.
pub struct NodeOperations {
    parts: NodeParts,
}

impl NodeOperations {
    /// Creates it over a node's parts.
    pub fn new(parts: NodeParts) -> Self {
        NodeOperations { parts }
    }

    /// Runs `f`, which changes nothing, on the node's executor.
    fn ask<T: Send + 'static>(
        &self,
        name: &'static str,
        f: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Pending<T> {
        let ticket = self.parts.env.launch(name, f);
        Box::pin(async move { ticket.await.unwrap_or_else(|_| Err(Refusal::stopping())) })
    }

    /// Runs `f`, which may change something, on the node's executor, so that it continues if the client disconnects (X8). If the node stops
    /// meanwhile, the outcome is unknown.
    fn change<T: Send + 'static>(
        &self,
        name: &'static str,
        f: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Pending<T> {
        let ticket = self.parts.env.launch(name, f);
        Box::pin(async move { ticket.await.unwrap_or_else(|gone| Err(interrupted(gone))) })
    }
}

/// Returns the refusal of a node that stopped in the middle of a change.
fn interrupted(gone: Abandoned) -> Refusal {
    Refusal::unknown(
        Reason::Abandoned,
        gone.to_string(),
        "check with `atoll status`; the request may be repeated",
    )
}

fn refusal(error: &ChangeError) -> Refusal {
    let words = error.to_string();
    match error {
        ChangeError::Register(atoll_contract::RegisterError::Unknown(_)) => {
            Refusal::unknown(Reason::Unavailable, words, "ask again; the request may be repeated")
        }
        ChangeError::Register(_) | ChangeError::Contended => {
            Refusal::no(Reason::Unavailable, words, "try again when a majority of nodes is up")
        }
        ChangeError::Unreadable(_) => {
            Refusal::no(Reason::Refused, words, "was it written by a newer version of this program?")
        }
        // The cluster's current state forbids the request. It may be allowed later.
        ChangeError::NotAMember(_)
        | ChangeError::IdTaken { .. }
        | ChangeError::AddressTaken { .. }
        | ChangeError::HasOtherRoles { .. }
        | ChangeError::UnexpectedRoles { .. }
        | ChangeError::TooMany
        | ChangeError::InUse { .. }
        | ChangeError::LastOne(..)
        | ChangeError::TooFewLeft { .. } => Refusal::no(Reason::Refused, words, ""),
    }
}

fn upgrade_refusal(error: &UpgradeError) -> Refusal {
    let words = error.to_string();
    match error {
        UpgradeError::Table(error) => refusal(error),
        UpgradeError::NotRead { .. } => {
            Refusal::no(Reason::Refused, words, "`atoll cluster level` shows what each member reads")
        }
        UpgradeError::Lower { .. } | UpgradeError::Level(_) => Refusal::no(Reason::Refused, words, ""),
    }
}

fn levels_reply(report: &LevelReport) -> proto::LevelsReply {
    let member = |node: &NodeId| {
        let reads = report.table.range_of(*node);
        proto::MemberLevels {
            node: node.0,
            lowest: reads.lowest.0.into(),
            highest: reads.highest.0.into(),
            announced: report.table.announced.contains_key(node),
        }
    };
    proto::LevelsReply {
        active: report.table.active.0.into(),
        possible: report.possible.0.into(),
        members: report.members.nodes.keys().map(member).collect(),
        changed: report.raised,
        founding: report.table.founding,
    }
}

fn info(parts: &NodeParts, node: NodeId, row: &Member, expected: Option<&RoleSet>) -> proto::NodeInfo {
    let me = parts.members.identity();
    let mine = node == me.node;
    let life = parts.members.liveness(node);
    let heard = mine || life.as_ref().is_some_and(|l| l.incarnation.is_some());
    let alive = mine || life.as_ref().is_some_and(|l| l.alive);
    let halted = !parts.members.halted_on(node).is_empty();
    let disk = parts.members.health_of(node).0.words();
    let (state, reason) = match () {
        () if !row.has_joined() => ("down", "it has not joined yet"),
        () if !heard => ("down", "nothing was heard of it"),
        () if !alive && parts.members.is_up(node) => ("suspect", "this node does not reach it; others do"),
        () if !alive => ("suspect", "it does not answer"),
        () if disk.is_some() => disk.unwrap_or_default(),
        () if halted => {
            ("halted", "its replica of the database is out of service; `atoll database status` says why")
        }
        () if row.draining => ("draining", "an operator wants it empty"),
        () if life.as_ref().is_some_and(|l| l.leaving) => ("draining", "it is about to stop"),
        () if life.as_ref().is_some_and(|l| l.lost_by_gossip) => ("suspect", "other nodes have lost it"),
        () => ("up", ""),
    };
    // Until the member has joined, these are the roles that it must join with.
    let roles = expected.map_or_else(|| row.roles(), RoleSet::clone);
    let incarnation = if mine { Some(me.incarnation) } else { life.and_then(|l| l.incarnation) };
    proto::NodeInfo {
        id: node.0,
        address: row.peer.clone(),
        grpc: row.grpc.clone(),
        metrics: row.metrics.clone(),
        roles: roles.names().into_iter().map(str::to_owned).collect(),
        state: state.to_owned(),
        reason: reason.to_owned(),
        incarnation: incarnation.map(|i| i.to_string()).unwrap_or_default(),
        storage: if row.has_joined() { row.storage.to_string() } else { String::new() },
    }
}

/// Whether a node needs an operator's attention: its journal is closed, its disk hangs, or its replica is out of service.
fn needs_hands(parts: &NodeParts, node: NodeId) -> bool {
    parts.members.health_of(node).0 >= Health::Hanging || !parts.members.halted_on(node).is_empty()
}

fn infos(parts: &NodeParts) -> Vec<proto::NodeInfo> {
    let table = parts.members.table();
    table.nodes.iter().map(|(node, row)| info(parts, *node, row, table.expected.get(node))).collect()
}

fn log_info(parts: &NodeParts, survey: &Survey, log: &Known) -> proto::LogInfo {
    let chain = &log.chain;
    let active = chain.chain.active();
    let provider = parts.logs.registry().provider(&active.kind).ok();
    let of_active = provider.map(|p| p.duties(&active.config)).unwrap_or_default();
    let mut servers: std::collections::BTreeMap<NodeId, proto::ServerProgress> = Default::default();
    let mut silent = Vec::new();
    for survey::Readable { segment, duties, from, to } in survey::segments(&parts.logs, log) {
        if from == to && segment.stop.is_some() {
            continue;
        }
        for (node, _) in duties.holders() {
            let progress = survey.progress(node, &segment);
            let row = servers.entry(node).or_insert(proto::ServerProgress {
                node: node.0,
                has_up_to: None,
                lacks: 0,
            });
            match progress {
                Some((has_up_to, lacks)) => {
                    row.lacks += lacks;
                    row.has_up_to = Some(has_up_to.0);
                }
                None if segment.stop.is_none() => silent.push(node),
                None => {}
            }
        }
    }
    let is_silent =
        |duty: &&Duty| matches!(duty.binding, Binding::Orders(_)) && !parts.members.is_up(duty.node);
    let silent_orderer = of_active.0.iter().find(is_silent);
    let of = servers.len().max(1);
    let count =
        |bad: fn(Health) -> bool| servers.keys().filter(|n| bad(parts.members.health_of(**n).0)).count();
    let full = count(|h| h == Health::Full);
    let failing = count(|h| h != Health::Fine);
    let reason = if let Some(Duty { role, node, .. }) = silent_orderer {
        format!("its {role} on node {node} does not answer")
    } else if full * 2 > of {
        "the disks of a majority of its servers are full: appends are refused".to_owned()
    } else if failing * 2 > of {
        "the disks of a majority of its servers fail: appends are refused".to_owned()
    } else if silent.len() * 2 > of {
        "a majority of its servers does not answer".to_owned()
    } else if let Some(words) = parts.places.trouble(&log.name) {
        words
    } else {
        chain_is_nearly_full(&parts.logs, &chain.chain)
    };
    proto::LogInfo {
        name: log.name.clone(),
        tail: log.tail.0,
        trim: chain.chain.trim().0,
        chain_version: chain.version.0,
        segments: u32::try_from(chain.chain.segment_count()).unwrap_or(u32::MAX),
        loglet_kind: active.kind.clone(),
        sequencer: of_active.sequencers().next().map(|(node, _)| node.0),
        servers: servers.into_values().collect(),
        healthy: reason.is_empty(),
        reason,
        chain_bytes: chain.chain.size_bytes() as u64,
        chain_bytes_max: MAX_CHAIN_BYTES as u64,
        duties: provider.map(|p| duties(&**p, &active.config)).unwrap_or_default(),
        last_action: last_action(parts, &log.name),
        registers: parts.places.of(&log.name).map(|at| at.place).unwrap_or_default(),
    }
}

/// Returns what nodes last did to a log by themselves, or could not do, because of its policy or because its shards are full.
fn last_action(parts: &NodeParts, log: &str) -> String {
    let of_policy = parts.log_policies.last_action(log);
    let of_shards = parts.shard_adder.added().last.remove(log).unwrap_or_default();
    let words = [of_shards, of_policy].into_iter().filter(|words| !words.is_empty());
    words.collect::<Vec<_>>().join("; ")
}

/// Returns what an operator should do before the chain is full, or an empty string while there is room.
fn chain_is_nearly_full(logs: &Logs, chain: &Chain) -> String {
    let (segments, most) = (chain.segments().len(), logs.max_segments());
    let bytes = chain.size_bytes();
    if segments * 4 > most * 3 || bytes * 2 > MAX_CHAIN_BYTES {
        return format!(
            "its chain has {segments} of {most} segments and {bytes} of {MAX_CHAIN_BYTES} bytes: trim it"
        );
    }
    String::new()
}

/// Marks what is known about a log as not fresh, and adds the reason.
fn not_fresh(parts: &NodeParts, info: proto::LogInfo, why: NoAnswer) -> proto::LogInfo {
    let silent = |place| format!("its chain, in the registers {place:?}, was not read within 1 s");
    let elsewhere = || parts.places.of(&info.name).map(|at| silent(at.place));
    let reason = match (why, parts.places.trouble(&info.name).or_else(elsewhere)) {
        (NoAnswer::Chain, Some(words)) => words,
        _ if info.reason.is_empty() => why.to_string(),
        _ => format!("{}; {why}", info.reason),
    };
    proto::LogInfo { healthy: false, reason, ..info }
}

async fn status(parts: NodeParts) -> Result<proto::StatusReply, Refusal> {
    let names = parts.env.within(Duration::from_secs(1), parts.logs.list()).await;
    let listed = matches!(names, Ok(Ok(Ok(_))));
    let names = match names {
        Ok(Ok(Ok(names))) => names,
        // The registers do not answer, so use the logs that this node knows.
        _ => parts.logs.known().into_iter().map(|log| log.name).collect(),
    };
    let answers = ask_all(&parts.env, &parts.logs, names).await;
    let known = answers.values().filter_map(|answer| answer.known.as_ref());
    let segments: Vec<_> = known.flat_map(|log| survey::segments(&parts.logs, log)).collect();
    let survey = Survey::take(&parts.env, &parts.members, parts.logs.registry(), &segments).await;
    let mut logs = Vec::new();
    for (name, Answer { known, silent }) in answers {
        let info = match known {
            Some(known) => log_info(&parts, &survey, &known),
            None => proto::LogInfo { name, ..proto::LogInfo::default() },
        };
        logs.push(match silent {
            Some(why) => not_fresh(&parts, info, why),
            None => info,
        });
    }
    let me = parts.members.identity();
    let broken = parts.members.table().nodes.keys().any(|n| needs_hands(&parts, *n));
    Ok(proto::StatusReply {
        node: me.node.0,
        healthy: listed && !broken && logs.iter().all(|l| l.healthy),
        nodes: infos(&parts),
        logs,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

fn reply(parts: &NodeParts, node: NodeId, changed: bool) -> proto::NodeReply {
    let table = parts.members.table();
    let row = table.nodes.get(&node).map(|row| info(parts, node, row, table.expected.get(&node)));
    proto::NodeReply { node: row, changed }
}

/// Marks the node as draining, moves its replicas of keyspaces, then waits until it holds nothing: no readable entries, no sequencer, no
/// registers. If that takes too long, the outcome is unknown: the mark stays and the work continues. It is refused if the replicas of a
/// keyspace have nowhere to go.
async fn drain(parts: NodeParts, node: NodeId) -> Result<proto::NodeReply, Refusal> {
    let members: Vec<NodeId> = parts.members.candidates().iter().map(|candidate| candidate.node).collect();
    if parts.keyspaces.held_by(node).await.is_some() {
        parts.keyspaces.may_vacate(node, &members).await.map_err(|error| {
            let words = format!("node {node} holds replicas of keyspaces, which cannot move: {error}");
            let next = "add a node, start those that are down, or delete these keyspaces first (`atoll kv describe` shows their nodes)";
            Refusal::no(Reason::Refused, words, next)
        })?;
    }
    let (_, changed) = parts.changes.drain(node).await.map_err(|e| refusal(&e))?;
    let until = parts.env.now().after(DRAIN_WITHIN);
    let mut look_afresh = parts.env.now();
    loop {
        let mut what = left(&parts, node);
        // What this node has cached may be too old, in either direction.
        if what.is_none() || parts.env.now() >= look_afresh {
            // What does not move now is still there afterwards, and is tried again.
            let _ = parts.keyspaces.vacate(node, &members).await;
            what = left_afresh(&parts, node).await;
            look_afresh = parts.env.now().after(DRAIN_LOOK_AFRESH);
        }
        match what {
            None => return Ok(reply(&parts, node, changed)),
            Some(what) if parts.env.now() >= until => {
                let words = format!("node {node} is marked, and still holds {what}");
                return Err(Refusal::unknown(
                    Reason::Unavailable,
                    words,
                    "it continues in the background; check with `atoll status`",
                ));
            }
            Some(_) => parts.env.sleep(DRAIN_LOOK).await,
        }
    }
}

/// Describes what a node still holds of the registers, of keyspaces or of any log, according to chains that this call reads afresh. None
/// if it holds nothing.
async fn left_afresh(parts: &NodeParts, node: NodeId) -> Option<String> {
    if let Some(registers) = registers_left(parts, node) {
        return Some(registers);
    }
    match parts.keyspaces.held_by(node).await {
        None => survey::held_afresh(&parts.env, &parts.logs, node).await,
        replicas => replicas,
    }
}

fn registers_left(parts: &NodeParts, node: NodeId) -> Option<String> {
    parts.registers.holders()?.nodes.contains(&node).then(|| "registers".to_owned())
}

/// Like [`left_afresh`], but according to what this node has cached.
fn left(parts: &NodeParts, node: NodeId) -> Option<String> {
    if let Some(registers) = registers_left(parts, node) {
        return Some(registers);
    }
    if !parts.guardian.sequenced_by(node).is_empty() {
        return Some("sequencers".to_owned());
    }
    survey::held_by(&parts.logs, node)
}

impl Operations for NodeOperations {
    fn status(&self) -> Pending<proto::StatusReply> {
        self.ask("operations.status", status(self.parts.clone()))
    }

    fn nodes(&self) -> Pending<Vec<proto::NodeInfo>> {
        let parts = self.parts.clone();
        self.ask("operations.nodes", async move {
            // If this fails, an old table is better than none.
            let _ = parts.changes.refresh().await;
            Ok(infos(&parts))
        })
    }

    fn add_node(&self, request: proto::NodeAddRequest) -> Pending<proto::NodeReply> {
        let parts = self.parts.clone();
        self.change("operations.add", async move {
            let node = NodeId(request.id);
            let good_port = request.address.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
            if node.0 == 0 || !good_port {
                let words =
                    format!("node {node} at {:?}: an id is above 0, an address HOST:PORT", request.address);
                return Err(Refusal::no(Reason::Invalid, words, ""));
            }
            let roles = RoleSet::named(&request.roles).ok_or_else(|| {
                let words = format!("roles {:?}: allowed are log, sequencer and meta", request.roles);
                Refusal::no(Reason::Invalid, words, "")
            })?;
            let roles = Some(roles).filter(|_| !request.roles.is_empty());
            let added = parts.changes.add(node, &request.address, roles).await;
            let (_, changed) = added.map_err(|e| refusal(&e))?;
            Ok(reply(&parts, node, changed))
        })
    }

    fn drain_node(&self, node: NodeId) -> Pending<proto::NodeReply> {
        self.change("operations.drain", drain(self.parts.clone(), node))
    }

    fn remove_node(&self, node: NodeId) -> Pending<proto::NodeReply> {
        let parts = self.parts.clone();
        self.change("operations.remove", async move {
            if parts.members.candidates().len() <= 1 {
                return Err(refusal(&ChangeError::LastOne(node, "anything")));
            }
            let gone = reply(&parts, node, true);
            let removed = parts.changes.remove(node, left_afresh(&parts, node).await).await;
            let (_, changed) = removed.map_err(|e| refusal(&e))?;
            Ok(proto::NodeReply { changed, ..gone })
        })
    }

    fn levels(&self) -> Pending<proto::LevelsReply> {
        let parts = self.parts.clone();
        self.ask("operations.levels", async move {
            let report = parts.upgrades.report().await;
            report.map(|r| levels_reply(&r)).map_err(|e| upgrade_refusal(&e))
        })
    }

    fn upgrade(&self, to: Option<Level>) -> Pending<proto::LevelsReply> {
        let parts = self.parts.clone();
        self.change("operations.upgrade", async move {
            let report = parts.upgrades.raise(to).await;
            report.map(|r| levels_reply(&r)).map_err(|e| upgrade_refusal(&e))
        })
    }
}

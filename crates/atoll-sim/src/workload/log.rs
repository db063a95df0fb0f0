//! Clients of virtual logs: they append, check tails, read and trim. Also operators that change the chain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Binding, ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_log::virtual_log::{LogAppendError, LogReadError, LogRecord, Segment};
use atoll_node::members::table::{Member, MemberTable};
use atoll_protocols::duties;
use bytes::Bytes;

use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;

/// The most records that one appender has in flight.
const WINDOW: u64 = 20;

/// An append without an answer.
pub struct Pending {
    /// Its name.
    pub op: OpId,
    /// Its bytes.
    pub payload: Bytes,
    /// The tail that was known before the first attempt. None if there was no attempt yet.
    pub floor: Option<LogPos>,
}

/// Returns the first running node at or after host `at`, wrapping around.
pub fn live(stage: &Stage<NodeHandles>, at: usize) -> Option<Life<NodeHandles>> {
    stage.cluster.any_from(at % stage.cluster.hosts())
}

/// Appends until the load is over. Several records are in flight at a time, all through one node until that node fails. Records without an
/// answer are resent in order, under the same names, through another node.
pub async fn appender(stage: Stage<NodeHandles>, log: String, think: Duration) {
    let client = ClientId(stage.env.random() | 1);
    let mut seq = 0;
    let mut at = stage.below(64) as usize;
    let mut pending: Vec<Pending> = Vec::new();
    while !stage.over.is_up() {
        stage.pause(think).await;
        if stage.below(20) == 0 {
            at = stage.below(64) as usize;
        }
        if pending.is_empty() {
            for _ in 0..1 + stage.below(WINDOW) {
                seq += 1;
                pending.push(record(&stage, client, seq));
            }
        }
        if !round(&stage, &log, &mut at, &mut pending).await {
            at = stage.below(64) as usize;
        }
        stage.report();
    }
}

/// Returns a new record of a client.
pub fn record(stage: &Stage<NodeHandles>, client: ClientId, seq: u64) -> Pending {
    let len = if stage.below(50) == 0 { 2_000 } else { 8 + stage.below(60) };
    let mut payload = Vec::with_capacity(len as usize);
    payload.extend_from_slice(&stage.env.random().to_le_bytes());
    payload.resize(len as usize, seq as u8);
    Pending { op: OpId { client, seq }, payload: payload.into(), floor: None }
}

/// Sends all pending records in order, each as its own submission, and waits for the answers. Returns true if none is pending any more.
pub async fn round(
    stage: &Stage<NodeHandles>,
    name: &str,
    at: &mut usize,
    pending: &mut Vec<Pending>,
) -> bool {
    let Some(life) = live(stage, *at) else { return false };
    let Some(log) = life.handles.log(name) else { return false };
    let mut tickets = Vec::new();
    for p in pending.iter_mut() {
        stage.oracles.log.append_begins(name, p.op, &p.payload);
        let floor = p.floor;
        p.floor.get_or_insert(log.known_tail());
        let record = LogRecord { op: p.op, floor, payload: p.payload.clone() };
        match log.submit(vec![record]) {
            Ok(ticket) => tickets.push(ticket),
            Err(_) => {
                stage.oracles.log.append_refused(name, p.op);
                break;
            }
        }
    }
    let asked = std::mem::take(pending);
    let mut answers = Vec::new();
    for ticket in tickets {
        answers.push(stage.cluster.ask(&life, ticket).await.and_then(Result::ok));
    }
    for (p, answer) in asked.iter().zip(&answers) {
        if let Some(Err(LogAppendError::NotAppended(_))) = answer {
            stage.oracles.log.append_refused(name, p.op);
        }
    }
    let settled_upto = answers.iter().rposition(|a| matches!(a, Some(Ok(_)))).map_or(0, |i| i + 1);
    let mut answers = answers.into_iter();
    for (i, p) in asked.into_iter().enumerate() {
        match answers.next() {
            Some(Some(Ok(positions))) => {
                if let Some(at) = positions.first() {
                    stage.oracles.log.append_done(name, p.op, at.0);
                    stage.acknowledged(name, *at, p.op);
                }
            }
            // Resending it after later records would break the order of the lane, so its outcome stays unknown.
            _ if i < settled_upto => {}
            // The log is trimmed, so the outcome cannot be determined any more.
            Some(Some(Err(LogAppendError::Trimmed(_)))) => {}
            Some(Some(Err(e))) if stage.over.is_up() && i >= settled_upto => {
                stage.waits_for(format!("an append to {name} through host {at}, last answer {e:?}"));
                pending.push(p);
            }
            _ => pending.push(p),
        }
    }
    pending.is_empty()
}

/// Checks the tail through random nodes until the load is over.
pub async fn checker(stage: Stage<NodeHandles>, log: String, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let at = stage.below(64) as usize;
        // Several checks at one node, slightly apart: a check must not get the result of a round that began before it (vlog-V14).
        for _ in 0..stage.below(4) {
            let (stage, log) = (stage.clone(), log.clone());
            stage.clone().spawn("check", async move {
                stage.pause(Duration::from_micros(50 + stage.below(3_000))).await;
                check_once(&stage, &log, at).await;
                stage.report();
            });
        }
        check_once(&stage, &log, at).await;
        stage.report();
    }
}

/// Checks the tail through one node.
pub async fn check_once(stage: &Stage<NodeHandles>, name: &str, at: usize) -> Option<u64> {
    let life = live(stage, at)?;
    let log = life.handles.log(name)?;
    let asked = stage.oracles.log.tail_begins(name);
    let tail = match stage.cluster.ask(&life, log.check_tail()).await {
        Some(Ok(Ok(tail))) => tail.0,
        _ => return None,
    };
    stage.oracles.log.tail_done(name, asked, tail);
    Some(tail)
}

/// Reads the log in order, through changing nodes, sometimes again from an earlier position.
pub async fn reader(stage: Stage<NodeHandles>, name: String, think: Duration) {
    let mut next = LogPos(0);
    while !stage.over.is_up() {
        stage.pause(think).await;
        if stage.below(30) == 0 {
            next = LogPos(stage.below(next.0 + 1));
        }
        let at = stage.below(64) as usize;
        follow(&stage, &name, at, &mut next).await;
        stage.report();
    }
}

/// Reads through one node until it fails, no entry arrives for a while, or the load is over.
async fn follow(stage: &Stage<NodeHandles>, name: &str, at: usize, next: &mut LogPos) {
    let Some(life) = live(stage, at) else { return };
    let Some(log) = life.handles.log(name) else { return };
    let mut reader = log.reader(*next, ReadFrom::Anywhere);
    for _ in 0..1 + stage.below(200) {
        let max_bytes = 1 + stage.below(4_000) as usize;
        let patience = Duration::from_millis(1_500);
        let next_ones = stage.cluster.ask(&life, reader.next(max_bytes));
        let Ok(Some(got)) = stage.env.within(patience, next_ones).await else { return };
        match got {
            Ok(read) => {
                let mut at = read.first;
                if at != *next {
                    stage.cluster.fail(format!(
                        "native-T11 gap: a reader of {name} was given {at} where {next} comes next"
                    ));
                }
                for (at, entry) in read.records() {
                    stage.oracles.log.read(name, at.0, entry.op, &entry.payload);
                }
                at = read.next();
                *next = at;
            }
            Err(LogReadError::Trimmed(to)) => {
                stage.oracles.log.trimmed(name, to.0);
                *next = to.max(*next);
                return;
            }
            // It asks again later.
            Err(LogReadError::Damaged(_)) if stage.oracles.log.may_seem_damaged(name) => {
                hit("sim.log.seems_damaged");
                return;
            }
            Err(LogReadError::Damaged(what)) => {
                return stage.cluster.fail(format!("DAMAGED: a reader of {name} was told: {what}"));
            }
            Err(LogReadError::Log(_)) => return,
        }
        if stage.over.is_up() || !stage.cluster.is_alive(&life) {
            return;
        }
    }
}

/// Trims the oldest part of the log from time to time.
pub async fn trimmer(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let known = log.known_tail().0.min(stage.oracles.log.floor(&name));
        let from = stage.oracles.log.trim_asked(&name);
        let to = from + stage.below(known.saturating_sub(from) + 1);
        stage.oracles.log.trim_begins(&name, to);
        let _ = stage.cluster.ask(&life, log.trim(LogPos(to))).await;
    }
}

/// Changes the chain from time to time: extends to other servers, `least` or more of them, truncates, rebuilds sealed segments. Its node
/// may die at any step, and sometimes the operator requests that.
pub async fn operator(stage: Stage<NodeHandles>, name: String, every: Duration, least: usize) {
    use crate::world::fault::Fault;
    while !stage.over.is_up() {
        stage.pause(every).await;
        let at = stage.below(64) as usize;
        let Some(life) = live(&stage, at) else { continue };
        if stage.below(6) == 0 {
            let host = life.node.0 as usize - 1;
            let frames = stage.below(60);
            let back_after = 50_000_000 + stage.below(1_500_000_000);
            stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after });
        }
        change(&stage, &life, &name, least).await;
        stage.report();
    }
}

/// Extends the log repeatedly, through running nodes.
pub async fn extender(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let _ = stage.cluster.ask(&life, log.extend(spec(&stage, 3))).await;
        stage.report();
    }
}

async fn change(stage: &Stage<NodeHandles>, life: &Life<NodeHandles>, name: &str, least: usize) {
    let Some(log) = life.handles.log(name) else { return };
    match stage.below(10) {
        0 => drop(stage.cluster.ask(life, log.truncate()).await),
        1 => {
            // All sealed segments, including those in index pages.
            let sealed: Vec<_> = {
                let wire = stage.oracles.wire.lock();
                let all = wire.chain.newest(name).into_iter().flat_map(|c| c.segments());
                all.filter(|s| s.stop.is_some()).map(|s| s.loglet).collect()
            };
            if sealed.is_empty() {
                return;
            }
            let which = sealed[stage.below(sealed.len() as u64) as usize];
            drop(stage.cluster.ask(life, log.modify(which, spec(stage, least))).await);
        }
        _ => drop(stage.cluster.ask(life, log.extend(spec(stage, least))).await),
    }
}

/// A spec that an operator may request: an empty one, or one that names servers and perhaps a sequencer. The door refuses nodes that are
/// not members, have not joined, or are draining, so this function does not name them.
fn spec(stage: &Stage<NodeHandles>, least: usize) -> LogletSpec {
    let mut spec = LogletSpec::default();
    let table = newest_table(stage).unwrap_or_default();
    let fit = |row: &&Member| row.has_joined() && !row.draining;
    let nodes: Vec<NodeId> = table.nodes.iter().filter(|(_, row)| fit(row)).map(|(n, _)| *n).collect();
    if stage.below(2) == 0 || nodes.len() < least.max(1) {
        return spec;
    }
    let size = [1, 3, 3, 5][stage.below(4) as usize].max(least).min(nodes.len());
    let size = size - usize::from(size.is_multiple_of(2));
    let first = stage.below(nodes.len() as u64) as usize;
    spec = spec.place("server", (0..size).map(|i| nodes[(first + i) % nodes.len()]));
    if stage.below(2) == 0 {
        spec = spec.place("sequencer", [nodes[stage.below(nodes.len() as u64) as usize]]);
    }
    spec
}

/// Creates the log, unless it exists.
pub async fn create(stage: &Stage<NodeHandles>, name: &str) {
    create_kind(stage, name, "native").await;
}

/// Creates the log with a first Loglet of this kind, unless it exists.
pub async fn create_kind(stage: &Stage<NodeHandles>, name: &str, kind: &str) {
    create_spec(stage, name, LogletSpec::of(kind)).await;
}

/// Creates the log with a first Loglet as specified, unless it exists.
pub async fn create_spec(stage: &Stage<NodeHandles>, name: &str, spec: LogletSpec) {
    loop {
        if let Some(life) = live(stage, stage.below(64) as usize)
            && let Some(log) = life.handles.log(name)
            && matches!(stage.cluster.ask(&life, log.create(spec.clone())).await, Some(Ok(Ok(_))))
        {
            return;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Returns the newest table of members that a running node knows.
fn newest_table(stage: &Stage<NodeHandles>) -> Option<Arc<MemberTable>> {
    let up = (0..stage.cluster.hosts()).filter_map(|h| stage.cluster.host(h));
    up.map(|l| l.handles.0.members.table()).max_by_key(|t| t.version)
}

/// Returns the hosts that are members according to the newest known table, or all hosts if no node runs.
pub fn members(stage: &Stage<NodeHandles>) -> Vec<usize> {
    let hosts = 0..stage.cluster.hosts();
    match newest_table(stage) {
        Some(table) => table.nodes.keys().map(|n| n.0 as usize - 1).filter(|h| hosts.contains(h)).collect(),
        None => hosts.collect(),
    }
}

/// Returns how many members may be acceptors, according to the newest known table. A group shrinks to the acceptors that are left, and a
/// group of two cannot survive the next lost disk.
pub fn acceptors_left(stage: &Stage<NodeHandles>) -> usize {
    newest_table(stage).map_or(0, |t| t.nodes.values().filter(|r| r.meta && !r.draining).count())
}

/// Returns whether no chain and no group of acceptors names a lost disk.
pub fn is_repaired(stage: &Stage<NodeHandles>) -> bool {
    lost_disk(stage).is_none()
}

/// Returns whether no chain and no group names a host, and no disk was lost within `within`. Otherwise a change in progress may rely on a
/// disk that is gone.
pub fn is_spare(stage: &Stage<NodeHandles>, host: usize, within: Duration) -> bool {
    let wire = stage.oracles.wire.lock();
    let node = NodeId(host as u32 + 1);
    let group = wire.plugins.newest_group();
    !stage.cluster.lost_within(stage.env.now(), within)
        && !wire.chain.names(node)
        && !wire.plugins.may_be_handing_over()
        && group.is_some_and(|g| g.members.iter().all(|m| m.node != node))
}

/// Returns whether everything that a host keeps has copies on at least two other hosts.
pub fn can_be_lost(stage: &Stage<NodeHandles>, host: usize) -> bool {
    let wire = stage.oracles.wire.lock();
    let node = NodeId(host as u32 + 1);
    let segments = wire.chain.newest_of_all().flat_map(|(_, c)| c.segments());
    let kept_elsewhere = |s: &Segment| {
        let duties = duties(&s.kind, &s.config);
        duties.holders().count() >= 3 || !duties.is_holder(node)
    };
    let group = wire.plugins.newest_group();
    !wire.plugins.may_be_handing_over()
        && segments.into_iter().all(kept_elsewhere)
        && group.is_some_and(|g| g.members.len() >= 3 || g.members.iter().all(|m| m.node != node))
}

/// Describes something that still names a lost disk, if there is any.
fn lost_disk(stage: &Stage<NodeHandles>) -> Option<String> {
    let wire = stage.oracles.wire.lock();
    let is_there = |node: NodeId, storage| stage.cluster.storage(node.0 as usize - 1) == Some(storage);
    for (name, chain) in wire.chain.newest_of_all() {
        // A segment that is empty or completely trimmed has nothing to lose.
        let counts = |s: &&Segment| s.stop.is_none_or(|stop| stop > s.start.max(chain.trim()));
        for segment in chain.segments().iter().filter(counts) {
            let holders: Vec<_> = duties(&segment.kind, &segment.config).holders().collect();
            // What only a lost disk held cannot be rebuilt.
            let lost = holders.iter().find(|(n, s)| holders.len() > 1 && !is_there(*n, *s));
            if let Some((node, _)) = lost {
                return Some(format!("segment {} of {name} names a lost disk of node {node}", segment.start));
            }
        }
    }
    if wire.plugins.is_handing_over() {
        return Some("a hand-over of the registers is not finished".to_owned());
    }
    let group = wire.plugins.newest_group()?;
    let lost = group.members.iter().find(|m| !is_there(m.node, m.storage))?;
    Some(format!("the group of acceptors names a lost disk of node {}", lost.node))
}

/// Demands progress after everything was healed. Every member accepts an append, and the whole log reads the same through every member. No
/// chain or group names a lost disk, and every server has back-filled its gaps.
pub async fn demand(stage: Stage<NodeHandles>, names: Vec<String>) {
    for name in &names {
        for host in members(&stage) {
            stage.waits_for(format!("an append to {name} through host {host}"));
            append_at(&stage, name, host).await;
        }
    }
    while let Some(lost) = lost_disk(&stage) {
        stage.waits_for(lost);
        stage.pause(Duration::from_millis(100)).await;
    }
    for name in &names {
        for host in members(&stage) {
            stage.waits_for(format!("the tail of {name} through host {host}"));
            read_whole(&stage, name, host).await;
            stage.report();
        }
        filled(&stage, name).await;
        stage.report();
    }
}

/// Appends to a log and reads all of it through one host.
pub async fn goes_on(stage: &Stage<NodeHandles>, name: &str, host: usize) {
    stage.waits_for(format!("an append to {name} through host {host}"));
    append_at(stage, name, host).await;
    stage.waits_for(format!("the tail of {name} through host {host}"));
    read_whole(stage, name, host).await;
    stage.report();
}

/// Waits until each server of each segment has the whole segment on its own disk.
pub async fn filled(stage: &Stage<NodeHandles>, name: &str) {
    let Some(tail) = check_once(stage, name, 0).await else { return };
    let mut at = LogPos(0);
    while at.0 < tail {
        let here = {
            let Some(life) = live(stage, 0) else {
                stage.pause(Duration::from_millis(100)).await;
                continue;
            };
            let wire = stage.oracles.wire.lock();
            let chain = wire.chain.newest(name);
            chain.map(|chain| {
                at = at.max(chain.trim());
                chain.locate(at).map(|s| {
                    let duties = duties(&s.kind, &s.config);
                    let holding = duties.0.iter().filter(|d| matches!(d.binding, Binding::Holds(_)));
                    let mut roles = holding.map(|d| d.role);
                    let first = roles.next();
                    // If holders have several roles, some may get their copies only after the seal.
                    let all = s.stop.is_some() || roles.all(|role| Some(role) == first);
                    // A node that holds only some parts has no position of the others on its disk.
                    let provider = life.handles.0.logs.registry().provider(&s.kind);
                    let parts = provider.map_or_else(|_| Vec::new(), |p| p.parts(&s.config));
                    let held = parts.iter().filter(|part| part.duties.holders().next().is_some());
                    let holds_all = |node: &NodeId| held.clone().all(|part| part.duties.is_holder(*node));
                    let nodes = duties.holders().map(|(node, _)| node).filter(|_| all);
                    let nodes = nodes.filter(holds_all).collect::<Vec<_>>();
                    (s.stop.unwrap_or(LogPos(tail)).min(LogPos(tail)), nodes)
                })
            })
        };
        let Some(Some((end, nodes))) = here else { return };
        let mut next = end;
        for node in nodes {
            next = next.min(filled_at(stage, name, at, end, node.0 as usize - 1).await);
        }
        // If the chain replaced the segment meanwhile, look it up again.
        if next > at {
            at = next;
        } else {
            stage.pause(Duration::from_millis(100)).await;
        }
    }
}

/// Returns up to which position a server has a segment on its own disk. Waits a few seconds for the whole segment.
async fn filled_at(stage: &Stage<NodeHandles>, name: &str, from: LogPos, end: LogPos, host: usize) -> LogPos {
    let mut at = from;
    for _ in 0..20 {
        while at < end {
            let Some(life) = stage.cluster.host(host) else { break };
            let Some(log) = life.handles.log(name) else { break };
            let read = log.read(at..end, 64 * 1024, ReadFrom::LocalOnly);
            match stage.cluster.ask(&life, read).await {
                Some(Ok(Ok(read))) => {
                    for (at, entry) in read.records() {
                        stage.oracles.log.read(name, at.0, entry.op, &entry.payload);
                    }
                    at = read.next();
                }
                Some(Ok(Err(LogReadError::Trimmed(to)))) => at = at.max(to),
                _ => break,
            }
        }
        if at >= end {
            return end;
        }
        stage.waits_for(format!("host {host} to have {name} from {at} to {end} on its disk"));
        stage.pause(Duration::from_millis(200)).await;
    }
    at
}

async fn append_at(stage: &Stage<NodeHandles>, name: &str, host: usize) {
    let client = ClientId(stage.env.random() | 1);
    let mut pending = vec![record(stage, client, 1)];
    let mut at = host;
    // Use only this host, and only while it is a member. Another running host may have been removed from the members, and so may this one.
    while members(stage).contains(&host)
        && (stage.cluster.host(host).is_none() || !round(stage, name, &mut at, &mut pending).await)
    {
        stage.pause(Duration::from_millis(20)).await;
        stage.report();
    }
    stage.report();
}

async fn read_whole(stage: &Stage<NodeHandles>, name: &str, host: usize) {
    let tail = loop {
        match check_once(stage, name, host).await {
            Some(tail) => break tail,
            None => stage.pause(Duration::from_millis(20)).await,
        }
    };
    let mut from = LogPos(0);
    let mut next = LogPos(0);
    let mut content = BTreeMap::new();
    while next.0 < tail {
        let got = async {
            let life = live(stage, host)?;
            let log = life.handles.log(name)?;
            let read = log.read(next..LogPos(tail), 64 * 1024, ReadFrom::Anywhere);
            stage.cluster.ask(&life, read).await?.ok()
        };
        match got.await {
            Some(Ok(read)) => {
                for (at, entry) in read.records() {
                    stage.oracles.log.read(name, at.0, entry.op, &entry.payload);
                    content.insert(at.0, entry.op);
                }
                next = read.next();
            }
            Some(Err(LogReadError::Trimmed(to))) => {
                stage.oracles.log.trimmed(name, to.0);
                if to <= next {
                    return stage
                        .cluster
                        .fail(format!("native-T12 trim back: {name}: trimmed below {to} at {next}"));
                }
                from = to;
                next = to;
                content.clear();
            }
            Some(Err(LogReadError::Damaged(what))) => {
                return stage.cluster.fail(format!("DAMAGED: {name}: {what}"));
            }
            other => {
                let other = other.map(|r| r.map(|_| ()));
                stage.waits_for(format!(
                    "{name} at {next} of {tail} through host {host}, last answer {other:?}"
                ));
                stage.pause(Duration::from_millis(20)).await;
            }
        }
    }
    stage.oracles.log.whole(name, from.0, tail, &content);
}

//! Clients and nodes that were paused and continue with outdated state.

use std::time::Duration;

use atoll_contract::{ClientId, LogPos, LogletSpec};
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_log::virtual_log::LogRecord;

use super::log::{Pending, check_once, record, round};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;
use crate::world::fault::Fault;

/// Waits until a host is not paused.
async fn until_awake(stage: &Stage<NodeHandles>, host: usize) {
    while stage.cluster.health(host).paused {
        stage.pause(Duration::from_millis(3)).await;
    }
}

/// Returns a spec for a segment that does not use `host`.
fn without(stage: &Stage<NodeHandles>, host: usize) -> LogletSpec {
    let hosts = stage.cluster.hosts();
    let others: Vec<NodeId> = (1..hosts).map(|i| NodeId(((host + i) % hosts) as u32 + 1)).collect();
    let size = if others.len() >= 3 { 3 } else { 1 };
    let sequencer = others[stage.below(size as u64) as usize];
    LogletSpec::default().place("server", others[..size].to_vec()).place("sequencer", [sequencer])
}

async fn extend(stage: &Stage<NodeHandles>, life: &Life<NodeHandles>, name: &str, spec: LogletSpec) -> bool {
    let Some(log) = life.handles.log(name) else { return false };
    matches!(stage.cluster.ask(life, log.extend(spec)).await, Some(Ok(Ok(_))))
}

/// A client whose node is paused (SIGSTOP) while it has one of the client's appends: queued, in flight, or still in a socket. The client
/// moves to another node and the log to other segments. Then the first node resumes and handles the append (vlog-V2, X16).
pub async fn leaver(stage: Stage<NodeHandles>, name: String, think: Duration) {
    let client = ClientId(stage.env.random() | 1);
    let mut seq = 0;
    while !stage.over.is_up() {
        stage.pause(think).await;
        let hosts = stage.cluster.hosts();
        let a = stage.below(hosts as u64) as usize;
        let b = (a + 1 + stage.below(hosts as u64 - 1) as usize) % hosts;
        // Every appender knows a tail, which it got when it opened its stream.
        let Some(known) = check_once(&stage, &name, b).await.map(LogPos) else { continue };
        seq += 1;
        let mine = record(&stage, client, seq);
        leave(&stage, &name, (a, b), known, mine).await;
        stage.report();
    }
}

/// Handles one record of [`leaver`]: sends it through `a`, which is paused, then through `b`.
async fn leave(stage: &Stage<NodeHandles>, name: &str, (a, b): (usize, usize), known: LogPos, mine: Pending) {
    let (Some(life), Some(other)) = (stage.cluster.host(a), stage.cluster.host(b)) else { return };
    let Some(log) = life.handles.log(name) else { return };
    stage.oracles.log.append_begins(name, mine.op, &mine.payload);
    let (op, payload) = (mine.op, mine.payload.clone());
    let send = move || log.submit_known(vec![LogRecord { op, floor: None, payload: payload.clone() }], known);
    // It reaches the node's lane before the pause, or waits in a socket until after it.
    let in_socket = stage.below(2) == 0;
    let mut first = None;
    if !in_socket {
        first = send().ok();
        stage.env.sleep(Duration::from_micros(stage.below(900))).await;
    }
    stage.cluster.inject(Fault::Pause { host: a, nanos: 200_000_000 + stage.below(1_000_000_000) });
    stage.pause(Duration::from_millis(15)).await;
    let mut pending = vec![Pending { floor: Some(known), ..mine }];
    let mut at = b;
    let patience = Duration::from_secs(2);
    let settled = stage.env.within(patience, round(stage, name, &mut at, &mut pending)).await == Ok(true);
    let changed = extend(stage, &other, name, without(stage, a)).await;
    until_awake(stage, a).await;
    if in_socket && stage.cluster.is_alive(&life) {
        // Send it at once, or after the node could learn what happened.
        stage.env.sleep(Duration::from_micros(stage.below(5) * stage.below(2_000))).await;
        first = send().ok();
    }
    let Some(ticket) = first else { return };
    if settled && changed && stage.cluster.is_alive(&life) {
        hit("sim.went_on_late");
    }
    let answer = stage.env.within(patience, stage.cluster.ask(&life, ticket)).await;
    if let Ok(Some(Ok(Ok(positions)))) = answer
        && let Some(at) = positions.first()
    {
        stage.oracles.log.append_done(name, op, at.0);
    }
}

/// A node that is paused during three extends and a truncate, repeatedly. When it resumes, it first uses a chain of which no segment may
/// exist any more.
pub async fn sleeper(stage: Stage<NodeHandles>, name: String, think: Duration) {
    let client = ClientId(stage.env.random() | 1);
    let mut seq = 0;
    while !stage.over.is_up() {
        stage.pause(think).await;
        let hosts = stage.cluster.hosts();
        let a = stage.below(hosts as u64) as usize;
        let b = (a + 1 + stage.below(hosts as u64 - 1) as usize) % hosts;
        let (Some(life), Some(other)) = (stage.cluster.host(a), stage.cluster.host(b)) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let Some(chain) = log.chain() else { continue };
        let (first, old) = (chain.chain.segments()[0].start, chain.chain.active().loglet);
        let nanos = 1_500_000_000 + stage.below(2_000_000_000);
        stage.cluster.inject(Fault::Pause { host: a, nanos });
        change_all(&stage, &other, &name, a).await;
        until_awake(&stage, a).await;
        if stage.cluster.is_alive(&life) && is_forgotten(&stage, &name, old) {
            hit("sim.slept_over_changes");
        }
        seq += 1;
        let mut pending = vec![record(&stage, client, seq)];
        let mut at = a;
        // A tail check, a read from the start of the old chain, and an append. All of them start with the old chain.
        let (one, two) = (stage.clone(), name.clone());
        stage.spawn("check", async move {
            check_once(&one, &two, a).await;
            one.report();
        });
        let tail = log.known_tail();
        if tail > first {
            let read = log.read(first..tail, 10_000, atoll_contract::ReadFrom::Anywhere);
            if let Ok(Some(Ok(Ok(read)))) =
                stage.env.within(Duration::from_secs(2), stage.cluster.ask(&life, read)).await
            {
                for (at, entry) in read.records() {
                    stage.oracles.log.read(&name, at.0, entry.op, &entry.payload);
                }
            }
        }
        let _ = stage.env.within(Duration::from_secs(2), round(&stage, &name, &mut at, &mut pending)).await;
        stage.report();
    }
}

/// Extends three times with appends in between. Then trims and truncates as much as possible.
async fn change_all(stage: &Stage<NodeHandles>, life: &Life<NodeHandles>, name: &str, asleep: usize) {
    let client = ClientId(stage.env.random() | 1);
    let mut done = 0;
    for seq in 1..8 {
        if done < 3 && extend(stage, life, name, without(stage, asleep)).await {
            done += 1;
        }
        let mut pending = vec![record(stage, client, seq)];
        let mut at = life.node.0 as usize - 1;
        let _ = stage.env.within(Duration::from_secs(1), round(stage, name, &mut at, &mut pending)).await;
    }
    let to = stage.oracles.log.floor(name);
    stage.oracles.log.trim_begins(name, to);
    let Some(log) = life.handles.log(name) else { return };
    let _ = stage.cluster.ask(life, log.trim(LogPos(to))).await;
    let _ = stage.cluster.ask(life, log.truncate()).await;
}

/// Returns whether a Loglet is no longer in the chain, and the chain has had at least three newer ones.
fn is_forgotten(stage: &Stage<NodeHandles>, name: &str, old: atoll_contract::LogletId) -> bool {
    let wire = stage.oracles.wire.lock();
    wire.chain.newest(name).is_some_and(|chain| chain.segment(old).is_none())
        && wire.chain.later_than(name, old) >= 3
}

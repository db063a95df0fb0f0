//! Clients that submit records again with the tail that they knew before the first attempt, as X16 requires. They do so at the same door
//! while the first attempt is pending, or through one node long before the first attempt leaves a socket at another.

use std::time::Duration;

use atoll_contract::{ClientId, LogPos, LogletSpec};
use atoll_core::testing::hit;
use atoll_core::{Abandoned, NodeId, Ticket};
use atoll_log::virtual_log::{LogAppendError, LogRecord, VirtualLog};

use super::log::{Pending, check_once, record};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;
use crate::world::fault::{Death, Fault};

/// How long a client waits for the answers to its attempts.
const PATIENCE: Duration = Duration::from_secs(5);

type Sent = Ticket<Result<Vec<LogPos>, LogAppendError>>;

/// Returns the host of the sequencer of a log's active segment, if its kind has one.
fn sequencer(stage: &Stage<NodeHandles>, name: &str) -> Option<usize> {
    let (_, sequencer) = stage.oracles.wire.lock().chain.serving(name)?;
    Some(sequencer.0 as usize - 1)
}

/// Returns some records of a new client.
fn records(stage: &Stage<NodeHandles>) -> Vec<Pending> {
    let client = ClientId(stage.env.random() | 1);
    let first = 1 + stage.below(3);
    (0..1 + stage.below(3)).map(|n| record(stage, client, first + n)).collect()
}

/// Submits records together. `known` is the tail known before the first attempt; a retry sends it as the floor.
fn send(
    stage: &Stage<NodeHandles>,
    name: &str,
    log: &VirtualLog,
    mine: &[Pending],
    known: LogPos,
    is_retry: bool,
) -> Option<Sent> {
    let floor = is_retry.then_some(known);
    for p in mine {
        stage.oracles.log.append_begins(name, p.op, &p.payload);
    }
    let all = mine.iter().map(|p| LogRecord { op: p.op, floor, payload: p.payload.clone() }).collect();
    let sent = log.submit_known(all, known).ok();
    if sent.is_none() {
        mine.iter().for_each(|p| stage.oracles.log.append_refused(name, p.op));
    }
    sent
}

/// Waits for the answer to a submission and reports it. Returns true if it was acknowledged.
async fn settle(
    stage: &Stage<NodeHandles>,
    name: &str,
    life: &Life<NodeHandles>,
    mine: &[Pending],
    sent: Sent,
) -> bool {
    let answer = stage.env.within(PATIENCE, stage.cluster.ask(life, sent)).await;
    let answer: Option<Result<_, Abandoned>> = answer.unwrap_or(None);
    match answer {
        Some(Ok(Ok(positions))) => {
            for (p, at) in mine.iter().zip(positions) {
                stage.oracles.log.append_done(name, p.op, at.0);
            }
            return true;
        }
        Some(Ok(Err(LogAppendError::NotAppended(_)))) => {
            hit("sim.refused");
            mine.iter().for_each(|p| stage.oracles.log.append_refused(name, p.op));
        }
        _ => {}
    }
    false
}

/// Submits records, and submits them again at the same door while the first attempt is pending. The sequencer may be gone, or the segment
/// sealed.
pub async fn impatient(stage: Stage<NodeHandles>, name: String, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(life) = stage.cluster.host(stage.below(stage.cluster.hosts() as u64) as usize) else {
            continue;
        };
        let Some(log) = life.handles.log(&name) else { continue };
        let known = check_once(&stage, &name, life.node.0 as usize - 1).await.map(LogPos);
        let Some(known) = known.filter(|_| stage.cluster.is_alive(&life)) else { continue };
        upset(&stage, &name, &life).await;
        let mine = records(&stage);
        let mut sent = vec![send(&stage, &name, &log, &mine, known, false)];
        for _ in 0..1 + stage.below(2) {
            stage.env.sleep(Duration::from_micros(stage.below(600) * stage.below(600))).await;
            if !stage.cluster.is_alive(&life) {
                break;
            }
            sent.push(send(&stage, &name, &log, &mine, known, true));
        }
        let mut acknowledged = 0;
        for sent in sent.into_iter().flatten() {
            acknowledged += u64::from(settle(&stage, &name, &life, &mine, sent).await);
        }
        if acknowledged > 1 {
            hit("sim.retried_at_the_same_door");
        }
        stage.report();
    }
}

/// Usually delays the next appends through a node: its sequencer is paused or killed, or the segment is sealed.
async fn upset(stage: &Stage<NodeHandles>, name: &str, life: &Life<NodeHandles>) {
    let Some(host) = sequencer(stage, name) else { return };
    let elsewhere = host != life.node.0 as usize - 1;
    match stage.below(4) {
        0 if elsewhere => {
            let nanos = 100_000_000 + stage.below(900_000_000);
            stage.cluster.inject(Fault::Pause { host, nanos });
        }
        1 if elsewhere => {
            let back_after = Some(200_000_000 + stage.below(1_000_000_000));
            stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        }
        2 => {
            let Some(log) = life.handles.log(name) else { return };
            let sequencer = NodeId(1 + stage.below(stage.cluster.hosts() as u64) as u32);
            drop(log.extend(LogletSpec::default().place("sequencer", [sequencer])));
        }
        _ => {}
    }
    stage.env.sleep(Duration::from_micros(stage.below(3_000))).await;
}

/// A client submits records through one node, which handles them late. Meanwhile it submits them again through another node, where they are
/// acknowledged. After `crowd` submissions of other clients, the first attempts arrive.
pub async fn belated(stage: Stage<NodeHandles>, name: String, crowd: u64, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let hosts = stage.cluster.hosts();
        let a = stage.below(hosts as u64) as usize;
        let b = (a + 1 + stage.below(hosts as u64 - 1) as usize) % hosts;
        let Some(known) = check_once(&stage, &name, b).await.map(LogPos) else { continue };
        let (Some(first), Some(second)) = (stage.cluster.host(a), stage.cluster.host(b)) else { continue };
        let Some(there) = second.handles.log(&name) else { continue };
        let mine = records(&stage);
        let Some(sent) = send(&stage, &name, &there, &mine, known, true) else { continue };
        let settled = settle(&stage, &name, &second, &mine, sent).await;
        let mut others = Vec::new();
        for _ in 0..crowd {
            let one = records(&stage);
            let floor = there.known_tail();
            let sent = send(&stage, &name, &there, &one, floor, false);
            others.extend(sent.map(|sent| (one, sent)));
        }
        for (one, sent) in others {
            settle(&stage, &name, &second, &one, sent).await;
        }
        for one in mine {
            let Some(here) = first.handles.log(&name).filter(|_| stage.cluster.is_alive(&first)) else {
                break;
            };
            let one = [one];
            let Some(sent) = send(&stage, &name, &here, &one, known, false) else { continue };
            if settle(&stage, &name, &first, &one, sent).await && settled {
                hit("sim.first_attempt_came_late");
            }
        }
        stage.report();
    }
}

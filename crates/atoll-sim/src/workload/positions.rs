//! Clients of single positions of a log on CORFU: they append, look, fill and trim, and take positions that they never write. A judge of
//! their own compares all answers to them (corfu-K3, corfu-K4, corfu-K5).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::loglet::write_once::{PositionState, Replace};
use atoll_contract::{ClientId, LogPos, OpId, ReadFrom};
use atoll_core::testing::hit;
use atoll_corfu::Projection;
use atoll_corfu::message::Take;
use atoll_log::virtual_log::{LogRecord, PositionError, PositionOp};
use bytes::Bytes;

use crate::oracle::Answered;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::workload::log::live;

/// How far above the known tail clients look.
const AHEAD: u64 = 6;
/// How far below it they look.
const BEHIND: u64 = 16;

/// What clients have heard about one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Data,
    Junk,
}

/// Compares the answers to clients.
#[derive(Debug, Default)]
struct State {
    told: BTreeMap<u64, Told>,
    /// What appenders were told to be at a position.
    placed: BTreeMap<u64, Bytes>,
    /// Positions whose trim has begun, and those whose trim was confirmed.
    trims: BTreeSet<u64>,
    trimmed: BTreeSet<u64>,
    failures: Vec<String>,
}

/// See the module documentation. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Judge(Arc<Mutex<State>>);

impl Judge {
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn report(&self, stage: &Stage<NodeHandles>) {
        for failure in self.with(|s| std::mem::take(&mut s.failures)) {
            stage.cluster.fail(failure);
        }
    }

    /// Returns whether the trim of a position was confirmed before a request begins.
    fn is_trimmed(&self, at: u64) -> bool {
        self.with(|s| s.trimmed.contains(&at))
    }

    /// Returns whether a position was known to be decided before a request begins.
    fn is_decided(&self, at: u64) -> bool {
        self.with(|s| s.told.contains_key(&at))
    }

    fn placed(&self, at: u64, payload: Bytes) {
        self.with(|s| {
            if let Some(other) = s.placed.insert(at, payload.clone()).filter(|other| *other != payload) {
                let words =
                    format!("corfu-K3 two appends: both were acknowledged at {at}: {other:?}, {payload:?}");
                s.failures.push(words);
            }
        });
        self.held(at, PositionState::Data, false, true);
    }

    /// Compares what a client was told with what others were told before. `was_trimmed` and `was_decided` hold from before its request.
    fn held(&self, at: u64, held: PositionState, was_trimmed: bool, was_decided: bool) {
        self.with(|s| {
            let before = s.told.get(&at).copied();
            let wrong = match (held, before) {
                (PositionState::Data, _) if was_trimmed => Some("a trimmed entry is back"),
                (PositionState::Data, Some(Told::Junk)) => Some("corfu-K5 junk became an entry"),
                // A rebuilt segment has a gap where an entry was trimmed alone.
                (PositionState::Junk, Some(Told::Data)) if !s.trims.contains(&at) => {
                    Some("corfu-K4 an entry became junk")
                }
                (PositionState::Trimmed, _) if !s.trims.contains(&at) => Some("nobody has trimmed it"),
                (PositionState::Unwritten, Some(_)) if was_decided => {
                    Some("corfu-K4 a decided position is not written")
                }
                _ => None,
            };
            if let Some(words) = wrong {
                s.failures
                    .push(format!("positions: {words}: position {at}, told {held:?}, before {before:?}"));
            }
            match held {
                PositionState::Data => drop(s.told.entry(at).or_insert(Told::Data)),
                PositionState::Junk if !s.trims.contains(&at) => drop(s.told.entry(at).or_insert(Told::Junk)),
                PositionState::Junk | PositionState::Trimmed | PositionState::Unwritten => {}
            }
        });
    }
}

/// Appends records of clients of their own until the load is over.
pub async fn appender(stage: Stage<NodeHandles>, name: String, judge: Judge, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let client = ClientId(stage.env.random() | 1);
        let records: Vec<LogRecord> = (1..=1 + stage.below(6))
            .map(|seq| LogRecord {
                op: OpId { client, seq },
                floor: None,
                payload: Bytes::copy_from_slice(&stage.env.random().to_le_bytes()),
            })
            .collect();
        let payloads: Vec<Bytes> = records.iter().map(|record| record.payload.clone()).collect();
        let Ok(ticket) = log.submit_unordered(records) else { continue };
        // What has no answer stays unknown: nobody sends it again.
        if let Some(Ok(Ok(positions))) = stage.cluster.ask(&life, ticket).await {
            stage.count(Answered { writes: positions.len() as u64, reads: 0 });
            for (at, payload) in positions.into_iter().zip(payloads) {
                judge.placed(at.0, payload);
            }
        }
        judge.report(&stage);
    }
}

/// Takes positions and never writes them, as an appender that dies does.
pub async fn quitter(stage: Stage<NodeHandles>, name: String, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let Some(chain) = log.chain() else { continue };
        let active = chain.chain.active();
        let Ok(projection) = Projection::parse(&active.config) else { continue };
        let (config, count) = (active.config.clone(), 1 + stage.below(3) as u32);
        let take = Take { log: active.loglet, config, epoch: projection.epoch, count };
        hit("sim.positions.abandoned");
        let _ = stage.cluster.ask(&life, life.env.call(projection.sequencer.0, take)).await;
    }
}

/// Looks at, fills and trims positions near the tail until the load is over.
pub async fn prober(stage: Stage<NodeHandles>, name: String, judge: Judge, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let high = judge.with(|s| s.told.last_key_value().map_or(0, |(at, _)| *at)).max(log.known_tail().0);
        let at = (high + AHEAD).saturating_sub(stage.below(AHEAD + BEHIND));
        let op = match stage.below(8) {
            0 | 1 => PositionOp::Fill,
            2 => PositionOp::Trim,
            _ => PositionOp::Look,
        };
        let (was_trimmed, was_decided) = (judge.is_trimmed(at), judge.is_decided(at));
        if op == PositionOp::Trim {
            judge.with(|s| s.trims.insert(at));
        }
        let answer = stage.cluster.ask(&life, log.at_position(LogPos(at), op)).await;
        if let Some(Ok(Ok(held))) = answer {
            stage.count(Answered { writes: 0, reads: 1 });
            judge.held(at, held, was_trimmed, was_decided);
            match (op, held) {
                (PositionOp::Trim, PositionState::Trimmed) => {
                    hit("sim.positions.trimmed");
                    judge.with(|s| s.trimmed.insert(at));
                }
                (PositionOp::Fill, PositionState::Junk) => hit("sim.positions.filled"),
                _ => {}
            }
        }
        judge.report(&stage);
    }
}

/// Replaces units and the sequencer from time to time, through any node.
pub async fn replacer(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let Some(Ok(Ok(active))) = stage.cluster.ask(&life, log.active_positions()).await else { continue };
        let units: Vec<_> = active.layout.chains.iter().flatten().copied().collect();
        let nodes = crate::workload::log::members(&stage).into_iter().map(|host| host as u32 + 1);
        let nodes: Vec<_> = nodes.map(atoll_core::NodeId).collect();
        let any = nodes[stage.below(nodes.len() as u64) as usize];
        let old = units[stage.below(units.len() as u64) as usize];
        let change = match stage.below(3) {
            0 => Replace::Sequencer(any),
            _ => Replace::Unit { old, new: any },
        };
        let planned = stage.cluster.ask(&life, log.plan_replacing(change)).await;
        let Some(Ok(Ok((from, _, Some(spec))))) = planned else { continue };
        if let Some(Ok(Ok(true))) = stage.cluster.ask(&life, log.extend_from(from, spec)).await {
            hit("sim.positions.replaced");
        }
    }
}

/// After everything was healed: every acknowledged entry is at its position, or was trimmed; what was junk is junk; and all that is below
/// the tail is decided. Every node must say so.
pub async fn demand(stage: Stage<NodeHandles>, name: String, judge: Judge) {
    for host in crate::workload::log::members(&stage) {
        stage.waits_for(format!("a tail of {name} through host {host}"));
        let tail = loop {
            if let Some(tail) = tail_of(&stage, &name, host).await {
                break tail;
            }
            stage.pause(Duration::from_millis(100)).await;
        };
        let step = (tail / 400).max(1);
        let mut at = 0;
        while at < tail {
            stage.waits_for(format!("position {at} of {name} through host {host}"));
            check(&stage, &name, host, at, &judge).await;
            at += 1 + stage.below(step);
        }
        judge.report(&stage);
    }
}

async fn tail_of(stage: &Stage<NodeHandles>, name: &str, host: usize) -> Option<u64> {
    let life = stage.cluster.host(host)?;
    let log = life.handles.log(name)?;
    match stage.cluster.ask(&life, log.check_tail()).await {
        Some(Ok(Ok(tail))) => Some(tail.0),
        _ => None,
    }
}

async fn check(stage: &Stage<NodeHandles>, name: &str, host: usize, at: u64, judge: &Judge) {
    loop {
        if let Some(life) = stage.cluster.host(host)
            && let Some(log) = life.handles.log(name)
        {
            let look = log.at_position(LogPos(at), PositionOp::Look);
            match stage.cluster.ask(&life, look).await {
                Some(Ok(Ok(held))) => {
                    judge.held(at, held, judge.is_trimmed(at), true);
                    if held == PositionState::Unwritten {
                        return stage
                            .cluster
                            .fail(format!("corfu-K8 undecided below the tail: {at} of {name}"));
                    }
                    let placed = judge.with(|s| s.placed.get(&at).cloned());
                    if held == PositionState::Data
                        && let Some(payload) = placed
                    {
                        let read = log.read(LogPos(at)..LogPos(at + 1), 1 << 16, ReadFrom::Anywhere);
                        if let Some(Ok(Ok(read))) = stage.cluster.ask(&life, read).await {
                            let entry = &read.entries[0];
                            // A trim whose outcome is unknown may have reached some units only.
                            let may_be_gone = entry.is_pad() && judge.with(|s| s.trims.contains(&at));
                            if entry.payload != payload && !may_be_gone {
                                stage.cluster.fail(format!(
                                    "corfu-K3 another entry is at {at} of {name}: {entry:?}, not {payload:?}"
                                ));
                            }
                            return;
                        }
                    } else {
                        return;
                    }
                }
                Some(Ok(Err(PositionError::Beyond { .. } | PositionError::NotOffered(_)))) => return,
                _ => {}
            }
        }
        stage.pause(Duration::from_millis(100)).await;
    }
}

//! Clients of a log whose records are in shards: they add and end shards, append to shards of their choice, and read records from shards.
//! A judge of their own compares in which shard a record was found (scalog-G1, scalog-G7, scalog-G9).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::loglet::sharded::{ShardChange, ShardState};
use atoll_contract::{ClientId, LogPos};
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_log::virtual_log::{ActiveShards, LogError, LogReadError, LogRecord, ShardsError};

use crate::oracle::Answered;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::workload::log::{Pending, live, members, record};
use crate::world::clients::Life;

/// In which shard a record was found, of a Loglet whose first position is given.
#[derive(Clone, Debug, Default)]
pub struct Judge(Arc<Mutex<BTreeMap<u64, u32>>>);

impl Judge {
    /// Takes that a record was found in a shard.
    fn found(&self, stage: &Stage<NodeHandles>, at: u64, shard: u32) {
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *found.entry(at).or_insert(shard);
        if before != shard {
            stage.cluster.fail(format!("scalog-G1 two shards: position {at} is in {before} and in {shard}"));
        }
    }

    /// Takes that a shard does not have a record.
    fn absent(&self, stage: &Stage<NodeHandles>, at: u64, shard: u32) {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if found.get(&at) == Some(&shard) {
            stage.cluster.fail(format!("scalog-G1 lost: position {at} was in shard {shard}, and is not"));
        }
    }

    fn some(&self, stage: &Stage<NodeHandles>) -> Option<(u64, u32)> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let len = found.len() as u64;
        (len > 0).then(|| found.iter().nth(stage.below(len) as usize).map(|(at, shard)| (*at, *shard)))?
    }
}

/// Returns the shards of the active segment, as a node says. None if it does not answer, or if they have no shards.
pub async fn shards(
    stage: &Stage<NodeHandles>,
    life: &Life<NodeHandles>,
    name: &str,
) -> Option<ActiveShards> {
    let log = life.handles.log(name)?;
    stage.cluster.ask(life, log.shards()).await?.ok()?.ok()
}

fn of_live(shards: &ActiveShards) -> Vec<&ShardState> {
    shards.shards.shards.iter().filter(|shard| shard.is_live()).collect()
}

/// Adds and ends shards from time to time, through any node, also with requests that must be refused.
pub async fn operator(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(before) = shards(&stage, &life, &name).await else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let live = of_live(&before);
        let change = match stage.below(5) {
            0 | 1 => {
                let number = (stage.below(3) == 0).then(|| stage.below(60) as u32);
                ShardChange::Add { number, nodes: Vec::new() }
            }
            2 => {
                let any = || NodeId(1 + stage.below(members(&stage).len() as u64) as u32);
                ShardChange::Add { number: None, nodes: vec![any(), any()] }
            }
            _ => {
                let number = live[stage.below(live.len() as u64) as usize].number;
                ShardChange::End { number, after: stage.below(3) as u32 }
            }
        };
        match stage.cluster.ask(&life, log.change_shards(change.clone())).await {
            Some(Ok(Ok(number))) => was_changed(&stage, &life, &name, &change, (number, &before)).await,
            Some(Ok(Err(ShardsError::Refused(_)))) => hit("sim.shards.refused"),
            _ => {}
        }
    }
}

/// Checks that a change that was confirmed has happened.
async fn was_changed(
    stage: &Stage<NodeHandles>,
    life: &Life<NodeHandles>,
    name: &str,
    change: &ShardChange,
    (number, before): (u32, &ActiveShards),
) {
    let Some(after) = shards(stage, life, name).await else { return };
    if after.loglet != before.loglet {
        return;
    }
    let found = after.shards.shards.iter().find(|shard| shard.number == number);
    match change {
        ShardChange::Add { .. } => {
            hit("sim.shards.added");
            if found.is_none() {
                stage.cluster.fail(format!("scalog-S13 not added: shard {number} was added to {name}"));
            }
        }
        ShardChange::End { .. } => {
            hit("sim.shards.ended");
            if found.is_none_or(|shard| shard.is_live() && shard.leaving.is_none()) {
                stage.cluster.fail(format!("scalog-S13 not ended: shard {number} of {name} was ended"));
            }
        }
    }
    if of_live(&after).is_empty() {
        stage.cluster.fail(format!("scalog-G9 no shard: none of {name} takes records"));
    }
}

/// Appends single records of new clients to shards of its choice until the load is over. A record whose outcome is unknown is sent again
/// to the same shard through another node. One that a shard has refused because it has ended goes to another shard: that is no failure.
pub async fn appender(stage: Stage<NodeHandles>, name: String, judge: Judge, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let mut pending = record(&stage, ClientId(stage.env.random() | 1), 1);
        stage.oracles.log.append_begins(&name, pending.op, &pending.payload);
        while let Some(shard) = choose(&stage, &name).await {
            if append(&stage, &name, &mut pending, shard, &judge).await {
                break;
            }
            hit("sim.shards.next_shard");
        }
        stage.report();
    }
}

/// Chooses a shard that takes records. None once the load is over.
async fn choose(stage: &Stage<NodeHandles>, name: &str) -> Option<u32> {
    while !stage.over.is_up() {
        if let Some(life) = live(stage, stage.below(64) as usize)
            && let Some(all) = shards(stage, &life, name).await
        {
            let live = of_live(&all);
            return live.get(stage.below(live.len() as u64) as usize).map(|shard| shard.number);
        }
        stage.pause(Duration::from_millis(50)).await;
    }
    None
}

/// Sends a record to a shard until the outcome is known, or the load is over. Returns false if it is certain that the record is not in the
/// log, and that no shard but this one is to blame.
async fn append(
    stage: &Stage<NodeHandles>,
    name: &str,
    pending: &mut Pending,
    shard: u32,
    judge: &Judge,
) -> bool {
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(20)).await;
        let Some(life) = live(stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(name) else { continue };
        let floor = pending.floor;
        let known = log.known_tail();
        let record = LogRecord { op: pending.op, floor, payload: pending.payload.clone() };
        match stage.cluster.ask(&life, log.append_to_shard(shard, record)).await {
            Some(Ok(Ok(at))) => {
                stage.oracles.log.append_done(name, pending.op, at.0);
                stage.acknowledged(name, at, pending.op);
                hit("sim.shards.appended");
                if floor.is_some() {
                    hit("sim.shards.appended_again");
                }
                // The shard that a retry names may be one of another segment than the record is in.
                if floor.is_none() {
                    judge.found(stage, at.0, shard);
                }
                return true;
            }
            Some(Ok(Err(ShardsError::NotLive(_) | ShardsError::Moved))) => {
                // The next attempt begins anew: nothing of this one is in the log.
                pending.floor = None;
                return false;
            }
            Some(Ok(Err(ShardsError::NotOffered(_)))) => {
                stage.oracles.log.append_refused(name, pending.op);
                return true;
            }
            Some(Ok(Err(ShardsError::Log(_)))) => {}
            _ => {
                pending.floor.get_or_insert(known);
            }
        }
    }
    true
}

/// Reads single records from shards, through changing nodes, until the load is over.
pub async fn reader(stage: Stage<NodeHandles>, name: String, judge: Judge, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let (at, shard) = match judge.some(&stage) {
            Some((at, shard)) if stage.below(2) == 0 => (at, shard),
            _ => (stage.below(log.known_tail().0 + 3), stage.below(4) as u32),
        };
        look(&stage, &life, &name, (at, shard), &judge).await;
        stage.report();
    }
}

/// Reads one record from a shard. Returns whether there was an answer.
async fn look(
    stage: &Stage<NodeHandles>,
    life: &Life<NodeHandles>,
    name: &str,
    (at, shard): (u64, u32),
    judge: &Judge,
) -> bool {
    let Some(log) = life.handles.log(name) else { return false };
    match stage.cluster.ask(life, log.read_in_shard(LogPos(at), shard)).await {
        Some(Ok(Ok(Some(entry)))) => {
            stage.count(Answered { writes: 0, reads: 1 });
            stage.oracles.log.read(name, at, entry.op, &entry.payload);
            hit("sim.shards.read");
            judge.found(stage, at, shard);
            true
        }
        Some(Ok(Ok(None))) => {
            hit("sim.shards.read_elsewhere");
            judge.absent(stage, at, shard);
            true
        }
        Some(Ok(Err(ShardsError::Read(LogReadError::Trimmed(to))))) => {
            stage.oracles.log.trimmed(name, to.0);
            true
        }
        Some(Ok(Err(ShardsError::Read(LogReadError::Log(LogError::BeyondTail(_)))))) => true,
        Some(Ok(Err(ShardsError::NotOffered(_)))) => true,
        _ => false,
    }
}

/// After everything was healed: each record that was found in a shard is there, as every node says, and a shard that takes records takes
/// them from every node.
pub async fn demand(stage: Stage<NodeHandles>, name: String, judge: Judge) {
    for host in members(&stage) {
        let all: Vec<(u64, u32)> = {
            let found = judge.0.lock().unwrap_or_else(PoisonError::into_inner);
            found.iter().map(|(at, shard)| (*at, *shard)).collect()
        };
        let step = (all.len() / 40).max(1);
        for one in all.into_iter().step_by(step) {
            stage.waits_for(format!("the record {one:?} (position, shard) of {name} through host {host}"));
            while !is_answered(&stage, host, &name, one, &judge).await {
                stage.pause(Duration::from_millis(100)).await;
            }
            stage.report();
        }
    }
}

async fn is_answered(
    stage: &Stage<NodeHandles>,
    host: usize,
    name: &str,
    one: (u64, u32),
    judge: &Judge,
) -> bool {
    match stage.cluster.host(host) {
        Some(life) => look(stage, &life, name, one, judge).await,
        None => !members(stage).contains(&host),
    }
}

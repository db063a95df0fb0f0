//! Random schedules of appenders, checkers, sealers and operators that add and end shards, with crashes of servers, of whole shards, of
//! aggregators and orderers and of the sequencer of the ordering log, over a network that loses and reorders messages. The oracle judges
//! disks, the ordering log as it was read, and what clients saw. Each known bug must be found.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{self, Cluster, NativeLogs, Tapped};
use atoll_contract::conformance::cluster::Faults;
use atoll_contract::testing::{Oracle, Violations, Who};
use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::*;
use atoll_scalog::mutants;
use atoll_scalog::testing::oracle::ScalogOracle;
use atoll_scalog::*;
use bytes::Bytes;

const LOGLET: LogletId = LogletId(77);
const NODES: u32 = 9;
/// The nodes with the ordering log. The first one has its sequencer.
const ORDERING: [u32; 3] = [5, 6, 7];

/// What clients saw, in order, until the oracle takes it.
enum Saw {
    Acked(Offset, OpId),
    Tail(Offset, bool),
    Wrong(String),
}

#[derive(Default)]
struct Seen {
    saw: Vec<Saw>,
    /// The number above every acknowledged one.
    floor: u64,
    acks: u64,
    sealed: bool,
    stop: bool,
}

type Shared = Arc<Mutex<Seen>>;

async fn appender(env: Env, log: ScalogLoglet, seen: Shared, client: u64) {
    let mut seq = 1;
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_micros(200 + env.random() % 4000)).await;
        let count = 1 + env.random() % 3;
        let texts: Vec<String> = (seq..seq + count).map(|n| format!("{client}/{n}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut batch = cluster::batch(client, seq, &texts);
        let floor = seen.lock().unwrap().floor;
        let mut not_below = Offset(floor);
        loop {
            match log.append_above(batch.clone(), not_below).await {
                Ok(Ok(placement)) => {
                    let mut seen = seen.lock().unwrap();
                    for (at, op) in placement.offsets().zip(batch.ops()) {
                        if at.0 < floor {
                            let wrong = format!("G5: {op:?} got {at}, below {floor} of before");
                            seen.saw.push(Saw::Wrong(wrong));
                        }
                        seen.floor = seen.floor.max(at.0 + 1);
                        seen.saw.push(Saw::Acked(at, op));
                    }
                    seen.acks += 1;
                    break;
                }
                Ok(Err(AppendError::Sealed)) | Err(_) => return,
                // The client's shard has ended since the first attempt: only a search can tell.
                Ok(Err(AppendError::Forgotten)) => {
                    if let Some((tail, found)) = search(&log, not_below).await {
                        not_below = tail;
                        batch = Batch::of(batch.entries().filter(|entry| !found.contains(&entry.op)));
                    } else {
                        env.sleep(Duration::from_millis(5)).await;
                    }
                    if batch.is_empty() || seen.lock().unwrap().stop {
                        break;
                    }
                }
                Ok(Err(_)) if seen.lock().unwrap().stop => return,
                Ok(Err(_)) => env.sleep(Duration::from_millis(1 + env.random() % 20)).await,
            }
        }
        seq += count;
    }
}

/// Returns a tail that was checked, and the operations up to there.
async fn search(log: &ScalogLoglet, from: Offset) -> Option<(Offset, BTreeSet<OpId>)> {
    let tail = log.check_tail().await.ok()?.at;
    let (mut at, mut found) = (from, BTreeSet::new());
    while at < tail {
        let got = log.read(at..tail, 1 << 16, ReadFrom::Anywhere).await.ok()?;
        at = at.plus(got.entries.len() as u64);
        found.extend(got.entries.into_iter().map(|entry| entry.op));
    }
    Some((tail, found))
}

async fn checker(env: Env, log: ScalogLoglet, seen: Shared) {
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_millis(1 + env.random() % 30)).await;
        let floor = seen.lock().unwrap().floor;
        let Ok(tail) = log.check_tail().await else { continue };
        let mut seen = seen.lock().unwrap();
        if tail.at.0 < floor {
            seen.saw.push(Saw::Wrong(format!("L4: the tail {} after {floor} was acknowledged", tail.at)));
        }
        seen.sealed |= tail.sealed.is_some();
        seen.saw.push(Saw::Tail(tail.at, tail.sealed.is_some()));
    }
}

/// Adds shards of servers that are in none, with lower and higher numbers than there are, and ends shards, with and without notice.
async fn operator(env: Env, log: ScalogLoglet, seen: Shared, servers: Vec<Server>) {
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_millis(2 + env.random() % 50)).await;
        let (live, free) = log.with_order(|order| {
            let live = order.shards().iter().filter(|(_, shard)| shard.is_live());
            let numbers: Vec<u32> = live.map(|(number, _)| *number).collect();
            let is_free = |server: &&Server| order.place_of(**server).is_none();
            (numbers, servers.iter().filter(is_free).copied().collect::<Vec<_>>())
        });
        // Whatever became of it, the next round sees.
        if live.len() >= 2 && env.random().is_multiple_of(2) {
            let shard = live[env.random() as usize % live.len()];
            let _ = log.finalize(shard, env.random() as u32 % 3).await;
        } else if free.len() >= 2 {
            let shard = env.random() as u32 % 40;
            let _ = log.add_shard(ShardSpec { shard, servers: free[..2].to_vec() }).await;
        }
    }
}

struct Run {
    c: Cluster,
    oracle: ScalogOracle,
    verdict: Violations,
    seen: Shared,
    tapped: Tapped,
    shown: Vec<Lsn>,
    config: Bytes,
}

impl Run {
    fn new(seed: u64) -> Self {
        let tapped = Tapped::default();
        let stuck_after = Duration::from_millis(if seed.is_multiple_of(2) { 0 } else { 30 });
        let mut c = cluster::new(NODES, seed, tapped.clone(), stuck_after);
        let env = c.env(ORDERING[0]);
        let storages: Vec<StorageId> = c.nodes.values().map(|node| node.storage).collect();
        let storage = |node: NodeId| storages[node.0 as usize - 1];
        let tree: &[(u32, Option<u32>)] =
            if seed.is_multiple_of(3) { &[(7, None), (6, Some(0)), (7, Some(0))] } else { &[] };
        let mut config = cluster::config(storage, &env, &ORDERING, &[&[1, 2], &[3, 4]], &[6, 5], tree);
        // Shards that are added later may come before these, between them and after them.
        (config.shards[0].shard, config.shards[1].shard) = (10, 20);
        let config = config.to_bytes();
        c.sync = Duration::from_micros([50, 1000, 5000][c.rng.below(3) as usize]);
        let reorder = c.rng.chance(50);
        c.faults = Faults { drop: [0, 1, 5][c.rng.below(3) as usize], double: 0, reorder };
        let mut oracle = ScalogOracle::default();
        oracle.chained(LOGLET, &config);
        let (seen, verdict, shown) = (Shared::default(), Violations::default(), vec![Lsn(0); NODES as usize]);
        Run { c, oracle, verdict, seen, tapped, shown, config }
    }

    fn open(&self, node: u32) -> ScalogLoglet {
        let env = self.c.env(node);
        let logs = Arc::new(NativeLogs::tapping(env.clone(), self.tapped.clone()));
        let provider = ScalogProvider::new(env, self.c.directory(), logs, ScalogOptions::default());
        provider.open_scalog(LOGLET, &self.config).unwrap()
    }

    fn start_clients(&mut self) {
        let servers: Vec<Server> =
            self.c.nodes.iter().map(|(node, at)| Server { node: *node, storage: at.storage }).collect();
        let servers: Vec<Server> = servers.into_iter().filter(|s| !ORDERING.contains(&s.node.0)).collect();
        for node in ORDERING {
            let (log, env, seen) = (self.open(node), self.c.env(node), self.seen.clone());
            for client in 0..3 {
                let client = u64::from(node) * 10 + client;
                env.spawn("appender", Box::pin(appender(env.clone(), log.clone(), seen.clone(), client)));
            }
            env.spawn("checker", Box::pin(checker(env.clone(), log.clone(), seen.clone())));
            // Two operators may want the same server, or the same number.
            if node != ORDERING[1] {
                env.spawn("operator", Box::pin(operator(env.clone(), log, seen, servers.clone())));
            }
        }
        if self.c.rng.below(4) == 0 {
            let (log, env) = (self.open(ORDERING[0]), self.c.env(ORDERING[0]));
            let after = Duration::from_millis(self.c.rng.below(250));
            let sealer = async move {
                env.sleep(after).await;
                let _ = log.seal().await;
            };
            self.c.env(ORDERING[0]).spawn("sealer", Box::pin(sealer));
        }
    }

    /// Shows the oracle what has happened since the last call: the disks first.
    fn look(&mut self) {
        for (n, last) in (1..=NODES).zip(self.shown.iter_mut()) {
            let node = &self.c.nodes[&NodeId(n)];
            let who = Who { node: NodeId(n), life: node.life, storage: node.storage };
            let new = node.disk.records.range(Lsn(last.0 + 1)..);
            let new: Vec<(Lsn, Record)> = new.map(|(lsn, stored)| (*lsn, stored.record.clone())).collect();
            if let Some((newest, _)) = new.last() {
                *last = *newest;
                self.oracle.synced(&who, &new, &mut self.verdict);
            }
        }
        for (from, entries) in std::mem::take(&mut *self.tapped.lock().unwrap()) {
            self.oracle.followed(LOGLET, from, &entries, &mut self.verdict);
        }
        for saw in std::mem::take(&mut self.seen.lock().unwrap().saw) {
            match saw {
                Saw::Acked(at, op) => self.oracle.acknowledged(LOGLET, at, op, &mut self.verdict),
                Saw::Tail(at, sealed) => self.oracle.tail_reported(LOGLET, at, sealed, &mut self.verdict),
                Saw::Wrong(what) => self.verdict.fail(what),
            }
        }
    }

    /// Runs, and looks so often that a record that is ordered too early is not synced yet.
    fn run_for(&mut self, time: Duration) {
        self.run_in_steps(time, Duration::from_micros(50));
    }

    fn run_in_steps(&mut self, time: Duration, step: Duration) {
        let until = self.c.now.after(time);
        while self.c.now < until && self.verdict.failures.is_empty() {
            self.c.run_for(step);
            self.look();
        }
    }

    /// Kills some nodes, and restarts them later. The sequencer of the ordering log must live.
    fn disturb(&mut self) {
        let down = Duration::from_millis(1 + self.c.rng.below(60));
        let one = [1, 2, 3, 4, 8, 9][self.c.rng.below(6) as usize];
        let victims = match self.c.rng.below(8) {
            0..=2 => vec![one],
            3 => vec![1, 2],
            4 => vec![3, 4],
            5 => vec![1, 2, 3, 4, 8, 9],
            6 => vec![6],
            _ => vec![6, 7],
        };
        victims.iter().for_each(|n| self.c.kill(NodeId(*n)));
        self.run_for(down);
        victims.iter().for_each(|n| self.c.restart(NodeId(*n)));
    }

    /// With all servers up and a shard that takes records, appends succeed (G9). An answer may have been lost, for which an append waits a
    /// second.
    fn demand_progress(&mut self) {
        let step = Duration::from_millis(1);
        self.run_in_steps(Duration::from_millis(200), step);
        let before = self.seen.lock().unwrap().acks;
        let until = self.c.now.after(Duration::from_secs(5));
        while self.c.now < until && self.verdict.failures.is_empty() {
            let seen = self.seen.lock().unwrap();
            let is_done = seen.sealed || seen.acks > before;
            drop(seen);
            if is_done {
                return;
            }
            self.run_in_steps(Duration::from_millis(20), step);
        }
        if self.verdict.failures.is_empty() {
            self.verdict.fail("liveness: nothing was acknowledged");
        }
    }

    /// Seals the log, with and without the sequencer of the ordering log, and reads all of it.
    fn read_all(&mut self) {
        if self.c.rng.below(3) == 0 {
            self.c.kill(NodeId(ORDERING[0]));
        }
        let (log, env) = (self.open(7), self.c.env(7));
        let got = self.c.on(7, async move {
            log.seal().await.map_err(|error| format!("seal: {error}"))?;
            let tail = log.check_tail().await.map_err(|error| format!("tail: {error}"))?;
            let (mut at, mut ops, mut attempts) = (0, Vec::new(), 0);
            while at < tail.at.0 {
                match log.read(Offset(at)..tail.at, 1 << 16, ReadFrom::Anywhere).await {
                    Ok(got) => {
                        at += got.entries.len() as u64;
                        ops.extend(got.entries.into_iter().map(|entry| entry.op));
                    }
                    // Servers may have to learn of the end first.
                    Err(_) if attempts < 20 => {
                        attempts += 1;
                        env.sleep(Duration::from_millis(20)).await;
                    }
                    Err(error) => return Err(format!("read {at} of {}: {error}", tail.at)),
                }
            }
            Ok((tail, ops))
        });
        self.look();
        match got {
            Err(error) => self.verdict.fail(format!("liveness: {error}")),
            Ok((tail, ops)) => {
                self.oracle.tail_reported(LOGLET, tail.at, true, &mut self.verdict);
                let mut once = BTreeSet::new();
                for (at, op) in (0..).zip(ops) {
                    self.oracle.read(LOGLET, Offset(at), op, &mut self.verdict);
                    if !once.insert(op) {
                        self.verdict.fail(format!("scalog-S15 twice: {op:?} is in the log again at {at}"));
                    }
                }
            }
        }
        self.oracle.finished(&mut self.verdict);
    }
}

/// Runs one schedule and returns the first violation, if any.
fn schedule(seed: u64) -> Option<String> {
    let mut run = Run::new(seed);
    run.start_clients();
    for _ in 0..2 + run.c.rng.below(5) {
        let pause = Duration::from_millis(5 + run.c.rng.below(60));
        run.run_for(pause);
        run.disturb();
    }
    run.c.faults = Faults::default();
    run.demand_progress();
    run.seen.lock().unwrap().stop = true;
    if run.verdict.failures.is_empty() {
        run.read_all();
    }
    run.verdict.failures.into_iter().next()
}

#[test]
fn every_promise_is_kept() {
    take_marks();
    for seed in 0..60 {
        assert_eq!(schedule(seed), None, "seed {seed}");
    }
    let marks = take_marks();
    for mark in [
        "scalog.append.finalized",
        "scalog.handle.ended",
        "scalog.order.ended",
        "scalog.orderer.ends_stuck",
        "scalog.report.past_aggregator",
        "scalog.seal.ordering_log",
        "scalog.server.duplicate",
        "scalog.server.ended",
        "scalog.server.out_of_order",
    ] {
        assert!(marks.contains_key(mark), "no schedule reached {mark}");
    }
}

fn caught(mutant: Mutant) {
    for seed in 0..200 {
        set_mutant(mutant);
        let found = schedule(seed);
        set_mutant(Mutant::NONE);
        if let Some(what) = found.filter(|w| !w.starts_with("liveness")) {
            println!("{mutant:?}: seed {seed}: {what}");
            return;
        }
    }
    panic!("{mutant:?} was not caught in 200 seeds");
}

#[test]
fn mutant_s1_is_caught() {
    caught(mutants::SCALOG_S1);
}

#[test]
fn mutant_s2_is_caught() {
    caught(mutants::SCALOG_S2);
}

#[test]
fn mutant_s3_is_caught() {
    caught(mutants::SCALOG_S3);
}

#[test]
fn mutant_s5_is_caught() {
    caught(mutants::SCALOG_S5);
}

#[test]
fn mutant_s7_is_caught() {
    caught(mutants::SCALOG_S7);
}

#[test]
fn mutant_s10_is_caught() {
    caught(mutants::SCALOG_S10);
}

#[test]
fn mutant_s12_is_caught() {
    caught(mutants::SCALOG_S12);
}

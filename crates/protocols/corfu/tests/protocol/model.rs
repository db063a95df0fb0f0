//! Random schedules of appenders, readers, checkers, trimmers and sealers over a network that loses, duplicates and reorders messages and
//! has partitions, with crashes. What clients saw is checked against corfu-K3, corfu-K4, corfu-K8 and vlog-L3, vlog-L4. Each known bug
//! must be found.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{self, Cluster, provider};
use atoll_contract::conformance::cluster::Faults;
use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::*;
use atoll_corfu::mutants;
use bytes::Bytes;

const LOGLET: LogletId = LogletId(77);

/// What clients saw.
#[derive(Default)]
struct History {
    acked: Vec<(Offset, OpId)>,
    read: BTreeMap<Offset, OpId>,
    sealed_tails: Vec<Offset>,
    open_tails: Vec<Offset>,
    /// Everything below may have been trimmed.
    trimmed: Offset,
    violation: Option<String>,
    stop: bool,
}

type Seen = Arc<Mutex<History>>;

impl History {
    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn acked(&mut self, at: Offset, op: OpId) {
        self.acked.push((at, op));
        if let Some(x) = self.sealed_tails.iter().min()
            && at >= *x
        {
            self.fail(format!("L3: acked {at} at or above the sealed tail {x}"));
        }
    }

    fn read(&mut self, at: Offset, op: OpId) {
        let before = *self.read.entry(at).or_insert(op);
        if before != op {
            self.fail(format!("K4: {before:?} was read at {at}, and then {op:?}"));
        }
    }

    /// Checks and notes the result of a tail check. `floor` is the number of acks before the check began.
    fn tail(&mut self, tail: &Tail, floor: usize) {
        if let Some((at, _)) = self.acked[..floor].iter().max()
            && *at >= tail.at
        {
            self.fail(format!("L4: a check that began after the ack of {at} returned {}", tail.at));
        }
        if tail.sealed.is_some() {
            if let Some((at, _)) = self.acked.iter().find(|(at, _)| *at >= tail.at) {
                self.fail(format!("L3: acked {at}, then the sealed tail {}", tail.at));
            }
            if let Some(t) = self.open_tails.iter().find(|t| **t > tail.at) {
                self.fail(format!("L4: open tail {t}, then the sealed tail {}", tail.at));
            }
            self.sealed_tails.push(tail.at);
        } else {
            if let Some(x) = self.sealed_tails.iter().find(|x| **x < tail.at) {
                self.fail(format!("L4: sealed tail {x}, then the open tail {}", tail.at));
            }
            self.open_tails.push(tail.at);
        }
    }
}

async fn appender(env: Env, log: Arc<dyn Loglet>, seen: Seen, client: u64) {
    let mut seq = 1;
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_micros(200 + env.random() % 8000)).await;
        let n = 1 + env.random() % 3;
        let texts: Vec<String> = (0..n).map(|i| format!("{client}/{}", seq + i)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let batch = cluster::batch(client, seq, &texts);
        loop {
            match log.append(batch.clone()).await {
                Ok(Ok(placement)) => {
                    let mut seen = seen.lock().unwrap();
                    for (at, op) in placement.offsets().zip(batch.ops()) {
                        seen.acked(at, op);
                    }
                    break;
                }
                Ok(Err(AppendError::Sealed)) | Err(_) => return,
                Ok(Err(_)) if seen.lock().unwrap().stop => return,
                Ok(Err(_)) => env.sleep(Duration::from_millis(1 + env.random() % 20)).await,
            }
        }
        seq += n;
    }
}

async fn checker(env: Env, log: Arc<dyn Loglet>, seen: Seen, pause_ms: u64, trims: bool) {
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_millis(1 + env.random() % pause_ms)).await;
        let floor = seen.lock().unwrap().acked.len();
        let Ok(tail) = log.check_tail().await else { continue };
        seen.lock().unwrap().tail(&tail, floor);
        if tail.sealed.is_none() && tail.at > Offset::ZERO {
            let at = Offset(tail.at.0.saturating_sub(1 + env.random() % 8));
            if let Err(ReadError::BeyondTail(at)) = log.read(at..tail.at, 1000, ReadFrom::Anywhere).await {
                seen.lock()
                    .unwrap()
                    .fail(format!("L6: {at} is below the open tail {} and not there", tail.at));
            }
        }
        if trims && tail.sealed.is_none() && tail.at > Offset::ZERO && env.random().is_multiple_of(8) {
            let to = Offset(env.random() % (tail.at.0 + 1));
            {
                let mut seen = seen.lock().unwrap();
                seen.trimmed = seen.trimmed.max(to);
            }
            let _ = log.prefix_trim(to).await;
        }
    }
}

/// Reads anywhere near the end, below a tail that it knows or not.
async fn reader(env: Env, log: Arc<dyn Loglet>, seen: Seen) {
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_micros(300 + env.random() % 3000)).await;
        let end = seen.lock().unwrap().acked.iter().map(|(at, _)| at.0).max().unwrap_or_default() + 6;
        let at = Offset(end.saturating_sub(env.random() % 12));
        let read = env.within(Duration::from_millis(40), log.read(at..at.plus(1), 1000, ReadFrom::Anywhere));
        if let Ok(Ok(got)) = read.await {
            seen.lock().unwrap().read(at, got.entries[0].op);
        }
    }
}

async fn sealer(env: Env, log: Arc<dyn Loglet>, seen: Seen, after: Duration) {
    env.sleep(after).await;
    if log.seal().await.is_ok() {
        let floor = seen.lock().unwrap().acked.len();
        if let Ok(tail) = log.check_tail().await {
            seen.lock().unwrap().tail(&tail, floor);
        }
    }
}

const CHAINS: [&[&[u32]]; 3] = [&[&[1, 2]], &[&[1, 2, 3]], &[&[1, 2], &[3, 4]]];

/// Runs one schedule and returns the first violation, if any.
fn schedule(seed: u64) -> Option<String> {
    let chains = CHAINS[(seed % 3) as usize];
    let nodes = 5;
    let mut c = cluster::new(nodes, seed);
    let config = cluster::projection(&c, 5, chains).to_bytes();
    let seen: Seen = Arc::default();
    c.faults = Faults {
        drop: [0, 2, 10][c.rng.below(3) as usize],
        double: [0, 5, 20][c.rng.below(3) as usize],
        reorder: c.rng.chance(50),
    };
    c.sync = Duration::from_micros([50, 1000, 5000][c.rng.below(3) as usize]);
    let open = |c: &Cluster, n: u32| provider(c, n).open(LOGLET, &config).unwrap();
    for n in 1..=nodes {
        let (log, env) = (open(&c, n), c.env(n));
        env.spawn("appender", Box::pin(appender(env.clone(), log.clone(), seen.clone(), n.into())));
        env.spawn("reader", Box::pin(reader(env.clone(), log.clone(), seen.clone())));
        let pause = 1 + c.rng.below(60);
        env.spawn("checker", Box::pin(checker(env.clone(), log, seen.clone(), pause, seed % 4 == 1)));
    }
    for _ in 0..c.rng.below(3) {
        let at = 1 + c.rng.below(nodes.into()) as u32;
        let after = Duration::from_millis(20 + c.rng.below(400));
        let env = c.env(at);
        env.spawn("sealer", Box::pin(sealer(env.clone(), open(&c, at), seen.clone(), after)));
    }
    if seed % 4 == 2 {
        let log = open(&c, nodes);
        sealed_alone(&mut c, nodes, log, &seen);
    }
    for _ in 0..c.rng.below(12) {
        let pause = Duration::from_millis(c.rng.below(120));
        c.run_for(pause);
        disturb(&mut c, nodes);
        if seen.lock().unwrap().violation.is_some() {
            return seen.lock().unwrap().violation.clone();
        }
    }
    // In half of the schedules, one unit dies for good.
    let dead = seed.is_multiple_of(2).then(|| 1 + c.rng.below(2) as u32);
    if let Some(dead) = dead {
        c.kill(NodeId(dead));
    }
    c.cut.clear();
    c.faults = Faults::default();
    c.run_for(Duration::from_millis(400));
    seen.lock().unwrap().stop = true;
    let alive = (1..=nodes).filter(|n| Some(*n) != dead).collect::<Vec<_>>();
    finish(&mut c, &alive, &config, &seen)
}

/// Only one client reaches a unit, seals it, and reaches no other unit. The unit restarts, and the others reach it again: it must remember
/// that it is sealed (corfu-C16).
fn sealed_alone(c: &mut Cluster, nodes: u32, log: Arc<dyn Loglet>, seen: &Seen) {
    let run = Duration::from_millis(5 + c.rng.below(60));
    c.run_for(run);
    let (alone, client) = (NodeId(1 + c.rng.below(2) as u32), NodeId(nodes));
    for other in (1..nodes).map(NodeId).filter(|other| *other != alone) {
        c.cut.extend([(client, other), (other, client), (alone, other), (other, alone)]);
    }
    let env = c.env(nodes);
    env.spawn("sealer", Box::pin(sealer(env.clone(), log, seen.clone(), Duration::ZERO)));
    c.run_for(Duration::from_millis(300));
    if c.rng.chance(50) {
        c.checkpoint(alone);
    }
    c.kill(alone);
    c.restart(alone);
    c.cut.clear();
    c.run_for(Duration::from_millis(100));
}

fn disturb(c: &mut Cluster, nodes: u32) {
    let node = |c: &mut Cluster| NodeId(1 + c.rng.below(nodes.into()) as u32);
    let (a, b) = (node(c), node(c));
    match c.rng.below(7) {
        0 | 1 => {
            c.cut.insert((a, b));
        }
        2 => {
            for other in (1..=nodes).map(NodeId) {
                c.cut.insert((a, other));
                c.cut.insert((other, a));
            }
        }
        3 | 4 => c.cut.clear(),
        _ => {
            if c.rng.chance(30) {
                c.checkpoint(a);
            }
            if a.0 != 5 {
                c.kill(a);
                let down = Duration::from_millis(c.rng.below(100));
                c.run_for(down);
                c.restart(a);
            }
        }
    }
}

/// Checks, after all faults have ended, that the Loglet can be sealed, and that all nodes read the same: all that anybody saw is there.
fn finish(c: &mut Cluster, nodes: &[u32], config: &Bytes, seen: &Seen) -> Option<String> {
    let at = nodes[c.rng.below(nodes.len() as u64) as usize];
    let log = provider(c, at).open(LOGLET, config).unwrap();
    let floor = seen.lock().unwrap().acked.len();
    let sealed = c.on(at, async move {
        log.seal().await?;
        log.check_tail().await
    });
    let tail = match sealed {
        Ok(tail) => tail,
        Err(e) => return Some(format!("liveness: no sealed tail after healing: {e}")),
    };
    seen.lock().unwrap().tail(&tail, floor);
    if tail.sealed.is_none() {
        return Some("L2: open after a seal".to_owned());
    }
    c.run_for(Duration::from_secs(3));
    let (start, sealed) = (seen.lock().unwrap().trimmed, tail.sealed.clone().unwrap());
    let mut first: Option<Vec<OpId>> = None;
    for n in nodes.iter().copied() {
        let log = provider(c, n).open_sealed(LOGLET, config, &sealed).unwrap();
        let got = c.on(n, async move {
            let mut ops: Vec<OpId> = Vec::new();
            while start.plus(ops.len() as u64) < tail.at {
                let from = start.plus(ops.len() as u64);
                let got = log.read(from..tail.at, 1 << 16, ReadFrom::Anywhere).await?;
                ops.extend(got.entries.iter().map(|e| e.op));
            }
            Ok::<_, ReadError>(ops)
        });
        let ops = match got {
            Ok(ops) => ops,
            Err(e) => {
                return Some(format!("K8: below the tail {} and not readable on node {n}: {e}", tail.at));
            }
        };
        if *first.get_or_insert_with(|| ops.clone()) != ops {
            return Some(format!("K8: node {n} reads something else"));
        }
    }
    let ops = first.unwrap_or_default();
    let mut seen = seen.lock().unwrap();
    let mut places = BTreeMap::new();
    for (i, op) in ops.iter().enumerate().filter(|(_, op)| op.client.0 != 0) {
        if let Some(other) = places.insert(*op, i) {
            seen.fail(format!("C2: {op:?} is {other} and {i} above {start}"));
        }
    }
    let there = |at: Offset| ops.get(at.since(start) as usize).copied();
    let lost = seen.acked.iter().find(|(at, op)| *at >= start && there(*at) != Some(*op)).copied();
    if let Some((at, op)) = lost {
        seen.fail(format!("K3: acked {op:?} at {at}, and {:?} is there", there(at)));
    }
    let changed = seen.read.iter().find(|(at, op)| **at >= start && there(**at) != Some(**op));
    if let Some((at, op)) = changed.map(|(at, op)| (*at, *op)) {
        seen.fail(format!("K4: {op:?} was read at {at}, and {:?} is there", there(at)));
    }
    seen.violation.clone()
}

#[test]
fn every_promise_is_kept() {
    for seed in 0..200 {
        assert_eq!(schedule(seed), None, "seed {seed}");
    }
}

/// Runs any number of seeds: `ATOLL_MODEL_SEEDS=1000..5000 cargo test -p atoll-corfu --test protocol model:: -- --ignored many`.
#[test]
#[ignore = "long"]
fn many_seeds() {
    let wanted = std::env::var("ATOLL_MODEL_SEEDS").unwrap_or_else(|_| "1000..3000".into());
    let (from, to) = wanted.split_once("..").unwrap();
    let failed = (from.parse::<u64>().unwrap()..to.parse().unwrap()).filter(|seed| {
        let found = schedule(*seed);
        found.iter().for_each(|what| println!("seed {seed}: {what}"));
        found.is_some()
    });
    assert_eq!(failed.count(), 0);
}

fn caught(mutant: Mutant) {
    for seed in 0..600 {
        set_mutant(mutant);
        let found = schedule(seed);
        set_mutant(Mutant::NONE);
        if let Some(what) = found.filter(|w| !w.starts_with("liveness")) {
            println!("{mutant:?}: seed {seed}: {what}");
            return;
        }
    }
    panic!("{mutant:?} was not caught in 600 seeds");
}

#[test]
fn mutant_c1_is_caught() {
    caught(mutants::CORFU_C1);
}

#[test]
fn mutant_c2_is_caught() {
    caught(mutants::CORFU_C2);
}

#[test]
fn mutant_c6_is_caught() {
    caught(mutants::CORFU_C6);
}

#[test]
fn mutant_c7_is_caught() {
    caught(mutants::CORFU_C7);
}

#[test]
fn mutant_c12_is_caught() {
    caught(mutants::CORFU_C12);
}

#[test]
fn mutant_c14_is_caught() {
    caught(mutants::CORFU_C14);
}

#[test]
fn mutant_c16_is_caught() {
    caught(mutants::CORFU_C16);
}

/// corfu-C4: position 0 must not stay a hole. The first append of an empty Loglet shows it.
#[test]
fn mutant_c4_is_caught() {
    let first = |mutant| {
        set_mutant(mutant);
        let mut c = cluster::new(3, 1);
        let config = cluster::projection(&c, 1, &[&[1, 2]]).to_bytes();
        let log = provider(&c, 3).open(LOGLET, &config).unwrap();
        let placed = c.wait(log.append(cluster::batch(1, 1, &["a", "b"])), Duration::from_secs(5)).unwrap();
        set_mutant(Mutant::NONE);
        placed
    };
    assert_eq!(first(Mutant::NONE), Ok(Placement::contiguous(Offset(0), 2)));
    assert_ne!(first(mutants::CORFU_C4), Ok(Placement::contiguous(Offset(0), 2)));
}

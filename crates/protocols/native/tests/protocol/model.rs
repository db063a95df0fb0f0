//! Random schedules of appends, sealers and checkers over a network that loses, duplicates and reorders messages and has partitions, with
//! crashes. The oracles check native-N1, native-N3, native-N4, native-N5 and native-N8, and must find each mutant.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cluster::{self, Cluster, Faults};
use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::*;
use atoll_native::{NativeConfig, NativeLoglet};

const LOGLET: u128 = 77;

/// What clients saw.
#[derive(Default)]
struct History {
    acked: Vec<(Offset, OpId)>,
    sealed_tails: Vec<Offset>,
    open_tails: Vec<Offset>,
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
            self.fail(format!("N3: acked {at} at or above the sealed tail {x}"));
        }
    }

    /// Checks and notes the result of a tail check. `floor` is the number of acks before the check began.
    fn tail(&mut self, tail: &Tail, floor: usize) {
        if let Some((at, _)) = self.acked[..floor].iter().max()
            && *at >= tail.at
        {
            self.fail(format!("N8: a check that began after the ack of {at} returned {}", tail.at));
        }
        if tail.sealed.is_some() {
            if let Some((at, _)) = self.acked.iter().find(|(at, _)| *at >= tail.at) {
                self.fail(format!("N3: acked {at}, then the sealed tail {}", tail.at));
            }
            if let Some(t) = self.open_tails.iter().find(|t| **t > tail.at) {
                self.fail(format!("N4: open tail {t}, then the sealed tail {}", tail.at));
            }
            self.sealed_tails.push(tail.at);
        } else {
            if let Some(x) = self.sealed_tails.iter().find(|x| **x < tail.at) {
                self.fail(format!("N4: sealed tail {x}, then the open tail {}", tail.at));
            }
            self.open_tails.push(tail.at);
        }
    }
}

async fn appender(env: Env, log: NativeLoglet, seen: Seen, client: u64) {
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
                Ok(Err(_)) => env.sleep(Duration::from_millis(1 + env.random() % 20)).await,
            }
        }
        seq += n;
    }
}

async fn checker(env: Env, log: NativeLoglet, seen: Seen, pause_ms: u64) {
    while !seen.lock().unwrap().stop {
        env.sleep(Duration::from_millis(1 + env.random() % pause_ms)).await;
        let floor = seen.lock().unwrap().acked.len();
        if let Ok(tail) = log.check_tail().await {
            seen.lock().unwrap().tail(&tail, floor);
        }
    }
}

async fn sealer(env: Env, log: NativeLoglet, seen: Seen, after: Duration) {
    env.sleep(after).await;
    if log.seal().await.is_ok() {
        let floor = seen.lock().unwrap().acked.len();
        if let Ok(tail) = log.check_tail().await {
            seen.lock().unwrap().tail(&tail, floor);
        }
    }
}

/// Runs one schedule and returns the first violation, if any.
fn schedule(seed: u64, servers: u32) -> Option<String> {
    // Half of the schedules are disaggregated: they have an additional node, which only orders and appends.
    let apart = seed % 2;
    let nodes = servers + apart as u32;
    let sequencer = if apart == 1 { nodes } else { 1 };
    let mut c = Cluster::new(nodes, seed);
    let config = c.config(&(1..=servers).collect::<Vec<_>>(), sequencer);
    let seen: Seen = Arc::default();
    c.faults = Faults {
        drop: [0, 2, 10, 30][c.rng.below(4) as usize],
        double: [0, 5, 20][c.rng.below(3) as usize],
        reorder: c.rng.chance(50),
    };
    c.sync = Duration::from_micros([50, 1000, 5000][c.rng.below(3) as usize]);
    for n in 1..=nodes {
        let log = c.open(n, LOGLET, &config);
        let env = c.env(n);
        env.spawn("appender", Box::pin(appender(env.clone(), log.clone(), seen.clone(), n.into())));
        let pause = 1 + c.rng.below(60);
        env.spawn("checker", Box::pin(checker(env.clone(), log, seen.clone(), pause)));
    }
    if seed.is_multiple_of(3) && servers > 1 {
        lonely_entry(&mut c, servers, sequencer, &config, &seen);
    }
    for _ in 0..1 + c.rng.below(3) {
        let at = 1 + c.rng.below(nodes.into()) as u32;
        let after = Duration::from_millis(20 + c.rng.below(300));
        let log = c.open(at, LOGLET, &config);
        c.env(at).spawn("sealer", Box::pin(sealer(c.env(at), log, seen.clone(), after)));
    }
    // Faults: one-way and two-way partitions, and crashes of servers.
    for _ in 0..c.rng.below(12) {
        let pause = Duration::from_millis(c.rng.below(120));
        c.run_for(pause);
        let (a, b) =
            (NodeId(1 + c.rng.below(nodes.into()) as u32), NodeId(1 + c.rng.below(nodes.into()) as u32));
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
                // The sequencer's node is also killed: its next life orders nothing of this loglet (native-T6).
                if c.rng.chance(30) {
                    c.checkpoint(a);
                }
                if a.0 != sequencer || c.rng.chance(20) {
                    c.kill(a);
                    let down = Duration::from_millis(c.rng.below(100));
                    c.run_for(down);
                    c.restart(a);
                }
            }
        }
        if seen.lock().unwrap().violation.is_some() {
            return seen.lock().unwrap().violation.clone();
        }
    }
    c.cut.clear();
    c.faults = Faults::default();
    c.run_for(Duration::from_millis(400));
    seen.lock().unwrap().stop = true;
    finish(&mut c, servers, sequencer, &config, &seen)
}

/// Creates the situation of native-T1 to native-T3: the sequencer reaches one server, and then none; a seal happens without that server; a
/// check finds the entries on it all the same; and the sequencer returns.
fn lonely_entry(c: &mut Cluster, servers: u32, sequencer: u32, config: &NativeConfig, seen: &Seen) {
    let run = Duration::from_millis(5 + c.rng.below(30));
    c.run_for(run);
    let lonely = NodeId(1 + c.rng.below(servers.into()) as u32);
    let all: Vec<NodeId> = c.nodes.keys().copied().collect();
    let sequencer = NodeId(sequencer);
    for n in all.iter().filter(|n| **n != lonely && n.0 <= servers) {
        c.cut.insert((sequencer, *n));
    }
    let run = Duration::from_millis(5 + c.rng.below(20));
    c.run_for(run);
    for n in &all {
        c.cut.insert((sequencer, *n));
        c.cut.insert((*n, sequencer));
        c.cut.insert((lonely, *n));
        c.cut.insert((*n, lonely));
    }
    let others: Vec<NodeId> = all.into_iter().filter(|n| *n != sequencer && *n != lonely).collect();
    let at = others[c.rng.below(others.len() as u64) as usize];
    let log = c.open(at.0, LOGLET, config);
    c.env(at.0).spawn("sealer", Box::pin(sealer(c.env(at.0), log, seen.clone(), Duration::ZERO)));
    let run = Duration::from_millis(10 + c.rng.below(400));
    c.run_for(run);
    // Reconnect the lonely server before the sequencer, for some of the others.
    c.cut.retain(|(a, b)| *a == sequencer || *b == sequencer);
    let slow = others[c.rng.below(others.len() as u64) as usize];
    if c.rng.chance(50) {
        c.cut.extend(others.iter().flat_map(|n| [(slow, *n), (*n, slow)]));
    }
    let run = Duration::from_millis(10 + c.rng.below(400));
    c.run_for(run);
    c.cut.clear();
}

/// Checks, after all faults have ended, that every operation gets an outcome and that the disks hold what was acknowledged.
fn finish(c: &mut Cluster, servers: u32, at: u32, config: &NativeConfig, seen: &Seen) -> Option<String> {
    let log = c.open(at, LOGLET, config);
    let (seal, floor) = (log.clone(), seen.lock().unwrap().acked.len());
    let sealed = c.on(at, async move {
        seal.seal().await?;
        seal.check_tail().await
    });
    let tail = match sealed {
        Ok(tail) => tail,
        Err(e) => return Some(format!("liveness: no sealed tail after healing: {e}")),
    };
    seen.lock().unwrap().tail(&tail, floor);
    c.run_for(Duration::from_millis(600));
    if let Some(what) = &seen.lock().unwrap().violation {
        return Some(what.clone());
    }
    copies(c, servers, tail.at).or_else(|| readable(c, at, &log, tail.at, seen))
}

/// Checks native-N1 and native-N5 on the disks.
fn copies(c: &Cluster, servers: u32, tail: Offset) -> Option<String> {
    let mut payloads: BTreeMap<u64, Entry> = BTreeMap::new();
    let mut count: BTreeMap<u64, usize> = BTreeMap::new();
    for node in c.nodes.values() {
        let mut own: BTreeMap<u64, Entry> = BTreeMap::new();
        for stored in node.disk.records.values().filter(|s| s.record.kind == RecordKind::Entry) {
            let first = u64::from_le_bytes(stored.record.head[17..25].try_into().unwrap());
            let batch = Batch::parse(stored.record.payload.clone()).unwrap();
            own.extend(batch.entries().enumerate().map(|(i, e)| (first + i as u64, e)));
        }
        for (at, entry) in own {
            *count.entry(at).or_default() += 1;
            if *payloads.entry(at).or_insert_with(|| entry.clone()) != entry {
                return Some(format!("N1: two payloads at {at}"));
            }
        }
    }
    let quorum = servers as usize / 2 + 1;
    let thin = (0..tail.0).find(|at| count.get(at).copied().unwrap_or_default() < quorum)?;
    Some(format!("N5: {thin} is below the sealed tail {tail} and on no majority"))
}

/// Checks that every acked entry is read at its acked offset, and that an operation occurs twice only if its first copy was never acked.
fn readable(c: &mut Cluster, at: u32, log: &NativeLoglet, tail: Offset, seen: &Seen) -> Option<String> {
    let log = log.clone();
    let entries = c.on(at, async move {
        let mut entries: Vec<Entry> = Vec::new();
        while (entries.len() as u64) < tail.0 {
            let from = Offset(entries.len() as u64);
            entries.extend(log.read(from..tail, 1 << 16, ReadFrom::Anywhere).await?.entries);
        }
        Ok::<_, ReadError>(entries)
    });
    let entries = match entries {
        Ok(entries) => entries,
        Err(e) => return Some(format!("liveness: below the tail and not readable: {e}")),
    };
    let mut last: BTreeMap<ClientId, u64> = BTreeMap::new();
    for (at, e) in entries.iter().enumerate() {
        let before = last.insert(e.op.client, e.op.seq).unwrap_or_default();
        if e.op.seq != before + 1 {
            return Some(format!("L8: at {at}, client {} goes from {before} to {}", e.op.client.0, e.op.seq));
        }
    }
    seen.lock().unwrap().acked.iter().find_map(|(at, op)| {
        let there = entries.get(at.0 as usize).map(|e| e.op);
        (there != Some(*op)).then(|| format!("acked {op:?} at {at}, and {there:?} is there"))
    })
}

#[test]
fn three_servers_keep_every_promise() {
    for seed in 0..400 {
        assert_eq!(schedule(seed, 3), None, "seed {seed}");
    }
}

#[test]
fn five_servers_keep_every_promise() {
    for seed in 0..200 {
        assert_eq!(schedule(seed, 5), None, "seed {seed}");
    }
}

/// Runs any number of seeds: `ATOLL_MODEL_SEEDS=1000..5000 cargo test -p atoll-native --test protocol model:: -- --ignored many`.
#[test]
#[ignore = "long"]
fn many_seeds() {
    let wanted = std::env::var("ATOLL_MODEL_SEEDS").unwrap_or_else(|_| "1000..3000".into());
    let (from, to) = wanted.split_once("..").unwrap();
    let mut failed = 0;
    for seed in from.parse::<u64>().unwrap()..to.parse().unwrap() {
        for servers in [1, 3, 5] {
            if let Some(what) = schedule(seed, servers) {
                println!("seed {seed}, {servers} servers: {what}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 0);
}

fn caught(mutant: Mutant, seeds: u64) {
    for seed in 0..seeds {
        for servers in [3, 5] {
            set_mutant(mutant);
            let found = schedule(seed, servers);
            set_mutant(Mutant::NONE);
            if let Some(what) = found.filter(|w| !w.starts_with("liveness")) {
                println!("{mutant:?}: seed {seed}, {servers} servers: {what}");
                return;
            }
        }
    }
    panic!("{mutant:?} was not caught in {seeds} seeds");
}

#[test]
fn mutant_t1_is_caught() {
    caught(atoll_native::mutants::NATIVE_T1, 1500);
}

#[test]
fn mutant_t2_is_caught() {
    caught(atoll_native::mutants::NATIVE_T2, 1500);
}

#[test]
fn mutant_t3_is_caught() {
    caught(atoll_native::mutants::NATIVE_T3, 1500);
}

#[test]
fn mutant_t4_is_caught() {
    caught(atoll_native::mutants::NATIVE_T4, 1500);
}

#[test]
fn mutant_t5_is_caught() {
    caught(atoll_native::mutants::NATIVE_T5, 1500);
}

#[test]
fn mutant_t19_is_caught() {
    caught(atoll_native::mutants::NATIVE_T19, 1500);
}

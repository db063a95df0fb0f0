//! Whole clusters under faults: clients move between nodes, operators reconfigure the log and die half way, nodes are killed. The oracles
//! are outside the product: they see the answers that clients got, and the log as it is read at the end (vlog-VL3–vlog-VL7).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Cluster, spec};
use atoll_contract::{ClientId, Entry, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::{Env, NodeId, Tick};
use atoll_log::virtual_log::{LogReadError, VirtualLog};
use atoll_log::{LogAppendError, LogError, LogRead, LogRecord};
use bytes::Bytes;

const NODES: u32 = 3;
const CLIENTS: u64 = 4;

/// What a client must remember to continue through another node.
#[derive(Default)]
struct ClientState {
    next: u64,
    pending: BTreeMap<u64, LogPos>,
}

/// What the oracles have seen from outside.
#[derive(Default)]
struct Book {
    clients: BTreeMap<u64, ClientState>,
    acked: BTreeMap<OpId, LogPos>,
    /// Highest position acknowledged so far.
    highest: Option<LogPos>,
    content: BTreeMap<LogPos, Entry>,
    /// Clients that gave up an operation without knowing its outcome. It may still be appended.
    unknown: BTreeSet<ClientId>,
    checked: Option<LogPos>,
    violations: Vec<String>,
    acks: u64,
    reads: u64,
    trimmed: LogPos,
}

type Shared = Arc<Mutex<Book>>;

fn payload(client: u64, seq: u64) -> Bytes {
    Bytes::from(format!("{client}:{seq}"))
}

impl Book {
    fn violation(&mut self, what: String) {
        self.violations.push(what);
    }

    fn saw(&mut self, at: LogPos, entry: &Entry) {
        self.reads += 1;
        match self.content.get(&at) {
            None => {
                self.content.insert(at, entry.clone());
            }
            Some(first) if first != entry => {
                self.violation(format!("VL3: {at} is {:?} and {:?}", first.op, entry.op));
            }
            Some(_) => {}
        }
    }

    /// Records an acknowledgement. `above` is the highest position that was acknowledged before the first attempt of this operation.
    fn acked(&mut self, op: OpId, at: LogPos, above: Option<LogPos>) {
        self.acks += 1;
        if above.is_some_and(|h| at <= h) {
            self.violation(format!("VL5: {op:?} was put at {at}, acknowledged before: {above:?}"));
        }
        if let Some(first) = self.acked.insert(op, at)
            && first != at
        {
            self.violation(format!("VL4: {op:?} was acknowledged at {first} and at {at}"));
        }
        self.highest = self.highest.max(Some(at));
        self.settled(op);
    }

    fn settled(&mut self, op: OpId) {
        if let Some(client) = self.clients.get_mut(&op.client.0) {
            client.pending.remove(&op.seq);
        }
    }

    /// Returns the records that a client sends again because it does not know their outcome.
    fn retries(&self, id: u64) -> Vec<LogRecord> {
        let Some(state) = self.clients.get(&id) else { return Vec::new() };
        let record = |(seq, floor): (&u64, &LogPos)| LogRecord {
            op: OpId { client: ClientId(id), seq: *seq },
            floor: Some(*floor),
            payload: payload(id, *seq),
        };
        state.pending.iter().map(record).collect()
    }

    fn checked(&mut self, tail: LogPos, highest: Option<LogPos>, checked: Option<LogPos>) {
        if highest.is_some_and(|h| h >= tail) {
            self.violation(format!("VL5: tail {tail}, acknowledged before: {highest:?}"));
        }
        if checked.is_some_and(|c| c > tail) {
            self.violation(format!("VL5: tail {tail} after {checked:?}"));
        }
        self.checked = self.checked.max(Some(tail));
    }

    fn read(&mut self, from: LogPos, read: &LogRead) {
        if read.first != from {
            self.violation(format!("a reader at {from} was given {}", read.first));
        }
        for (i, entry) in read.entries.iter().enumerate() {
            self.saw(read.first.plus(i as u64), entry);
        }
    }
}

fn roll(env: &Env, sides: u64) -> u64 {
    env.random() % sides.max(1)
}

/// Appends with several submissions in flight. First sends every operation again whose outcome the client does not know. Leaves after
/// `patience` without waiting for answers.
async fn client(env: Env, log: Arc<VirtualLog>, book: Shared, id: u64, until: Tick, patience: Duration) {
    let leave = env.now().after(patience).min(until);
    let retries = book.lock().unwrap().retries(id);
    let mut flights = Vec::new();
    for record in retries {
        flights.push((vec![record.op], None, log.submit(vec![record]).unwrap()));
    }
    loop {
        while flights.len() < 4 && env.now() < leave {
            let count = 1 + roll(&env, 4);
            let floor = log.known_tail();
            let (records, highest): (Vec<LogRecord>, _) = {
                let mut b = book.lock().unwrap();
                let highest = b.highest;
                let state = b.clients.entry(id).or_default();
                let records = (0..count)
                    .map(|_| {
                        state.next += 1;
                        state.pending.insert(state.next, floor);
                        let op = OpId { client: ClientId(id), seq: state.next };
                        LogRecord { op, floor: None, payload: payload(id, op.seq) }
                    })
                    .collect();
                (records, highest)
            };
            let ops: Vec<OpId> = records.iter().map(|r| r.op).collect();
            flights.push((ops, highest, log.submit(records).unwrap()));
            env.sleep(Duration::from_micros(roll(&env, 2000))).await;
        }
        if flights.is_empty() {
            return;
        }
        let (ops, highest, ticket) = flights.remove(0);
        let left = leave.since(env.now()).max(Duration::from_millis(1));
        match env.within(left, ticket).await {
            Ok(Ok(Ok(positions))) => {
                let mut b = book.lock().unwrap();
                for (op, at) in ops.into_iter().zip(positions) {
                    b.acked(op, at, highest);
                }
            }
            Ok(Ok(Err(LogAppendError::Trimmed(_)))) => {
                // The outcome can no longer be determined.
                let mut b = book.lock().unwrap();
                for op in ops {
                    b.settled(op);
                    b.unknown.insert(op.client);
                }
            }
            Ok(Ok(Err(e))) => {
                book.lock().unwrap().violations.push(format!("an append failed: {e}"));
                return;
            }
            // Out of patience: the client continues on another node with the rest.
            Ok(Err(_)) | Err(_) => return,
        }
    }
}

async fn checker(env: Env, log: Arc<VirtualLog>, book: Shared, until: Tick) {
    while env.now() < until {
        let (highest, checked) = {
            let b = book.lock().unwrap();
            (b.highest, b.checked)
        };
        if let Ok(Ok(tail)) = log.check_tail().await {
            book.lock().unwrap().checked(tail, highest, checked);
            // Entries below a tail are readable and never change.
            if tail > LogPos::ZERO {
                let from = LogPos(tail.0.saturating_sub(1 + roll(&env, 5)));
                if let Ok(Ok(read)) = log.read(from..tail, 4096, ReadFrom::Anywhere).await {
                    book.lock().unwrap().read(from, &read);
                }
            }
        }
        env.sleep(Duration::from_micros(roll(&env, 15_000))).await;
    }
}

async fn reader(env: Env, log: Arc<VirtualLog>, book: Shared, until: Tick) {
    let mut reader = log.reader(LogPos::ZERO, ReadFrom::Anywhere);
    while env.now() < until {
        let from = reader.position();
        match env.within(Duration::from_millis(200), reader.next(2000)).await {
            Ok(Ok(read)) => book.lock().unwrap().read(from, &read),
            Ok(Err(LogReadError::Trimmed(to))) => {
                let trimmed = book.lock().unwrap().trimmed;
                if to > trimmed {
                    book.lock().unwrap().violation(format!("trimmed at {to}, asked for {trimmed} at most"));
                }
                reader.seek(to);
            }
            Ok(Err(_)) => env.sleep(Duration::from_millis(5)).await,
            Err(_) => {}
        }
        env.sleep(Duration::from_micros(roll(&env, 3000))).await;
    }
}

/// Reconfigures the log in every way, often without waiting for the outcome.
async fn operator(env: Env, log: Arc<VirtualLog>, book: Shared, until: Tick, kinds: [&'static str; 2]) {
    while env.now() < until {
        env.sleep(Duration::from_micros(roll(&env, 40_000))).await;
        let kind = spec(kinds[roll(&env, 2) as usize]);
        let patience = Duration::from_micros(roll(&env, 20_000));
        match roll(&env, 8) {
            0..=3 => drop(env.within(patience, log.extend(kind)).await),
            4 => drop(env.within(patience, log.truncate()).await),
            5 => {
                let sealed = log.chain().and_then(|c| c.chain.sealed().last().map(|s| s.loglet));
                if let Some(loglet) = sealed {
                    drop(env.within(patience * 3, log.modify(loglet, LogletSpec::default())).await);
                }
            }
            6 => {
                let to = LogPos(log.known_tail().0 * roll(&env, 100) / 100);
                {
                    let mut b = book.lock().unwrap();
                    b.trimmed = b.trimmed.max(to);
                }
                drop(env.within(patience * 3, log.trim(to)).await);
            }
            // Seal and stop there: another node must roll the log forward.
            _ => {
                if let Some(chain) = log.chain() {
                    let active = chain.chain.active();
                    if let Ok(provider) = log.registry().provider(&active.kind)
                        && let Ok(loglet) = provider.open(active.loglet, &active.config)
                    {
                        let _ = env.within(patience, loglet.seal()).await;
                    }
                }
            }
        }
    }
}

/// A client that reads the chain, sleeps through reconfigurations and truncates, and then appends (vlog-V6, vlog-VL10).
async fn sleeper(env: Env, log: Arc<VirtualLog>, book: Shared, id: u64, until: Tick) {
    let _ = log.refresh().await;
    env.sleep(Duration::from_micros(roll(&env, 300_000))).await;
    let work = client(env.clone(), log, book, id, until, Duration::from_millis(40));
    work.await;
}

struct World {
    cluster: Cluster,
    logs: BTreeMap<NodeId, Arc<VirtualLog>>,
    book: Shared,
    until: Tick,
    kinds: [&'static str; 2],
    sleepers: u64,
}

impl World {
    fn new(seed: u64, kinds: [&'static str; 2]) -> Self {
        let mut cluster = Cluster::new(seed, NODES);
        cluster.options.roll_forward_after = Duration::from_millis(20);
        cluster.options.stall_after = Duration::from_millis(30);
        cluster.options.delete_after = Duration::from_millis(30);
        cluster.options.max_batch_bytes = 100;
        let log = cluster.log(1, "log");
        let made = log.create(spec(kinds[0]));
        cluster.run(1, made).unwrap().unwrap();
        let until = cluster.driver.now().after(Duration::from_millis(600));
        let mut world =
            World { cluster, logs: BTreeMap::new(), book: Shared::default(), until, kinds, sleepers: 0 };
        for node in 1..=NODES {
            world.start_node(node);
        }
        for id in 1..=CLIENTS {
            world.start_client(id, seed + id);
        }
        world
    }

    fn start_node(&mut self, node: u32) {
        let (env, log) = (self.cluster.env(node), self.cluster.log(node, "log"));
        self.logs.insert(NodeId(node), log.clone());
        let (book, until) = (self.book.clone(), self.until);
        env.spawn("checker", Box::pin(checker(env.clone(), log.clone(), book.clone(), until)));
        env.spawn("checker", Box::pin(checker(env.clone(), log.clone(), book.clone(), until)));
        env.spawn("reader", Box::pin(reader(env.clone(), log.clone(), book.clone(), until)));
        for _ in 0..2 {
            self.sleepers += 1;
            let own = self.cluster.log(node, "log");
            let id = 1000 + self.sleepers;
            env.spawn("sleeper", Box::pin(sleeper(env.clone(), own, book.clone(), id, until)));
        }
        env.spawn("operator", Box::pin(operator(env.clone(), log, book, until, self.kinds)));
    }

    /// Starts a client on some node. It is started again elsewhere when its patience ends or the node dies.
    fn start_client(&mut self, id: u64, random: u64) {
        let node = NodeId(1 + (random % u64::from(NODES)) as u32);
        let (env, log) = (self.cluster.driver.env(node), self.logs[&node].clone());
        let patience = Duration::from_millis(20 + random % 150);
        let work = client(env.clone(), log, self.book.clone(), id, self.until, patience);
        env.spawn("client", Box::pin(work));
    }

    fn run(&mut self, seed: u64) {
        let mut random = seed;
        let mut leases: BTreeMap<u64, Tick> = BTreeMap::new();
        while self.cluster.driver.now() < self.until {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = random >> 20;
            self.cluster.driver.run_for(Duration::from_millis(1 + r % 9));
            let now = self.cluster.driver.now();
            for id in 1..=CLIENTS {
                // This is longer than any patience, so the client has left the previous node.
                if *leases.entry(id).or_insert_with(|| now.after(Duration::from_millis(180))) <= now {
                    leases.insert(id, now.after(Duration::from_millis(180)));
                    self.start_client(id, r / 3 + id);
                }
            }
            self.faults(r);
            if r.is_multiple_of(23) {
                let node = 1 + (r / 100 % u64::from(NODES)) as u32;
                self.cluster.driver.restart(NodeId(node), |_| {}).unwrap();
                self.start_node(node);
            }
        }
        self.cluster.servers.faults(|f| *f = Default::default());
    }

    fn faults(&mut self, r: u64) {
        let nodes = self.cluster.nodes.clone();
        self.cluster.servers.faults(|f| {
            f.append_unknown = if r.is_multiple_of(3) { 150 } else { 0 };
            f.append_busy = if r.is_multiple_of(5) { 100 } else { 0 };
            f.append_forgotten = if r.is_multiple_of(7) { 300 } else { 0 };
            f.unavailable = if r.is_multiple_of(4) { 200 } else { 0 };
            f.register_unknown = if r % 4 == 1 { 400 } else { 0 };
            f.register_down = if r.is_multiple_of(11) { 500 } else { 0 };
            f.max_delay = Duration::from_micros(300 + r % 6000);
            if r.is_multiple_of(9) {
                f.stopped.clear();
            }
            if r.is_multiple_of(13) {
                f.stopped.insert(nodes[(r / 50) as usize % nodes.len()]);
            }
        });
    }

    /// Checks, after the faults have ended, that the log accepts appends, all nodes read the same, and no acknowledged entry is missing.
    fn judge(&mut self, seed: u64) {
        for id in 1..=CLIENTS {
            self.settle(id);
        }
        let mut logs: Vec<(u32, Arc<VirtualLog>)> =
            (1..=NODES).map(|n| (n, self.cluster.log(n, "log"))).collect();
        logs.extend(self.logs.iter().map(|(n, l)| (n.0, l.clone())));
        let mut trims = Vec::new();
        for (node, log) in logs {
            let book = self.book.clone();
            let env = self.cluster.env(node);
            let got = self.cluster.run(node, async move {
                let limit = env.now().after(Duration::from_secs(60));
                env.within(limit.since(env.now()), read_everything(env.clone(), log, book)).await
            });
            match got {
                Ok(trim) => trims.push(trim),
                Err(_) => panic!("seed {seed}: node {node} cannot read the log after the faults are over"),
            }
        }
        let book = self.book.lock().unwrap();
        assert!(book.violations.is_empty(), "seed {seed}: {:#?}", book.violations);
        let trim = trims.into_iter().max().unwrap();
        let mut places: BTreeMap<OpId, LogPos> = BTreeMap::new();
        for (at, entry) in &book.content {
            assert_eq!(entry.payload, payload(entry.op.client.0, entry.op.seq), "seed {seed}: made up");
            if let Some(first) = places.insert(entry.op, *at) {
                panic!("seed {seed}: {:?} is at {first} and at {at}", entry.op);
            }
        }
        if self.kinds.iter().all(|k| *k == "memory") {
            // X15: the records that a client sent in order are in the log in that order, across seals, lost answers and changes of node.
            let in_order = places.iter().zip(places.iter().skip(1));
            for ((a, at), (b, then)) in
                in_order.filter(|((a, _), (b, _))| a.client == b.client && !book.unknown.contains(&a.client))
            {
                assert!(at < then, "seed {seed}: {a:?} is at {at}, {b:?} before it at {then}");
            }
        }
        for (op, at) in &book.acked {
            match book.content.get(at) {
                Some(entry) if entry.op == *op => {}
                None if *at < trim => {}
                other => panic!("seed {seed}: VL4: {op:?} was acknowledged at {at}, there is {other:?}"),
            }
        }
        assert!(book.acks > 20, "seed {seed}: only {} appends were acknowledged", book.acks);
        assert!(book.reads > 20, "seed {seed}: only {} entries were read", book.reads);
    }

    /// Resolves the operations whose outcome a client does not know yet.
    fn settle(&mut self, id: u64) {
        let (env, log, book) = (self.cluster.env(1), self.cluster.log(1, "log"), self.book.clone());
        self.cluster.run(1, async move {
            let records = book.lock().unwrap().retries(id);
            for record in records {
                let op = record.op;
                let ticket = log.submit(vec![record]).unwrap();
                match env.within(Duration::from_secs(60), ticket).await {
                    Ok(Ok(Ok(at))) => book.lock().unwrap().acked(op, at[0], None),
                    // The record may have been in the part that was trimmed.
                    Ok(Ok(Err(LogAppendError::Trimmed(_)))) => {}
                    other => panic!("{op:?} has no answer after the faults are over: {other:?}"),
                }
            }
        });
    }
}

async fn read_everything(env: Env, log: Arc<VirtualLog>, book: Shared) -> LogPos {
    let tail = loop {
        match log.check_tail().await {
            Ok(Ok(tail)) => break tail,
            _ => env.sleep(Duration::from_millis(5)).await,
        }
    };
    if let Some(checked) = book.lock().unwrap().checked {
        assert!(tail >= checked, "the tail went back from {checked} to {tail}");
    }
    let (mut at, mut trim) = (LogPos::ZERO, LogPos::ZERO);
    while at < tail {
        match log.read(at..tail, 1000, ReadFrom::Anywhere).await.unwrap() {
            Ok(read) => {
                book.lock().unwrap().read(at, &read);
                at = read.next();
            }
            Err(LogReadError::Trimmed(to)) => (at, trim) = (to, to),
            Err(LogReadError::Log(LogError::Unavailable(_))) => env.sleep(Duration::from_millis(5)).await,
            Err(e) => panic!("{at} below the tail {tail} is not readable: {e}"),
        }
    }
    trim
}

fn scenario(seed: u64) {
    let kinds = if seed.is_multiple_of(3) { ["memory", "shuffled"] } else { ["memory", "memory"] };
    let mut world = World::new(seed, kinds);
    world.run(seed);
    world.judge(seed);
}

/// Seeds of one run. ATOLL_SEEDS sets another number.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let wanted = std::env::var("ATOLL_SEEDS").ok().and_then(|n| n.parse().ok());
    0..wanted.unwrap_or(usual)
}

#[test]
fn the_log_holds_under_faults() {
    take_marks();
    for seed in seeds(150) {
        scenario(seed);
    }
    let marks = take_marks();
    for mark in [
        "vlog.append.found",
        "vlog.append.sought",
        "vlog.check_tail.sealed",
        "vlog.check_tail.superseded",
        "vlog.extend.again",
        "vlog.extend.met_by_other",
        "vlog.follow.sealed",
        "vlog.install.lost",
        "vlog.install.mine_after_all",
        "vlog.install.unknown",
        "vlog.lane.cold",
        "vlog.lane.forgotten",
        "vlog.lane.stalled",
        "vlog.modify",
        "vlog.read.gone",
        "vlog.read.superseded",
        "vlog.read.trimmed",
        "vlog.roll_forward",
        "vlog.trim.truncated",
    ] {
        assert!(marks.contains_key(mark), "{mark} was never reached; reached: {marks:?}");
    }
}

/// Returns how many of `seeds` notice a mutant.
fn caught(mutant: Mutant, seeds: std::ops::Range<u64>) -> usize {
    set_mutant(mutant);
    let n = seeds.filter(|seed| catch_unwind(AssertUnwindSafe(|| scenario(*seed))).is_err()).count();
    set_mutant(Mutant::NONE);
    n
}

#[test]
fn mutants_are_caught_from_outside() {
    for mutant in [
        atoll_log::mutants::VLOG_V1,
        atoll_log::mutants::VLOG_V2,
        atoll_log::mutants::VLOG_V3,
        atoll_log::mutants::VLOG_V4,
        atoll_log::mutants::VLOG_V7,
        atoll_log::mutants::VLOG_V14,
        atoll_log::mutants::VLOG_INSTALL_WITHOUT_SEAL,
        atoll_contract::mutants::VLOG_REVIVED_LOGLET,
    ] {
        let n = caught(mutant, 0..30);
        println!("{mutant:?}: caught by {n} of 30 seeds");
        assert!(n > 0, "{mutant:?} was not noticed");
    }
}

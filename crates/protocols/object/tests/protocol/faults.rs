//! Plays random clients of one Loglet on several nodes over a store that is slow, loses requests and answers, and is late with some;
//! compares what they saw with a simple oracle, which knows only the contract. And shows that it finds each known bug of the protocol.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{
    AppendError, Batch, ClientId, Entry, Loglet, LogletError, LogletId, LogletProvider, Offset, OpId,
    ReadError, ReadFrom,
};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::*;
use atoll_object::store::Store;
use atoll_object::testing::{Faults, Memory};
use atoll_object::{ObjectConfig, ObjectOptions, ObjectProvider, mutants};

const NODES: u32 = 3;
const TOKEN: u64 = 5;
const ID: LogletId = LogletId(9);
/// How many seeds are played.
const SEEDS: u64 = 60;
/// How long the clients play.
const PLAY: Duration = Duration::from_millis(600);
/// How long everything may take afterwards, without faults.
const PATIENCE: Duration = Duration::from_secs(60);

/// What clients saw. Numbers are moments: each call and each return has its own.
#[derive(Debug, Default)]
struct Seen {
    moment: u64,
    /// Of each operation that was acknowledged: when its first attempt began, when it was acknowledged, where it is.
    acks: BTreeMap<OpId, (u64, u64, Offset)>,
    /// Operations of which every attempt surely did not happen.
    refused: Vec<OpId>,
    /// Tails: when the check began and ended, the tail, whether it was sealed.
    tails: Vec<(u64, u64, Offset, bool)>,
    /// When the first seal ended.
    sealed: Option<u64>,
    /// The highest trim that ended.
    trim: Offset,
    /// What readers have read.
    read: BTreeMap<Offset, OpId>,
    broken: Vec<String>,
}

impl Seen {
    fn read(&mut self, from: Offset, ops: impl Iterator<Item = OpId>) {
        for (i, op) in ops.enumerate() {
            let at = from.plus(i as u64);
            let before = self.read.insert(at, op);
            if before.is_some_and(|before| before != op) {
                self.broken.push(format!("N1: {at} was {before:?}, now it is {op:?}"));
            }
        }
    }
}

type Shared = Arc<Mutex<Seen>>;

fn moment(seen: &Shared) -> u64 {
    let mut seen = seen.lock().unwrap();
    seen.moment += 1;
    seen.moment
}

struct Client {
    env: Env,
    /// The handle of each node, this one's first.
    handles: Vec<(Env, Arc<dyn Loglet>)>,
    seen: Shared,
    until: Tick,
    id: u64,
}

impl Client {
    fn below(&self, n: u64) -> u64 {
        self.env.random() % n
    }

    async fn nap(&self, up_to_ms: u64) {
        self.env.sleep(Duration::from_micros(self.below(up_to_ms * 1000) + 1)).await;
    }

    fn plays(&self) -> bool {
        self.env.now() < self.until
    }

    fn handle(&self) -> Arc<dyn Loglet> {
        self.handles[self.below(self.handles.len() as u64) as usize].1.clone()
    }

    /// Appends one batch after the other. One with an unknown outcome is retried, through any node, until its outcome is known.
    async fn append(self, lazy: bool) {
        let mut seq = 1;
        while self.plays() {
            let count = 1 + self.below(3);
            let ops: Vec<OpId> =
                (seq..seq + count).map(|seq| OpId { client: ClientId(self.id), seq }).collect();
            seq += count;
            let start = moment(&self.seen);
            let floor = self.handle().known_tail();
            if !self.settle(&ops, start, floor).await {
                return;
            }
            // A lazy client sleeps while others append and trim, so that its node knows nothing new.
            self.nap(if lazy { 300 } else { 8 }).await;
        }
    }

    /// Returns false once the Loglet is sealed.
    async fn settle(&self, ops: &[OpId], start: u64, mut floor: Offset) -> bool {
        let entries = || ops.iter().map(|op| Entry { op: *op, payload: format!("{op:?}").into() });
        let mut doubt = false;
        loop {
            match self.handle().append_above(Batch::of(entries()), floor).await.unwrap() {
                Ok(placement) => {
                    let end = moment(&self.seen);
                    let mut seen = self.seen.lock().unwrap();
                    for (op, offset) in ops.iter().zip(placement.offsets()) {
                        seen.acks.insert(*op, (start, end, offset));
                    }
                    return true;
                }
                Err(AppendError::Sealed) => return false,
                Err(AppendError::NotAppended(_)) if !doubt && self.below(2) == 0 => {
                    self.seen.lock().unwrap().refused.extend(ops);
                    return true;
                }
                Err(AppendError::NotAppended(_)) => {}
                Err(AppendError::Unknown(_)) => doubt = true,
                Err(AppendError::Forgotten) => match self.search(ops, floor).await {
                    Some(found) => floor = found,
                    // Trimmed in the meantime, or found: its outcome is not checked further.
                    None => return true,
                },
            }
            if !self.plays() && self.env.now() > self.until.after(PATIENCE) {
                self.seen.lock().unwrap().broken.push(format!("{ops:?} are never settled"));
                return false;
            }
            self.nap(5).await;
        }
    }

    /// Searches the log for operations. Returns the tail up to which they are not there; None if one of them is, or the log is trimmed.
    async fn search(&self, ops: &[OpId], from: Offset) -> Option<Offset> {
        let handle = self.handle();
        let tail = loop {
            match handle.check_tail().await {
                Ok(tail) => break tail,
                Err(_) => self.nap(5).await,
            }
        };
        let mut at = from;
        while at < tail.at {
            match handle.read(at..tail.at, 100, ReadFrom::Anywhere).await {
                Ok(read) if read.entries.iter().any(|e| ops.contains(&e.op)) => return None,
                Ok(read) => at = at.plus(read.entries.len() as u64),
                Err(ReadError::Trimmed(_)) => return None,
                Err(_) => self.nap(5).await,
            }
        }
        Some(tail.at)
    }

    async fn check(self) {
        while self.plays() {
            let start = moment(&self.seen);
            if let Ok(tail) = self.handle().check_tail().await {
                let end = moment(&self.seen);
                self.seen.lock().unwrap().tails.push((start, end, tail.at, tail.sealed.is_some()));
            }
            self.nap(20).await;
        }
    }

    /// Trims up to the tail of some time ago, so that readers can have read most of it.
    async fn trim(self) {
        let mut to = Offset::ZERO;
        while self.plays() {
            self.nap(25).await;
            let handle = self.handle();
            if let Ok(tail) = handle.check_tail().await
                && handle.prefix_trim(to).await.is_ok()
            {
                let mut seen = self.seen.lock().unwrap();
                seen.trim = seen.trim.max(to);
                to = tail.at;
            }
        }
    }

    /// Follows the log.
    async fn follow(self) {
        let mut at = Offset::ZERO;
        while self.plays() {
            let handle = self.handle();
            let Ok(tail) = handle.wait_tail(at).await else { continue };
            while at < tail.at {
                match handle.read(at..tail.at, 200, ReadFrom::Anywhere).await {
                    Ok(read) => {
                        self.seen.lock().unwrap().read(at, read.entries.iter().map(|e| e.op));
                        at = at.plus(read.entries.len() as u64);
                    }
                    Err(ReadError::Trimmed(to)) => at = to,
                    Err(_) => self.nap(5).await,
                }
            }
            if tail.sealed.is_some() {
                return;
            }
            self.nap(2).await;
        }
    }

    async fn seal(self) {
        self.env.sleep(PLAY.mul_f64(0.5 + self.below(400) as f64 / 1000.0)).await;
        while self.handle().seal().await.is_err() {
            self.nap(5).await;
        }
        let end = moment(&self.seen);
        let mut seen = self.seen.lock().unwrap();
        seen.sealed = Some(seen.sealed.map_or(end, |first| first.min(end)));
    }
}

fn provider(env: &Env, store: Arc<dyn Store>, append_timeout: Duration) -> ObjectProvider {
    let options = ObjectOptions {
        append_timeout,
        op_timeout: Duration::from_millis(200),
        request_timeout: Duration::from_millis(8),
        retry: Duration::from_millis(1),
        dedupe_spans: 64,
        look_every: (Duration::from_millis(1), Duration::from_millis(4)),
        ..ObjectOptions::default()
    };
    ObjectProvider::with_store(env.clone(), options, store)
}

/// Plays one seed. Returns what is wrong.
fn play(seed: u64) -> Vec<String> {
    let mut driver = Driver::new(seed);
    let memory = Memory::default();
    let faults: Faults = memory.faults.clone();
    let mut config = ObjectConfig::at("memory:///t", TOKEN);
    (config.interval_ms, config.block_objects, config.batch_bytes) =
        ((seed % 3) as u32, 1 + (seed % 3) as u32, 300);
    let mut handles: Vec<(Env, Arc<dyn Loglet>)> = Vec::new();
    for n in 1..=NODES {
        let env = driver.add_node(NodeId(n), |_| {});
        let store = memory.of(&env);
        if n == 1 {
            let put =
                store.put(format!("t/stores/{TOKEN:016x}"), vec![1].into(), atoll_object::store::Put::Create);
            assert_eq!(driver.block_on(NodeId(1), put), Ok(true));
        }
        let patience = Duration::from_millis([6, 15, 60][(seed / 2 % 3) as usize]);
        let handle = provider(&env, store, patience).open(ID, &config.to_bytes()).unwrap();
        handles.push((env, handle));
    }
    faults.set_delay(Duration::from_micros([100, 400, 1_500][(seed / 3 % 3) as usize]));
    match seed % 4 {
        0 => faults.set(0, 0, 0, 0),
        1 => faults.set(50, 50, 10, 50),
        2 => faults.set(0, 150, 20, 0),
        _ => faults.set(100, 100, 30, 150),
    }
    let seen = Shared::default();
    let until = driver.now().after(PLAY);
    let mut work = Vec::new();
    for at in 0..handles.len() {
        let mut own = handles.clone();
        own.rotate_left(at);
        let client = |id: u64, all: bool| Client {
            env: own[0].0.clone(),
            handles: own[..if all { own.len() } else { 1 }].to_vec(),
            seen: seen.clone(),
            until,
            id: 100 * (at as u64 + 1) + id,
        };
        let env = own[0].0.clone();
        work.push(env.launch("append", client(1, true).append(false)));
        work.push(env.launch("lazy", client(2, false).append(true)));
        work.push(env.launch("check", client(3, true).check()));
        work.push(env.launch("follow", client(6, false).follow()));
        match at {
            0 => work.push(env.launch("trim", client(4, false).trim())),
            1 => work.push(env.launch("seal", client(5, false).seal())),
            _ => {}
        }
    }
    driver.run_for(PLAY);
    faults.heal();
    let limit = driver.now().after(PATIENCE * 2);
    for mut ticket in work {
        while ticket.try_take().is_none() {
            if !driver.step(limit) {
                return vec!["an operation never ends".to_owned()];
            }
        }
    }
    let all = contents(&mut driver, &handles, &seen);
    let seen = seen.lock().unwrap();
    let mut broken = seen.broken.clone();
    judge(&seen, &all, &mut broken);
    broken
}

/// The first offset that is readable, the sealed tail, and the operations in between, as each node sees them.
type Contents = Vec<(Offset, Offset, Vec<OpId>)>;

fn contents(driver: &mut Driver, handles: &[(Env, Arc<dyn Loglet>)], seen: &Shared) -> Contents {
    let mut all = Contents::new();
    for (env, handle) in handles {
        let (env2, handle, seen) = (env.clone(), handle.clone(), seen.clone());
        all.push(driver.block_on(env.node(), async move {
            let again = |error: LogletError| assert!(matches!(error, LogletError::Unavailable(_)), "{error}");
            while let Err(error) = handle.seal().await {
                again(error);
                env2.sleep(Duration::from_millis(3)).await;
            }
            let tail = loop {
                match handle.check_tail().await {
                    Ok(tail) => break tail,
                    Err(error) => again(error),
                }
                env2.sleep(Duration::from_millis(3)).await;
            };
            if tail.sealed.is_none() {
                seen.lock().unwrap().broken.push("L2: a sealed loglet is open".to_owned());
            }
            let (mut from, mut ops) = (Offset::ZERO, Vec::new());
            while from.plus(ops.len() as u64) < tail.at {
                let at = from.plus(ops.len() as u64);
                match handle.read(at..tail.at, 1000, ReadFrom::Anywhere).await {
                    Ok(read) => ops.extend(read.entries.iter().map(|e| e.op)),
                    Err(ReadError::Trimmed(to)) => (from, ops) = (to, Vec::new()),
                    Err(ReadError::Unavailable(_)) => env2.sleep(Duration::from_millis(3)).await,
                    Err(error) => panic!("{at} is not readable: {error}"),
                }
            }
            seen.lock().unwrap().read(from, ops.iter().copied());
            (from, tail.at, ops)
        }));
    }
    all
}

fn judge(seen: &Seen, all: &Contents, broken: &mut Vec<String>) {
    let mut check = |holds: bool, what: String| {
        if !holds {
            broken.push(what);
        }
    };
    let (from, tail, _) = &all[0];
    check(all.iter().all(|one| one == &all[0]), format!("nodes see different logs: {all:?}"));
    check(*from >= seen.trim, format!("trimmed up to {}, and {from} is readable", seen.trim));
    let mut places: BTreeMap<OpId, Vec<Offset>> = BTreeMap::new();
    for (at, op) in &seen.read {
        places.entry(*op).or_default().push(*at);
        check(at < tail, format!("{at} was read, and the tail is {tail}"));
    }
    for (op, offsets) in &places {
        check(offsets.len() == 1, format!("VL4: {op:?} is at {offsets:?}"));
        check(!seen.refused.contains(op), format!("{op:?} was not appended, and is at {offsets:?}"));
    }
    for (op, (start, end, offset)) in &seen.acks {
        check(offset < tail, format!("L3: {op:?} was acknowledged at {offset}, the tail is {tail}"));
        let there = (offset < from && !seen.read.contains_key(offset))
            || places.get(op).is_some_and(|at| at.contains(offset));
        check(there, format!("L1: {op:?} was acknowledged at {offset}, and is at {:?}", places.get(op)));
        let before = seen.tails.iter().filter(|(_, ended, ..)| ended < start).map(|(_, _, at, _)| *at).max();
        check(
            before.is_none_or(|before| before <= *offset),
            format!("{op:?} is at {offset}, below the tail {before:?} of before its first attempt"),
        );
        let missed = seen.tails.iter().find(|(began, _, at, _)| end < began && at <= offset);
        check(
            missed.is_none(),
            format!("L4: {op:?} was acknowledged at {offset} before the check {missed:?}"),
        );
        check(seen.sealed.is_none_or(|sealed| *start < sealed), format!("L2: {op:?} began behind the seal"));
    }
    for (_, _, at, sealed) in &seen.tails {
        check(
            if *sealed { at == tail } else { at <= tail },
            format!("L4: the tail was {at} ({sealed}), now {tail}"),
        );
    }
    let mut offsets: Vec<Offset> = seen.acks.values().map(|(_, _, offset)| *offset).collect();
    offsets.sort_unstable();
    check(offsets.windows(2).all(|two| two[0] != two[1]), "N1: an offset was acknowledged twice".to_owned());
}

#[test]
fn what_clients_see_is_a_log() {
    for seed in 0..SEEDS {
        let broken = play(seed);
        assert!(broken.is_empty(), "seed {seed}: {broken:#?}");
    }
}

/// Panics unless one of the seeds finds the bug: by the oracle, or by an invariant of the product.
fn is_found(bug: Mutant) {
    set_mutant(bug);
    let found = (0..SEEDS * 2).find(|seed| {
        let played = catch_unwind(AssertUnwindSafe(|| play(*seed)));
        played.is_err() || played.is_ok_and(|broken| !broken.is_empty())
    });
    assert!(found.is_some(), "no seed finds {bug:?}");
}

#[test]
fn a_put_without_a_condition_is_found() {
    is_found(mutants::OBJECT_OVERWRITES);
}

#[test]
fn a_seal_that_leaves_the_next_index_free_is_found() {
    is_found(mutants::OBJECT_SEAL_BESIDE);
}

#[test]
fn silence_that_counts_as_a_refusal_is_found() {
    is_found(mutants::OBJECT_SILENCE_IS_NO);
}

/// A node that was away reads many small objects from a store that is far away. One after the other, it would never catch up with nodes
/// that each put one every 50 ms.
#[test]
fn many_small_objects_are_read_at_once() {
    const OBJECTS: u64 = 96;
    const FAR: Duration = Duration::from_millis(4);
    let mut driver = Driver::new(1);
    let memory = Memory::default();
    let config = ObjectConfig { interval_ms: 0, ..ObjectConfig::at("memory:///t", TOKEN) }.to_bytes();
    let envs: Vec<Env> = [1, 2].map(|n| driver.add_node(NodeId(n), |_| {})).to_vec();
    let store = memory.of(&envs[0]);
    let put = store.put(format!("t/stores/{TOKEN:016x}"), vec![1].into(), atoll_object::store::Put::Create);
    assert_eq!(driver.block_on(NodeId(1), put), Ok(true));
    let open = |env: &Env| provider(env, memory.of(env), Duration::from_secs(1)).open(ID, &config).unwrap();
    let (writer, reader, env) = (open(&envs[0]), open(&envs[1]), envs[1].clone());
    driver.block_on(NodeId(1), async move {
        for seq in 1..=OBJECTS {
            let op = OpId { client: ClientId(1), seq };
            writer.append(Batch::of([Entry { op, payload: "x".into() }])).await.unwrap().unwrap();
        }
    });
    memory.faults.set_delay(FAR);
    let took = driver.block_on(NodeId(2), async move {
        let tail = reader.check_tail().await.unwrap().at;
        assert_eq!(tail, Offset(OBJECTS), "each append is an object");
        let (start, mut at) = (env.now(), Offset(0));
        while at < tail {
            at = at
                .plus(reader.read(at..tail, 1 << 20, ReadFrom::Anywhere).await.unwrap().entries.len() as u64);
        }
        env.now().since(start)
    });
    // One after the other, each takes two requests, and a request takes `FAR` on average.
    assert!(took < FAR * OBJECTS as u32, "reading {OBJECTS} objects took {took:?}");
}

/// A node that knows nothing new appends where others have appended and trimmed. Returns where its record went, and the trim.
fn late_append() -> (Result<Offset, AppendError>, Offset) {
    let mut driver = Driver::new(1);
    let memory = Memory::default();
    let config = ObjectConfig { block_objects: 1, ..ObjectConfig::at("memory:///t", TOKEN) }.to_bytes();
    let envs: Vec<Env> = [1, 2].map(|n| driver.add_node(NodeId(n), |_| {})).to_vec();
    let store = memory.of(&envs[0]);
    let put = store.put(format!("t/stores/{TOKEN:016x}"), vec![1].into(), atoll_object::store::Put::Create);
    assert_eq!(driver.block_on(NodeId(1), put), Ok(true));
    let open = |env: &Env| provider(env, memory.of(env), Duration::from_secs(1)).open(ID, &config).unwrap();
    let (busy, idle) = (open(&envs[0]), open(&envs[1]));
    let batch = |client, seq| {
        let op = OpId { client: ClientId(client), seq };
        Batch::of([Entry { op, payload: "x".into() }])
    };
    let first = idle.append(batch(2, 1));
    assert!(driver.block_on(NodeId(2), first).unwrap().is_ok());
    let trim = driver.block_on(NodeId(1), async move {
        for seq in 1..6 {
            busy.append_above(batch(1, seq), Offset(0)).await.unwrap().unwrap();
        }
        let tail = busy.check_tail().await.unwrap().at;
        busy.prefix_trim(tail).await.unwrap();
        tail
    });
    driver.run_for(Duration::from_secs(1));
    let late = idle.append_above(batch(2, 2), trim);
    let placed = driver.block_on(NodeId(2), late).unwrap();
    (placed.map(|p| p.offsets().next().unwrap()), trim)
}

#[test]
fn a_put_into_a_deleted_block_does_not_count() {
    let (placed, trim) = late_append();
    let holds =
        matches!(&placed, Err(AppendError::Unknown(_))) || placed.as_ref().is_ok_and(|at| *at >= trim);
    assert!(holds, "a late append is at {placed:?}, and the log is trimmed below {trim}");
}

#[test]
fn a_put_into_a_deleted_block_that_counts_is_found() {
    set_mutant(mutants::OBJECT_BELIEVES_PUTS);
    let (placed, trim) = late_append();
    assert!(placed.is_ok_and(|at| at < trim), "the bug shows");
}

#[test]
fn an_appender_that_ignores_what_others_append_is_found() {
    is_found(mutants::OBJECT_IGNORES_OTHERS);
}

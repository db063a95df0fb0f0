//! Transactions on a network that loses, reorders and duplicates messages, with coordinators that die (rmwpaxos §12). Transfers leave the
//! sum of all accounts alone, and of two clerks one is always on duty. Known bugs that are switched on must break one of these.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::world::{Faults, World};
use atoll_contract::keyspace::{
    Change, Durability, Guard, Held, KeyVersion, Keyspace, KeyspaceError, Transacted, TxnPart,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Env, NodeId};
use atoll_in_place::{InPlaceSpace, mutants};
use bytes::Bytes;

const ACCOUNTS: u64 = 3;
const START: i64 = 100;
const CLERKS: [&str; 2] = ["clerk-a", "clerk-b"];

/// What all clients share: violations, and what was reached.
#[derive(Clone, Default)]
struct Report(Arc<Mutex<Found>>);

/// Violations, and how often each mark was reached.
type Found = (Vec<String>, BTreeMap<&'static str, u64>);

impl Report {
    fn fail(&self, words: String) {
        self.0.lock().unwrap().0.push(words);
    }

    fn count(&self, what: &'static str) {
        *self.0.lock().unwrap().1.entry(what).or_default() += 1;
    }
}

fn all_keys() -> Vec<Bytes> {
    let accounts = (0..ACCOUNTS).map(|n| Bytes::from(format!("account-{n}")));
    accounts.chain(CLERKS.iter().map(|name| Bytes::from_static(name.as_bytes()))).collect()
}

fn number(held: Option<&Held>) -> i64 {
    std::str::from_utf8(&held.unwrap().value).unwrap().parse().unwrap()
}

fn put(key: Bytes, guard: Guard, value: String) -> TxnPart {
    TxnPart::new(key, guard, Some(Change::Put(Bytes::from(value))))
}

/// A name that nobody else has: no transaction is repeated here.
fn name(env: &Env) -> OpId {
    OpId { client: ClientId(env.random().max(1)), seq: 1 }
}

fn version(held: Option<&Held>) -> Guard {
    Guard::Version(held.unwrap().version)
}

/// Reads everything, and checks it in a transaction. Returns whether everything was so at one moment.
async fn audit(env: &Env, space: &InPlaceSpace, report: &Report) -> bool {
    let keys = all_keys();
    let Ok(found) = space.get_many(keys.clone()).await else { return false };
    if found.iter().any(Option::is_none) {
        report.fail(format!("a key is gone: {found:?}"));
        return false;
    }
    let check = |(key, held): (Bytes, &Option<Held>)| TxnPart::new(key, version(held.as_ref()), None);
    let checks = keys.into_iter().zip(&found).map(check).collect();
    if !matches!(space.transact(name(env), false, checks).await, Ok(Transacted::Done(_))) {
        return false;
    }
    report.count("audits");
    let (accounts, clerks) = found.split_at(ACCOUNTS as usize);
    let sum: i64 = accounts.iter().map(|held| number(held.as_ref())).sum();
    if sum != START * ACCOUNTS as i64 {
        report.fail(format!("the accounts have {sum}: {accounts:?}"));
    }
    if clerks.iter().all(|held| held.as_ref().unwrap().value == "off") {
        report.fail(format!("both clerks are off duty: {clerks:?}"));
    }
    true
}

/// Transfers, clerks that come and go, and audits.
async fn client(env: Env, space: InPlaceSpace, report: Report, me: usize) {
    let keys = all_keys();
    loop {
        env.sleep(env.jitter(Duration::from_millis(4))).await;
        let parts = match env.random() % 4 {
            0 => {
                audit(&env, &space, &report).await;
                continue;
            }
            1 => {
                // The other clerk is only checked (rmw-TX6).
                let (mine, other) = (keys[3 + me % 2].clone(), keys[4 - me % 2].clone());
                if env.random().is_multiple_of(2) {
                    let on_duty = Guard::Value(Bytes::from_static(b"on"));
                    vec![put(mine, Guard::Present, "off".into()), TxnPart::new(other, on_duty, None)]
                } else {
                    vec![put(mine, Guard::Present, "on".into())]
                }
            }
            _ => {
                let (from, to) = ((env.random() % ACCOUNTS) as usize, (env.random() % ACCOUNTS) as usize);
                let asked = vec![keys[from].clone(), keys[to].clone()];
                let Ok(found) = space.get_many(asked).await else { continue };
                // A key that is gone is for an audit to find.
                if from == to || found.iter().any(Option::is_none) {
                    continue;
                }
                let (here, there) = (found[0].as_ref(), found[1].as_ref());
                let amount = 1 + (env.random() % 30) as i64;
                vec![
                    put(keys[from].clone(), version(here), (number(here) - amount).to_string()),
                    put(keys[to].clone(), version(there), (number(there) + amount).to_string()),
                ]
            }
        };
        match space.transact(name(&env), false, parts).await {
            Ok(Transacted::Done(_)) => report.count("done"),
            Ok(Transacted::Not(_)) => report.count("refused"),
            Err(_) => report.count("failed"),
        }
    }
}

struct Run {
    violations: Vec<String>,
    reached: BTreeMap<&'static str, u64>,
}

fn run(seed: u64) -> Run {
    let mut world = World::new(seed, 3, 3, Durability::Disk);
    world.options.reply_timeout = Duration::from_millis(30);
    world.options.patience = Duration::from_millis(100);
    world.options.txn_grace = Duration::from_millis(40);
    world.options.forget_after = Duration::from_millis(30);
    world.options.open_keys = if seed.is_multiple_of(2) { 4 } else { 512 };
    world.start_all();
    let (env, space) = (world.env(1), world.space(1));
    let opened = world.run_on(1, async move {
        let start = |key: Bytes| {
            let value = if key.starts_with(b"clerk") { "on".to_owned() } else { START.to_string() };
            put(key, Guard::Absent, value)
        };
        space.transact(name(&env), false, all_keys().into_iter().map(start).collect()).await
    });
    assert!(matches!(opened, Some(Ok(Transacted::Done(_)))), "{opened:?}");
    let report = Report::default();
    let started = report.clone();
    world.on_start = Some(Box::new(move |env, space| {
        for me in 0..2 {
            let client = client(env.clone(), space.clone(), started.clone(), me);
            env.spawn("client", Box::pin(client));
        }
    }));
    world.faults = Faults { drop: 3, duplicate: 4, ..Faults::CHAOS };
    for node in 1..=3 {
        world.crash(NodeId(node));
        world.start(NodeId(node));
    }
    for _ in 0..14 {
        let d = Duration::from_millis(20 + world.rng.below(80));
        world.run_for(d);
        let victim = NodeId(1 + world.rng.below(3) as u32);
        if world.running(victim) {
            world.crash(victim);
            let d = Duration::from_micros(world.rng.below(60_000));
            world.run_for(d);
            world.start(victim);
        }
    }
    // No client is left, and nothing that a dead coordinator has locked stays so.
    world.on_start = None;
    world.faults = Faults::NONE;
    for node in 1..=3 {
        world.crash(NodeId(node));
        world.start(NodeId(node));
    }
    let (env, space, at) = (world.env(2), world.space(2), report.clone());
    let settled = world.run_on(2, async move {
        for _ in 0..50 {
            if audit(&env, &space, &at).await {
                return true;
            }
        }
        false
    });
    if settled != Some(true) {
        report.fail("LIVENESS: something stays locked".to_owned());
    }
    let (mut violations, mut reached) = std::mem::take(&mut *report.0.lock().unwrap());
    violations.append(&mut world.verdict.failures);
    reached.extend(world.marks);
    Run { violations, reached }
}

#[test]
fn sums_are_constant_and_nothing_stays_locked() {
    set_mutant(Mutant::NONE);
    let mut reached: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in 0..60 {
        let run = run(seed);
        assert!(run.violations.is_empty(), "seed {seed}: {:?}", run.violations);
        run.reached.into_iter().for_each(|(mark, n)| *reached.entry(mark).or_default() += n);
    }
    let wanted = [
        "audits",
        "done",
        "in-place.txn.aborts_other",
        "in-place.txn.conflict",
        "in-place.txn.meets_lock",
        "in-place.txn.read_meets_lock",
        "in-place.txn.rolls_forward",
    ];
    for mark in wanted {
        assert!(reached.contains_key(mark), "no seed reaches {mark}: {reached:?}");
    }
}

/// A transaction that puts one value into a key that is there.
async fn put_once(space: InPlaceSpace, op: OpId, repeat: bool) -> Result<Transacted, KeyspaceError> {
    let part = put(Bytes::from_static(b"k"), Guard::Present, "new".to_owned());
    space.transact(op, repeat, vec![part]).await
}

/// Opens a key through node 1 of a calm world. The fourth node has no replica.
fn world_with_a_key() -> World {
    let mut world = World::new(1, 4, 3, Durability::Disk);
    world.options.patience = Duration::from_millis(100);
    world.start_all();
    let (env, space) = (world.env(1), world.space(1));
    let opened = world.run_on(1, async move {
        let part = put(Bytes::from_static(b"k"), Guard::Absent, "old".to_owned());
        space.transact(name(&env), false, vec![part]).await
    });
    assert!(matches!(opened, Some(Ok(Transacted::Done(_)))), "{opened:?}");
    world.run_for(Duration::from_millis(50));
    world
}

/// Lets a repeat through one node be faster than the first attempt through another one. Returns the answer to each.
fn repeat_first(bug: Mutant) -> Vec<Option<Result<Transacted, KeyspaceError>>> {
    set_mutant(bug);
    let mut world = world_with_a_key();
    let op = OpId { client: ClientId(7), seq: 1 };
    let told = [(2, true), (1, false), (3, true)].map(|(node, repeat)| {
        let space = world.space(node);
        world.run_on(node, put_once(space, op, repeat))
    });
    set_mutant(Mutant::NONE);
    told.into()
}

#[test]
fn a_first_attempt_after_its_repeat_is_not_done_again() {
    let told = repeat_first(Mutant::NONE);
    assert!(matches!(&told[0], Some(Ok(Transacted::Done(_)))), "{told:?}");
    assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    let told = repeat_first(mutants::IN_PLACE_TXN_TWICE);
    assert_ne!(told[0], told[1], "nobody noticed that it was done twice");
}

/// Repeats a transaction through a node that is cut off after so many frames. Returns the answer to the repeat.
fn cut_off(bug: Mutant, frames: u64) -> Option<Result<Transacted, KeyspaceError>> {
    set_mutant(bug);
    let mut world = world_with_a_key();
    let (space, told) = (world.space(4), Arc::new(Mutex::new(None)));
    let (before, at) = (world.frames, told.clone());
    let op = OpId { client: ClientId(7), seq: 1 };
    let run = async move { *at.lock().unwrap() = Some(put_once(space, op, true).await) };
    world.env(4).spawn("repeat", Box::pin(run));
    world.run_for(Duration::from_micros(1));
    while world.frames < before + frames {
        assert!(world.step());
    }
    for node in 1..=3 {
        world.cut.extend([(NodeId(4), NodeId(node)), (NodeId(node), NodeId(4))]);
    }
    world.run_for(Duration::from_secs(5));
    set_mutant(Mutant::NONE);
    told.lock().unwrap().take()
}

#[test]
fn a_repeat_that_fails_does_not_speak_for_the_attempt_before_it() {
    // Without any answer; and with the answers to its reads, so that it cannot begin.
    for frames in [0, 6] {
        let told = cut_off(Mutant::NONE, frames);
        assert!(matches!(told, Some(Err(KeyspaceError::Unknown { .. }))), "after {frames} frames: {told:?}");
        let told = cut_off(mutants::IN_PLACE_TXN_DENIES, frames);
        assert!(matches!(told, Some(Err(KeyspaceError::NotDone(_)))), "nobody noticed: {told:?}");
    }
}

#[test]
fn a_repeat_is_refused_only_if_no_attempt_can_succeed_any_more() {
    set_mutant(Mutant::NONE);
    let mut world = world_with_a_key();
    let held = {
        let space = world.space(2);
        world.run_on(2, async move { space.get(Bytes::from_static(b"k")).await }).unwrap().unwrap().unwrap()
    };
    let mut repeat = |guard: Guard| {
        let space = world.space(2);
        let part = put(Bytes::from_static(b"k"), guard, "new".to_owned());
        let op = OpId { client: ClientId(7), seq: 1 };
        world.run_on(2, async move { space.transact(op, true, vec![part]).await }).unwrap()
    };
    let passed = Guard::Version(KeyVersion(held.version.0 - 1));
    assert_eq!(repeat(passed), Ok(Transacted::Not(vec![Some(held.clone())])));
    // These may hold again, for an attempt that is still under way somewhere.
    for guard in [Guard::Absent, Guard::Value("x".into()), Guard::Version(KeyVersion(held.version.0 + 1))] {
        assert_eq!(repeat(guard), Err(KeyspaceError::Forgotten));
    }
}

#[test]
fn known_bugs_break_sums_or_duties() {
    for bug in [
        mutants::IN_PLACE_TX1,
        mutants::IN_PLACE_TX3,
        mutants::IN_PLACE_TX5_OLD,
        mutants::IN_PLACE_TX5_NEW,
        mutants::IN_PLACE_TX6,
    ] {
        set_mutant(bug);
        let caught = (0..400).find_map(|seed| {
            let found = run(seed).violations.into_iter().find(|words| !words.starts_with("LIVENESS"));
            found.map(|words| (seed, words))
        });
        set_mutant(Mutant::NONE);
        let (seed, words) = caught.unwrap_or_else(|| panic!("{bug:?} was not found"));
        println!("{bug:?}: seed {seed}: {words}");
    }
}

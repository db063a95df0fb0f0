//! Transactions: committed ones are serializable in the order of their intentions.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::ClientId;
use atoll_core::testing::set_mutant;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::transactions::*;
use bytes::Bytes;

use crate::store::{SOME_FAULTS, caught};

/// Adds an amount to a counter.
#[derive(Debug)]
struct Add;

impl Procedures for Add {
    fn call(&self, name: &str, arguments: &Bytes, state: &Snapshot<'_>) -> Result<Writes, String> {
        if name != "add" {
            return Err(format!("no {name}"));
        }
        let sum = number(state.get(b"sum")) + number(Some(arguments.clone()));
        Ok(vec![("sum".into(), Some(text(sum)))])
    }
}

fn number(value: Option<Bytes>) -> u64 {
    value.map_or(0, |value| std::str::from_utf8(&value).unwrap().parse().unwrap())
}

fn text(n: u64) -> Bytes {
    Bytes::from(n.to_string())
}

fn replica(log: &MemoryLog) -> Arc<TxnReplica> {
    replica_with(log, TxnLimits::default())
}

fn replica_with(log: &MemoryLog, limits: TxnLimits) -> Arc<TxnReplica> {
    Arc::new(Player::new(Arc::new(log.clone()), TxnState::new(limits, Arc::new(Add)), PlayOptions::default()))
}

type Row = (Bytes, Bytes);

/// What a transaction has seen and done, written down before its commit.
#[derive(Clone, Debug)]
struct Story {
    begin: u64,
    end: u64,
    gets: Vec<(Bytes, Option<Bytes>)>,
    ranges: Vec<(Bytes, Bytes, Vec<Row>)>,
    writes: BTreeMap<Bytes, Option<Bytes>>,
    /// None if the client died meanwhile.
    result: Option<Result<u64, TxnError>>,
}

type Stories = Arc<Mutex<(u64, Vec<Story>)>>;

fn tick(stories: &Stories) -> u64 {
    let mut all = stories.lock().unwrap();
    all.0 += 1;
    all.0
}

fn acc(n: u64) -> Bytes {
    Bytes::from(format!("a{n}"))
}

async fn client(replica: Arc<TxnReplica>, id: u64, seed: u64, stories: Stories) {
    let (mut dice, database) = (Dice::new(seed * 100 + id), Database::new(replica, ClientId(id), 3));
    for n in 0..7 {
        let begin = tick(&stories);
        let txn = database.begin().await;
        let Ok(mut txn) = txn else { continue };
        let mut story = Story {
            begin,
            end: u64::MAX,
            gets: Vec::new(),
            ranges: Vec::new(),
            writes: BTreeMap::new(),
            result: None,
        };
        for _ in 0..1 + dice.below(2) {
            let key = acc(dice.below(5));
            story.gets.push((key.clone(), txn.get(&key).unwrap()));
        }
        if dice.below(3) == 0 {
            let (from, to) = (acc(dice.below(3)), acc(5));
            let rows = txn.range(&from, &to, 100).unwrap();
            story.ranges.push((from, to, rows));
        }
        for _ in 0..dice.below(3) {
            let key = acc(dice.below(5));
            let value = (dice.below(3) > 0).then(|| Bytes::from(format!("{id}.{n}")));
            txn.put(key.clone(), value.clone()).unwrap();
            story.writes.insert(key, value);
        }
        // A mark that nobody else writes says whether it happened, whatever the client sees.
        if !story.writes.is_empty() {
            let mark = Bytes::from(format!("mark{id}.{n}"));
            txn.put(mark.clone(), Some("x".into())).unwrap();
            story.writes.insert(mark, Some("x".into()));
        }
        // Let others get in between.
        for _ in 0..dice.below(6) {
            atoll_log_apps::memory::step().await;
        }
        let at = {
            let mut all = stories.lock().unwrap();
            all.1.push(story);
            all.1.len() - 1
        };
        let result = txn.commit().await;
        let end = tick(&stories);
        let story = &mut stories.lock().unwrap().1[at];
        (story.result, story.end) = (Some(result), end);
    }
}

/// The oracle: carries out the committed transactions one after another on a plain map, and compares what each has read. `marks` are the
/// indices at which the marks of writers were written: so it judges transactions whose clients died or do not know, too.
fn judge(stories: &[Story], marks: &BTreeMap<Bytes, u64>, end: &BTreeMap<Bytes, Bytes>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut state = BTreeMap::<Bytes, Bytes>::new();
    let mut all: Vec<(u64, bool, &Story)> = Vec::new();
    for story in stories {
        let mark = story.writes.keys().find(|key| key.starts_with(b"mark"));
        let happened = mark.and_then(|mark| marks.get(mark)).copied();
        match (&story.result, happened) {
            (Some(Ok(index)), None) if mark.is_none() => all.push((*index, true, story)),
            (Some(Ok(index)), Some(at)) if *index == at => all.push((at, false, story)),
            (None | Some(Err(TxnError::Unknown(_))), Some(at)) => all.push((at, false, story)),
            (None | Some(Err(_)), None) => {}
            (told, at) => {
                wrong.push(format!("AP5 a transaction is at {at:?}, and its client was told {told:?}"))
            }
        }
    }
    // Readers come after the writer of their index.
    all.sort_by_key(|(index, is_reader, _)| (*index, *is_reader));
    for (index, _, story) in &all {
        for (key, seen) in &story.gets {
            if state.get(key) != seen.as_ref() {
                wrong
                    .push(format!("AP5 at {index}: {key:?} was {:?}, but {seen:?} was read", state.get(key)));
            }
        }
        for (from, to, seen) in &story.ranges {
            let rows: Vec<Row> =
                state.range(from.clone()..to.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
            if rows != *seen {
                wrong.push(format!("AP5 at {index}: [{from:?}, {to:?}) was {rows:?}, but {seen:?} was read"));
            }
        }
        for (key, value) in &story.writes {
            match value {
                Some(value) => state.insert(key.clone(), value.clone()),
                None => state.remove(key),
            };
        }
    }
    if state != *end {
        wrong.push(format!("AP5 one after another leads to {state:?}, not {end:?}"));
    }
    for (first, _, one) in &all {
        for (second, _, other) in &all {
            if other.begin > one.end && second < first {
                wrong.push(format!(
                    "AP5 the transaction at {second} began after the one at {first} had ended"
                ));
            }
        }
    }
    wrong
}

fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, mut dice) = (MemoryLog::new(seed, faults), Dice::new(seed));
    let (stories, replicas) = (Stories::default(), [replica(&log), replica(&log)]);
    let mut clients = Clients::default();
    for id in 1..=4 {
        clients.start(client(replicas[id as usize % 2].clone(), id, seed, stories.clone()));
    }
    clients.run(&mut dice, crashes);
    log.settle();
    let fresh = replica(&log);
    let all = replicas.iter().chain([&fresh]);
    let hashes: Vec<(u64, u64)> = all
        .map(|one| {
            run(one.play()).unwrap();
            one.hash()
        })
        .collect();
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        return vec![format!("AP3 replicas differ: {hashes:?}")];
    }
    let (end, marks) = fresh.view(|state, applied| {
        let now = state.at(applied);
        let mark = |(key, _): Row| key.starts_with(b"mark").then(|| (key.clone(), now.version(&key)));
        let marks: BTreeMap<Bytes, u64> = now.range(b"m", b"n", 1000).into_iter().filter_map(mark).collect();
        (now.range(b"", b"z", 1000), marks)
    });
    let stories = stories.lock().unwrap().1.clone();
    judge(&stories, &marks, &end.into_iter().collect())
}

#[test]
fn committed_transactions_are_serializable() {
    let faults = Faults { lost_answers: 3, holes: 2, late: 1, refused: 1 };
    for seed in 0..400 {
        let faults = if seed % 2 == 0 { Faults::default() } else { faults };
        assert_eq!(round(seed, faults, 0), Vec::<String>::new(), "seed {seed}");
    }
    for seed in 0..200 {
        assert_eq!(round(seed, SOME_FAULTS, 4), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_transactions_are_found() {
    for mutant in [mutants::APPS_T1, mutants::APPS_T2, mutants::APPS_A3] {
        let lost = Faults { lost_answers: 8, ..Faults::default() };
        let found = caught(mutant, 400, |seed| round(seed, lost, 2));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

/// Write skew: each of two transactions reads what the other writes. Only one may commit.
#[test]
fn only_one_of_two_that_cross_commits() {
    let log = MemoryLog::new(1, Faults::default());
    let database = Database::new(replica(&log), ClientId(1), 3);
    let (mut one, mut other) = (run(database.begin()).unwrap(), run(database.begin()).unwrap());
    assert_eq!((one.get(b"a").unwrap(), other.get(b"b").unwrap()), (None, None));
    one.put("b".into(), Some("1".into())).unwrap();
    other.put("a".into(), Some("1".into())).unwrap();
    assert_eq!(run(one.commit()), Ok(1));
    let error = run(other.commit()).unwrap_err();
    assert_eq!(error, TxnError::Conflict(2));
    assert!(error.may_retry());
}

#[test]
fn a_key_that_appears_in_a_range_is_a_conflict() {
    let log = MemoryLog::new(1, Faults::default());
    let database = Database::new(replica(&log), ClientId(1), 3);
    let mut reader = run(database.begin()).unwrap();
    assert_eq!(reader.range(b"a", b"c", 10), Ok(vec![]));
    reader.put("sum".into(), Some("0".into())).unwrap();
    let mut writer = run(database.begin()).unwrap();
    writer.put("b".into(), Some("1".into())).unwrap();
    run(writer.commit()).unwrap();
    assert!(matches!(run(reader.commit()), Err(TxnError::Conflict(_))));
}

#[test]
fn a_procedure_cannot_be_overtaken() {
    let log = MemoryLog::new(1, Faults::default());
    let database = Database::new(replica(&log), ClientId(1), 3);
    let mut slow = run(database.begin()).unwrap();
    let sum = number(slow.get(b"sum").unwrap());
    slow.put("sum".into(), Some(text(sum + 1))).unwrap();
    assert_eq!(run(database.call("add", "5".into())), Ok(1));
    assert!(run(slow.commit()).unwrap_err().may_retry());
    assert_eq!(run(database.call("add", "2".into())), Ok(3));
    assert_eq!(run(database.begin()).unwrap().get(b"sum"), Ok(Some("7".into())));
    assert_eq!(run(database.call("other", Bytes::new())), Err(TxnError::Procedure("no other".into())));
}

#[test]
fn counters_of_clients_that_collide_add_up() {
    for (attempts, seed) in (0..4).flat_map(|attempts| (0..20).map(move |seed| (attempts, seed))) {
        let (log, mut dice) = (MemoryLog::new(seed, Faults::default()), Dice::new(seed));
        let mut clients = Clients::default();
        for id in 1..=4 {
            let database = Database::new(replica(&log), ClientId(id), 3);
            clients.start(async move {
                for _ in 0..5 {
                    let body = |txn: &mut Transaction<'_>| {
                        let sum = number(txn.get(b"sum")?);
                        txn.put("sum".into(), Some(text(sum + id)))
                    };
                    database.run(attempts, body, "add", text(id)).await.unwrap();
                }
            });
        }
        clients.run(&mut dice, 0);
        let database = Database::new(replica(&log), ClientId(9), 3);
        assert_eq!(run(database.begin()).unwrap().get(b"sum"), Ok(Some("50".into())), "seed {seed}");
    }
}

#[test]
fn a_snapshot_that_is_not_kept_aborts() {
    let log = MemoryLog::new(1, Faults::default());
    let few = TxnLimits { max_changes: 3, ..TxnLimits::default() };
    let database = Database::new(replica_with(&log, few), ClientId(1), 3);
    let (mut old, mut blind) = (run(database.begin()).unwrap(), run(database.begin()).unwrap());
    for n in 0..6 {
        let mut txn = run(database.begin()).unwrap();
        txn.put(acc(n), None).unwrap();
        run(txn.commit()).unwrap();
    }
    assert!(matches!(old.get(b"a0"), Err(TxnError::TooOld(_))));
    blind.put("x".into(), Some("1".into())).unwrap();
    assert!(matches!(run(blind.commit()), Err(TxnError::TooOld(_))));
    set_mutant(atoll_core::testing::Mutant::NONE);
}

//! CORFU-Store: multi-puts, multi-gets, snapshots and rollbacks of clients that die, on a log that fails.

use std::sync::Arc;

use atoll_contract::{ClientId, OpId};
use atoll_core::Encode;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_log_apps::entry;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::sessions::Stamp;
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::*;
use bytes::Bytes;

use crate::model::{Book, Model, Seen, Writes, replay};

pub const SOME_FAULTS: Faults = Faults { lost_answers: 6, holes: 4, late: 4, refused: 2 };

pub fn replica(log: &MemoryLog) -> Arc<MapReplica> {
    replica_with(log, MapLimits::default())
}

pub fn replica_with(log: &MemoryLog, limits: MapLimits) -> Arc<MapReplica> {
    let options = PlayOptions { read_ahead: 3, ..PlayOptions::default() };
    Arc::new(Player::new(Arc::new(log.clone()), StoreMap::new(limits), options))
}

pub fn key(n: u64) -> Bytes {
    Bytes::from(format!("k{n}"))
}

pub fn put(pairs: &[(&str, &str)]) -> Writes {
    let of = |(k, v): &(&str, &str)| {
        (Bytes::copy_from_slice(k.as_bytes()), Some(Bytes::copy_from_slice(v.as_bytes())))
    };
    pairs.iter().map(of).collect()
}

pub fn keys(names: &[&str]) -> Vec<Bytes> {
    names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect()
}

/// Some writes whose values name the multi-put. Every second one deletes a key, too.
fn some_writes(id: String, dice: &mut Dice) -> Writes {
    let first = dice.below(4);
    let count = 1 + dice.below(3);
    let value = |n| (n == 0 || dice_keeps(&id, n)).then(|| Bytes::from(format!("{id}/{n}")));
    (0..count).map(|n| (key((first + n) % 4), value(n))).collect()
}

fn dice_keeps(id: &str, n: u64) -> bool {
    !(id.len() as u64 + n).is_multiple_of(3)
}

/// A client that does some operations and writes down what it sees.
pub async fn client(map: Arc<MapReplica>, id: u64, seed: u64, ops: u64, book: Book) {
    let mut dice = Dice::new(seed * 1000 + id);
    let store = Store::new(map.clone(), ClientId(id), StoreOptions::default());
    for n in 0..ops {
        let begin = book.now();
        match dice.below(10) {
            0..5 => {
                let writes = some_writes(format!("c{id}-{n}"), &mut dice);
                book.tries(&writes);
                let result = store.multi_put(writes.clone()).await;
                book.saw(begin, Seen::Put { writes, result });
            }
            5 => {
                let to = dice.below(map.applied() + 1);
                let result = store.roll_back(to).await;
                book.saw(begin, Seen::Back { to, result });
            }
            6 => {
                let (index, keys) = (dice.below(map.applied() + 1), vec![key(0), key(1), key(2), key(3)]);
                let result = store.get_at(&keys, index).await;
                book.saw(begin, Seen::GetAt { index, keys, result });
            }
            _ => {
                let keys = vec![key(0), key(1), key(2), key(3)];
                let result = store.multi_get(&keys).await;
                book.saw(begin, Seen::Get { keys, result });
            }
        }
    }
}

/// How a run ends: what is wrong.
pub fn finish(log: &MemoryLog, replicas: &[Arc<MapReplica>], book: &Book) -> Vec<String> {
    log.settle();
    let mut hashes = Vec::new();
    let fresh = replica(log);
    for one in replicas.iter().chain([&fresh]) {
        if let Err(error) = run(one.play()) {
            return vec![format!("AP3 a replica cannot play: {error}")];
        }
        hashes.push(one.hash());
    }
    let mut wrong = Vec::new();
    if hashes.iter().any(|hash| *hash != hashes[0]) {
        wrong.push(format!("AP3 replicas differ: {hashes:?}"));
    }
    let keys: Vec<Bytes> = (0..4).map(key).collect();
    let begin = book.now();
    let result = run(Store::new(fresh, ClientId(999), StoreOptions::default()).multi_get(&keys));
    book.saw(begin, Seen::Get { keys, result });
    let model: Model = replay(&log.ever(), book);
    wrong.extend(model.judge(book));
    wrong
}

/// Runs clients at two map replicas, and returns what is wrong.
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, book, mut dice) = (MemoryLog::new(seed, faults), Book::default(), Dice::new(seed));
    let replicas = [replica(&log), replica(&log)];
    let mut clients = Clients::default();
    for id in 1..=4 {
        clients.start(client(replicas[id as usize % 2].clone(), id, seed, 8, book.clone()));
    }
    let mut id = 4;
    while clients.step(&mut dice, crashes) {
        // Others take the places of the dead.
        if crashes > 0 && id < 10 && dice.below(100) == 0 {
            id += 1;
            clients.start(client(replicas[id as usize % 2].clone(), id, seed, 4, book.clone()));
        }
    }
    finish(&log, &replicas, &book)
}

/// Returns the first seed below `seeds` at which a mutant is caught.
pub fn caught(mutant: Mutant, seeds: u64, round: impl Fn(u64) -> Vec<String>) -> Option<(u64, String)> {
    set_mutant(mutant);
    let found = (0..seeds).find_map(|seed| Some((seed, round(seed).into_iter().next()?)));
    set_mutant(Mutant::NONE);
    found
}

#[test]
fn clients_that_never_fail_see_one_order() {
    for seed in 0..150 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn clients_that_die_anywhere_leave_all_or_nothing() {
    for seed in 0..400 {
        assert_eq!(round(seed, SOME_FAULTS, 4), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_the_store_are_found() {
    for mutant in [mutants::APPS_A1, mutants::APPS_A3, mutants::APPS_A4, mutants::APPS_A5, mutants::APPS_M1] {
        let found = caught(mutant, 300, |seed| round(seed, SOME_FAULTS, 4));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

/// Stops a multi-put after every number of steps.
#[test]
fn a_multi_put_that_stops_at_any_step_is_whole_or_absent() {
    let (mut whole, mut absent) = (0, 0);
    for steps in 0.. {
        let log = MemoryLog::new(1, Faults::default());
        let map = replica(&log);
        let store = Store::new(map.clone(), ClientId(1), StoreOptions::default());
        run(store.multi_put(put(&[("a", "old"), ("b", "old"), ("c", "old")]))).unwrap();
        let mut clients = Clients::default();
        clients.start(async move {
            store.multi_put(put(&[("a", "new"), ("b", "new"), ("c", "new")])).await.unwrap();
        });
        let mut dice = Dice::new(1);
        let is_over = !(0..steps).all(|_| clients.step(&mut dice, 0));
        drop(clients);
        // Holes that it left are filled by whoever plays the log.
        let reader = Store::new(replica(&log), ClientId(2), StoreOptions::default());
        let (_, values) = run(reader.multi_get(&keys(&["a", "b", "c"]))).unwrap();
        let all = |text: &'static str| values.iter().all(|v| v.as_deref() == Some(text.as_bytes()));
        whole += u32::from(all("new"));
        absent += u32::from(all("old"));
        assert!(all("new") || all("old"), "after {steps} steps: {values:?}");
        if is_over {
            break;
        }
    }
    assert!(whole > 0 && absent > 5, "whole {whole} times, absent {absent} times");
}

#[test]
fn a_lost_replica_replays_and_answers_nothing_below_what_it_is_asked_for() {
    let log = MemoryLog::new(1, Faults::default());
    let map = replica(&log);
    let store = Store::new(map.clone(), ClientId(1), StoreOptions::default());
    let index = run(store.multi_put(put(&[("a", "1")]))).unwrap();
    let fresh = replica(&log);
    assert_eq!(fresh.lookup(&keys(&["a"]), index), Err(StoreError::Behind { applied: 0, wanted: index }));
    run(fresh.play()).unwrap();
    assert_eq!(fresh.lookup(&keys(&["a"]), index), Ok((index, vec![Some(0)])));
    assert_eq!(fresh.hash(), map.hash());
}

#[test]
fn rollback_keeps_the_history() {
    let log = MemoryLog::new(1, Faults::default());
    let store = Store::new(replica(&log), ClientId(1), StoreOptions::default());
    let one = run(store.multi_put(put(&[("a", "1"), ("b", "1")]))).unwrap();
    let two = run(store.multi_put(vec![(key(7), Some("x".into())), ("a".into(), None)])).unwrap();
    let back = run(store.roll_back(one)).unwrap();
    let all = vec!["a".into(), "b".into(), key(7)];
    let now = run(store.multi_get(&all)).unwrap();
    assert_eq!(now, (back, vec![Some("1".into()), Some("1".into()), None]));
    assert_eq!(run(store.get_at(&all, two)).unwrap(), vec![None, Some("1".into()), Some("x".into())]);
    let again = run(store.roll_back(two)).unwrap();
    assert_eq!(run(store.get_at(&all, again)).unwrap(), vec![None, Some("1".into()), Some("x".into())]);
    assert!(matches!(run(store.roll_back(again + 100)), Err(StoreError::NotKept { .. })));
}

#[test]
fn reads_far_above_the_tail_and_bad_keys_are_refused() {
    let log = MemoryLog::new(1, Faults::default());
    let store = Store::new(replica(&log), ClientId(1), StoreOptions::default());
    let index = run(store.multi_put(put(&[("a", "1")]))).unwrap();
    let far = run(store.get_from(&keys(&["a"]), u64::MAX));
    assert_eq!(far, Err(StoreError::Behind { applied: index, wanted: u64::MAX }));
    assert!(matches!(run(store.get_at(&keys(&["a"]), 1 << 40)), Err(StoreError::Behind { .. })));
    for bad in [put(&[]), put(&[("", "x")]), put(&[("a", "1"), ("a", "2")])] {
        assert!(matches!(run(store.multi_put(bad)), Err(StoreError::Refused(_))));
    }
    let large = Bytes::from(vec![0; MAX_VALUE_BYTES + 1]);
    assert!(matches!(run(store.multi_put(vec![(key(1), Some(large))])), Err(StoreError::Refused(_))));
    assert_eq!(run(log.tail()), Ok(index), "nothing was appended or filled");
}

/// A commit that comes again after its client was forgotten has no effect, and nobody is told that it had or had not.
#[test]
fn a_retry_that_may_be_forgotten_has_no_effect() {
    let log = MemoryLog::new(1, Faults::default());
    let limits = MapLimits { max_clients: 2, max_ops: 2, max_changes: 100 };
    let map = replica_with(&log, limits);
    let stamp = |client, seq, began| Stamp { op: OpId { client: ClientId(client), seq }, began };
    let value =
        |text: &str| StoreRecord::Value { op: OpId::PAD, key: "a".into(), value: text.to_owned().into() };
    let append = |record: &StoreRecord| run(log.append(entry::record(record))).unwrap();
    let at = append(&value("old"));
    let commit = |stamp, at| StoreRecord::Commit { stamp, writes: vec![("a".into(), Some(at))] };
    let old = commit(stamp(1, 1, 0), at);
    append(&old);
    for client in 2..5 {
        let at = append(&value("new"));
        append(&commit(stamp(client, 1, at), at));
    }
    append(&old);
    run(map.play()).unwrap();
    let store = Store::new(map.clone(), ClientId(9), StoreOptions::default());
    let (_, values) = run(store.multi_get(&keys(&["a"]))).unwrap();
    assert_eq!(values, [Some("new".into())]);
    let op = OpId { client: ClientId(1), seq: 1 };
    assert_eq!(run(store.outcome(op)), Err(StoreError::Unknown(op)));
    // A saved state decides alike.
    let saved = map.view(|map, _| map.to_bytes());
    let mut copy = StoreMap::new(limits);
    atoll_log_apps::player::Machine::load(&mut copy, saved.clone()).unwrap();
    assert_eq!(copy.to_bytes(), saved);
}

//! Compaction while clients write, and compactors that die.

use std::sync::Arc;

use atoll_contract::ClientId;
use atoll_log_apps::entry;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{PlayError, PlayOptions, Player};
use atoll_log_apps::sessions::Stamp;
use atoll_log_apps::shared_log::{SharedLog, Slot};
use atoll_log_apps::store::*;
use bytes::Bytes;

use crate::model::Book;
use crate::store::{SOME_FAULTS, caught, client, finish, key, keys, put, replica};

fn options(n: u64) -> CompactOptions {
    CompactOptions {
        patience: n % 3 * 6,
        history: 20,
        moves: n.is_multiple_of(2),
        ..CompactOptions::default()
    }
}

/// Runs clients and compactors, which may die, and returns what is wrong.
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let (log, book, mut dice) = (MemoryLog::new(seed, faults), Book::default(), Dice::new(seed));
    let replicas = [replica(&log), replica(&log)];
    let mut clients = Clients::default();
    for id in 1..=3 {
        clients.start(client(replicas[id as usize % 2].clone(), id, seed, 12, book.clone()));
    }
    let compact = |id: u64| {
        let map = replicas[id as usize % 2].clone();
        let mut compactor = Compactor::new(map, Arc::default(), ClientId(id));
        async move {
            for n in 0..3 {
                // Whatever fails, the next one continues.
                drop(compactor.run(options(seed + id + n)).await);
            }
        }
    };
    clients.start(compact(100));
    let mut id = 100;
    while clients.step(&mut dice, crashes) {
        if id < 103 && dice.below(300) == 0 {
            id += 1;
            clients.start(compact(id));
        }
    }
    finish(&log, &replicas, &book)
}

#[test]
fn nobody_notices_a_compaction() {
    for seed in 0..200 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn nobody_notices_a_compaction_that_dies() {
    for seed in 0..300 {
        assert_eq!(round(seed, SOME_FAULTS, 3), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_compaction_are_found() {
    for mutant in [mutants::APPS_A2, mutants::APPS_A6, mutants::APPS_A7] {
        let found = caught(mutant, 300, |seed| round(seed, SOME_FAULTS, 3));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

fn written(log: &MemoryLog, puts: u64) -> (Arc<MapReplica>, Store) {
    let map = replica(log);
    let store = Store::new(map.clone(), ClientId(1), StoreOptions::default());
    run(store.multi_put(put(&[("rare", "once")]))).unwrap();
    for n in 0..puts {
        run(store.multi_put(vec![(key(n % 10), Some(Bytes::from(format!("v{n}"))))])).unwrap();
    }
    (map, store)
}

#[test]
fn a_prefix_is_trimmed_after_its_live_values_have_moved() {
    let log = MemoryLog::new(1, Faults::default());
    let (map, store) = written(&log, 200);
    let before = log.held();
    let mut compactor = Compactor::new(map.clone(), Arc::default(), ClientId(2));
    let options = CompactOptions { patience: 0, history: 0, ..CompactOptions::default() };
    let done = run(compactor.run(options)).unwrap();
    assert_eq!(done.moved, 11);
    assert!(log.held() <= 30 && before == 402, "{} of {before} entries are held", log.held());
    let (_, values) = run(store.multi_get(&keys(&["rare", "k3"]))).unwrap();
    assert_eq!(values, [Some("once".into()), Some("v193".into())]);
    // A replica that was lost starts from the checkpoint.
    let fresh = replica(&log);
    run(fresh.play()).unwrap();
    run(map.play()).unwrap();
    assert_eq!(fresh.hash(), map.hash());
}

#[test]
fn a_sparse_log_keeps_its_live_values_where_they_are() {
    let log = MemoryLog::new(1, Faults::default());
    let (map, store) = written(&log, 200);
    let mut compactor = Compactor::new(map.clone(), Arc::default(), ClientId(2));
    let options = CompactOptions { patience: 0, history: 0, moves: false, ..CompactOptions::default() };
    let done = run(compactor.run(options)).unwrap();
    assert_eq!((done.moved, done.prefix), (0, 0), "the first value is live and stays");
    assert_eq!(done.singles, 402 - 11);
    assert_eq!(run(log.read(0)).unwrap(), Slot::Data(run(log.read(0)).map(data).unwrap()));
    let (_, values) = run(store.multi_get(&keys(&["rare", "k3"]))).unwrap();
    assert_eq!(values, [Some("once".into()), Some("v193".into())]);
    let fresh = replica(&log);
    run(fresh.play()).unwrap();
    run(map.play()).unwrap();
    assert_eq!(fresh.hash(), map.hash());
    assert_eq!(run(compactor.run(options)).unwrap().singles, 2, "only what is new is looked at");
    // A value that has stayed so far is garbage now. The first one is live, so it does not go with a prefix.
    let old = 2 + 2 * 193;
    assert!(matches!(run(log.read(old)), Ok(Slot::Data(_))));
    run(store.multi_put(put(&[("k3", "new")]))).unwrap();
    assert_eq!(run(compactor.run(options)).unwrap().prefix, 0);
    assert_eq!(run(log.read(old)), Ok(Slot::Trimmed));
}

fn data(slot: Slot) -> Bytes {
    match slot {
        Slot::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_reader_needs_is_not_trimmed() {
    let log = MemoryLog::new(1, Faults::default());
    let (map, _) = written(&log, 50);
    let readers = Arc::new(Readers::default());
    assert!(readers.needs("mirror", 17));
    let mut compactor = Compactor::new(map, readers.clone(), ClientId(2));
    let options = CompactOptions { patience: 0, history: 0, ..CompactOptions::default() };
    assert_eq!(run(compactor.run(options)).unwrap().prefix, 17);
    assert!(matches!(run(log.read(17)), Ok(Slot::Data(_))));
    readers.remove("mirror");
    assert!(run(compactor.run(options)).unwrap().prefix > 100);
}

/// Stops a compaction after every number of steps. Nothing is lost, and the next one finishes.
#[test]
fn a_compaction_that_stops_at_any_step_loses_nothing() {
    for moves in [true, false] {
        for steps in 0.. {
            let log = MemoryLog::new(1, Faults::default());
            let (map, _) = written(&log, 24);
            let options = CompactOptions { patience: 3, history: 5, moves, ..CompactOptions::default() };
            let mut compactor = Compactor::new(map, Arc::default(), ClientId(2));
            let mut clients = Clients::default();
            clients.start(async move {
                compactor.run(options).await.unwrap();
            });
            let mut dice = Dice::new(1);
            let is_over = !(0..steps).all(|_| clients.step(&mut dice, 0));
            drop(clients);
            let fresh = replica(&log);
            let store = Store::new(fresh.clone(), ClientId(3), StoreOptions::default());
            let all: Vec<Bytes> = (0..10).map(key).chain(["rare".into()]).collect();
            let expected: Vec<Option<Bytes>> = (0..10)
                .map(|n| Some(Bytes::from(format!("v{}", if n < 4 { n + 20 } else { n + 10 }))))
                .chain([Some("once".into())])
                .collect();
            assert_eq!(run(store.multi_get(&all)).unwrap().1, expected, "after {steps} steps");
            let mut next = Compactor::new(fresh, Arc::default(), ClientId(4));
            run(next.run(options)).unwrap();
            assert_eq!(run(store.multi_get(&all)).unwrap().1, expected, "again, after {steps} steps");
            if is_over {
                assert!(steps > 40, "only {steps} steps");
                break;
            }
        }
    }
}

#[test]
fn a_commit_that_comes_after_its_value_was_collected_is_refused() {
    let log = MemoryLog::new(1, Faults::default());
    let (map, store) = written(&log, 10);
    let op = atoll_contract::OpId { client: ClientId(7), seq: 1 };
    let value = StoreRecord::Value { op, key: "slow".into(), value: "x".into() };
    let at = run(log.append(entry::record(&value))).unwrap();
    run(store.multi_put(put(&[("a", "1")]))).unwrap();
    let mut compactor = Compactor::new(map.clone(), Arc::default(), ClientId(2));
    run(compactor.run(CompactOptions { patience: 0, history: 0, ..CompactOptions::default() })).unwrap();
    let stamp = Stamp { op, began: at };
    let commit = StoreRecord::Commit { stamp, writes: vec![("slow".into(), Some(at)), ("a".into(), None)] };
    run(log.append(entry::record(&commit))).unwrap();
    assert_eq!(run(store.outcome(op)), Err(StoreError::Collected(at)));
    let (_, values) = run(store.multi_get(&keys(&["slow", "a"]))).unwrap();
    assert_eq!(values, [None, Some("1".into())], "not even a part of it");
}

#[test]
fn a_log_that_was_trimmed_without_a_checkpoint_is_named() {
    let log = MemoryLog::new(1, Faults::default());
    written(&log, 10);
    run(log.trim_prefix(5)).unwrap();
    assert_eq!(run(replica(&log).play()), Err(PlayError::Lost(0)));
}

#[test]
fn a_record_that_cannot_be_read_stops_every_replica_at_the_same_place() {
    let log = MemoryLog::new(1, Faults::default());
    let (map, _) = written(&log, 1);
    let bad = run(log.append(Bytes::from_static(&[9, 9, 9]))).unwrap();
    for one in [map, replica(&log)] {
        assert!(matches!(run(one.play()), Err(PlayError::Unreadable(at, _)) if at == bad));
        assert_eq!(one.applied(), bad);
    }
}

/// A checkpoint of several parts, with others between them.
#[test]
fn checkpoints_of_several_parts_may_interleave() {
    let log = MemoryLog::new(1, Faults::default());
    let map = replica(&log);
    let store = Store::new(map.clone(), ClientId(1), StoreOptions::default());
    for n in 0..40 {
        let long = |m: u64| Bytes::from(format!("{:0>4000}", n * 10 + m));
        run(store.multi_put((0..10).map(|m| (long(m), Some("x".into()))).collect())).unwrap();
    }
    let id = |client| atoll_contract::OpId { client: ClientId(client), seq: 1 };
    let mut clients = Clients::default();
    for client in [5, 6] {
        let map = map.clone();
        clients.start(async move { assert!(map.checkpoint(id(client)).await.is_ok()) });
    }
    clients.run(&mut Dice::new(3), 0);
    let tail = run(log.tail()).unwrap();
    run(log.trim_prefix(100)).unwrap();
    let fresh =
        Player::new(Arc::new(log.clone()), StoreMap::new(MapLimits::default()), PlayOptions::default());
    run(fresh.play()).unwrap();
    run(map.play()).unwrap();
    assert_eq!((fresh.applied(), fresh.hash()), (tail, map.hash()));
    let few = PlayOptions { max_checkpoint_bytes: 100_000, ..PlayOptions::default() };
    let small = Player::new(Arc::new(log.clone()), StoreMap::new(MapLimits::default()), few);
    assert_eq!(run(small.play()), Err(PlayError::Lost(0)), "a state that is too large is not loaded");
}

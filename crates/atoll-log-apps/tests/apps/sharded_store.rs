//! Scalog-Store: puts and gets of clients that die, and compactions, on a log with shards that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_contract::{ClientId, OpId};
use atoll_core::{Decode, Encode};
use atoll_log_apps::entry::{self, AppEntry};
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mutants;
use atoll_log_apps::player::{Machine, PlayOptions, Player};
use atoll_log_apps::sessions::Stamp;
use atoll_log_apps::sharded_store::*;
use atoll_log_apps::shared_log::{LogError, Place, SharedLog, Slot};
use atoll_log_apps::store::{MAX_VALUE_BYTES, Readers, StoreError, StoreOptions};
use bytes::Bytes;

use crate::model::{Book, Model, Seen, State};
use crate::store::{SOME_FAULTS, caught, key};

fn replica(log: &MemoryLog) -> Arc<PlaceReplica> {
    let options = PlayOptions { read_ahead: 3, ..PlayOptions::default() };
    Arc::new(Player::new(Arc::new(log.clone()), PlaceMap::new(PlaceLimits::default()), options))
}

/// The state at every index, by the first copy of each put. It knows no shards, moves or checkpoints.
fn replay(ever: &BTreeMap<u64, Bytes>) -> Model {
    let mut model = Model { states: vec![State::new()], ..Model::default() };
    let mut done = BTreeSet::<OpId>::new();
    for position in 0..ever.keys().next_back().map_or(0, |at| at + 1) {
        let mut state = model.states.last().unwrap().clone();
        if let Some(AppEntry::Record { body }) =
            ever.get(&position).map(|d| AppEntry::open(d.clone()).unwrap())
            && let PutRecord::Put { stamp, key, value } = PutRecord::from_bytes(body).unwrap()
            && done.insert(stamp.op)
        {
            match value.clone() {
                Some(value) => state.insert(key.clone(), value),
                None => state.remove(&key),
            };
            model.committed.insert(position + 1, vec![(key, value)]);
        }
        model.states.push(state);
    }
    model
}

async fn client(map: Arc<PlaceReplica>, id: u64, seed: u64, ops: u64, book: Book) {
    let mut dice = Dice::new(seed * 1000 + id);
    let store = ShardedStore::new(map, ClientId(id), StoreOptions::default());
    for n in 0..ops {
        let (begin, key) = (book.now(), key(dice.below(3)));
        if dice.below(2) == 0 {
            let value = Some(Bytes::from(format!("c{id}-{n}")));
            let writes = vec![(key.clone(), value.clone())];
            let result = store.put(key, value).await.map(|place| place.position + 1);
            book.saw(begin, Seen::Put { writes, result });
        } else {
            let result = store.get(&key).await.map(|(index, value)| (index, vec![value]));
            book.saw(begin, Seen::Get { keys: vec![key], result });
        }
    }
}

/// Runs clients at two replicas of the map, and what compacts their log, and returns what is wrong.
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let log = MemoryLog::new(seed, faults).with_shards(3);
    let (book, mut dice) = (Book::default(), Dice::new(seed));
    let replicas = [replica(&log), replica(&log)];
    let mut clients = Clients::default();
    for id in 1..=4 {
        clients.start(client(replicas[id as usize % 2].clone(), id, seed, 10, book.clone()));
    }
    let compact = |id: u64| {
        let map = replicas[id as usize % 2].clone();
        async move {
            for n in 0..3 {
                // Whatever fails, the next one continues.
                let id = OpId { client: ClientId(id), seq: n + 1 };
                drop(thin(&map, &Readers::default(), id, seed % 3 * 5, 10).await);
            }
        }
    };
    let mut id = 100;
    while clients.step(&mut dice, crashes) {
        if id < 103 && dice.below(200) == 0 {
            id += 1;
            clients.start(compact(id));
        }
    }
    log.settle();
    let fresh = replica(&log);
    let mut hashes = Vec::new();
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
    let reader = ShardedStore::new(fresh, ClientId(999), StoreOptions::default());
    for key in (0..3).map(key) {
        let begin = book.now();
        let result = run(reader.get(&key)).map(|(index, value)| (index, vec![value]));
        book.saw(begin, Seen::Get { keys: vec![key], result });
    }
    wrong.extend(replay(&log.ever()).judge(&book));
    // AP4 as the oracle of the store has it, and what a read of the wrong shard says.
    for op in book.ops() {
        if let Seen::Get { result: Err(error), .. } = op.seen
            && error.to_string().contains("shard")
        {
            wrong.push(format!("AP4 a read failed: {error}"));
        }
    }
    wrong
}

#[test]
fn clients_and_compactions_that_never_fail_see_one_order() {
    for seed in 0..150 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn clients_and_compactions_that_die_anywhere_see_one_order() {
    for seed in 0..300 {
        assert_eq!(round(seed, SOME_FAULTS, 4), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn planted_bugs_of_the_sharded_store_are_found() {
    for mutant in [
        mutants::APPS_A1,
        mutants::APPS_A3,
        mutants::APPS_A5,
        mutants::APPS_A6,
        mutants::APPS_A7,
        mutants::APPS_G1,
    ] {
        let found = caught(mutant, 300, |seed| round(seed, SOME_FAULTS, 4));
        println!("{mutant:?}: {found:?}");
        assert!(found.is_some(), "{mutant:?} is not found");
    }
}

#[test]
fn the_map_keeps_the_place_of_the_newest_value() {
    let log = MemoryLog::new(1, Faults::default()).with_shards(3);
    let map = replica(&log);
    let store = ShardedStore::new(map.clone(), ClientId(1), StoreOptions::default());
    let mut shards = BTreeSet::new();
    for n in 0..20 {
        let place = run(store.put("a".into(), Some(format!("{n}").into()))).unwrap();
        assert_eq!(map.place(b"a", place.position + 1), Ok((place.position + 1, Some(place))));
        assert!(matches!(run(log.read_place(place)), Ok(Slot::Data(_))));
        let other = Place { shard: (place.shard + 1) % 3, ..place };
        assert_eq!(run(log.read_place(other)), Err(LogError::NotInShard(other)));
        shards.insert(place.shard);
    }
    assert_eq!(shards.len(), 3, "all shards are used");
    assert_eq!(run(store.get(&"a".into())), Ok((20, Some("19".into()))));
    let gone = run(store.put("a".into(), None)).unwrap();
    assert_eq!(run(store.get(&"a".into())), Ok((gone.position + 1, None)));
    // A replica that has applied less says so, and never that there is nothing.
    assert_eq!(replica(&log).place(b"a", 5), Err(StoreError::Behind { applied: 0, wanted: 5 }));
}

#[test]
fn live_values_move_and_a_lost_replica_starts_from_the_checkpoint() {
    let log = MemoryLog::new(1, Faults::default()).with_shards(2);
    let map = replica(&log);
    let store = ShardedStore::new(map.clone(), ClientId(1), StoreOptions::default());
    run(store.put("rare".into(), Some("once".into()))).unwrap();
    run(store.put("gone".into(), Some("once".into()))).unwrap();
    run(store.put("gone".into(), None)).unwrap();
    for n in 0..100 {
        run(store.put(key(n % 7), Some(format!("v{n}").into()))).unwrap();
    }
    let readers = Readers::default();
    assert!(readers.needs("a mirror", 60));
    let id = |seq| OpId { client: ClientId(2), seq };
    let kept = run(thin(&map, &readers, id(1), 0, 3)).unwrap();
    assert_eq!(
        (kept.moved, kept.trimmed_below),
        (3, 60),
        "as many moves as are allowed; what a reader needs stays"
    );
    readers.remove("a mirror");
    let done = run(thin(&map, &readers, id(2), 0, 100)).unwrap();
    assert!(done.trimmed_below >= 103 && log.held() < 20, "{done:?}, {} are held", log.held());
    let fresh = replica(&log);
    run(fresh.play()).unwrap();
    run(map.play()).unwrap();
    assert_eq!(fresh.hash(), map.hash());
    let again = ShardedStore::new(fresh, ClientId(3), StoreOptions::default());
    assert_eq!(run(again.get(&"rare".into())).unwrap().1, Some("once".into()));
    assert_eq!(run(again.get(&"gone".into())).unwrap().1, None);
    assert_eq!(run(again.get(&key(3))).unwrap().1, Some("v94".into()));
}

/// A put that comes again after others wrote the key has no effect, also after its state was saved and loaded.
#[test]
fn a_put_that_is_twice_in_the_log_takes_effect_once() {
    let log = MemoryLog::new(1, Faults::default());
    let map = replica(&log);
    let put = |client, value: &str| PutRecord::Put {
        stamp: Stamp { op: OpId { client: ClientId(client), seq: 1 }, began: 0 },
        key: "a".into(),
        value: Some(value.to_owned().into()),
    };
    for record in [put(1, "old"), put(2, "new"), put(1, "old")] {
        run(log.append(entry::record(&record))).unwrap();
    }
    run(map.play()).unwrap();
    let store = ShardedStore::new(map.clone(), ClientId(9), StoreOptions::default());
    assert_eq!(run(store.get(&"a".into())), Ok((3, Some("new".into()))));
    let saved = map.view(|map, _| map.to_bytes());
    let mut copy = PlaceMap::new(PlaceLimits::default());
    copy.load(saved.clone()).unwrap();
    assert_eq!(copy.to_bytes(), saved);
    assert_eq!(copy, map.view(|map, _| map.clone()));
}

#[test]
fn bad_keys_and_large_values_are_refused_before_they_are_appended() {
    let log = MemoryLog::new(1, Faults::default());
    let store = ShardedStore::new(replica(&log), ClientId(1), StoreOptions::default());
    let large = Bytes::from(vec![0; MAX_VALUE_BYTES + 1]);
    for (key, value) in [(Bytes::new(), None), (Bytes::from(vec![0; 5000]), None), ("a".into(), Some(large))]
    {
        assert!(matches!(run(store.put(key, value)), Err(StoreError::Refused(_))));
    }
    assert_eq!(run(log.tail()), Ok(0));
}

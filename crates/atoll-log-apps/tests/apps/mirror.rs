//! The mirror in a second log: bounded batches, a lag that is reported, equal hashes at equal indices.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::ClientId;
use atoll_core::Tick;
use atoll_log_apps::memory::{Clients, Dice, Faults, MemoryLog, run};
use atoll_log_apps::mirror::*;
use atoll_log_apps::mutants;
use atoll_log_apps::player::PlayOptions;
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::*;
use bytes::Bytes;

use crate::model::{Book, replay};
use crate::store::{SOME_FAULTS, caught, client, finish, key, keys, put, replica};

fn options() -> MirrorOptions {
    MirrorOptions { max_entries: 5, max_bytes: 500 }
}

fn mirror_replica(second: &MemoryLog) -> Arc<MirrorReplica> {
    Mirror::replica(Arc::new(second.clone()), MapLimits::default(), PlayOptions::default())
}

struct Both {
    primary: MemoryLog,
    second: MemoryLog,
    readers: Arc<Readers>,
}

impl Both {
    fn new(seed: u64, faults: Faults) -> Self {
        let (primary, second) = (MemoryLog::new(seed, faults), MemoryLog::new(seed + 7, faults));
        Both { primary, second, readers: Arc::default() }
    }

    fn mirror(&self) -> (Mirror, Arc<LagGauge>) {
        let (gauge, replica) = (LagGauge::new(20), mirror_replica(&self.second));
        let primary = Arc::new(self.primary.clone());
        (Mirror::new("m", primary, replica, self.readers.clone(), gauge.clone(), options()), gauge)
    }
}

/// Returns the hashes that the primary's map has at all indices that a replica can see.
fn hashes(primary: &MemoryLog) -> BTreeMap<u64, u64> {
    let map = replica(primary);
    let tail = run(primary.tail()).unwrap();
    (0..=tail)
        .map(|index| {
            run(map.play_to(index)).unwrap();
            map.hash()
        })
        .collect()
}

/// Clients write, two mirrors copy and die, and whatever a reader of the mirror sees is a state of the primary.
fn round(seed: u64, faults: Faults, crashes: u64) -> Vec<String> {
    let both = Both::new(seed, faults);
    let (book, mut dice) = (Book::default(), Dice::new(seed));
    let replicas = [replica(&both.primary)];
    let seen = std::sync::Mutex::new(Vec::new());
    let reader = mirror_replica(&both.second);
    let all: Vec<Bytes> = (0..4).map(key).collect();
    let mut clients = Clients::default();
    for id in 1..=2 {
        clients.start(client(replicas[0].clone(), id, seed, 8, book.clone()));
    }
    let copy = || {
        let mut mirror = both.mirror().0;
        async move {
            for now in 0..30 {
                drop(mirror.step(Tick(now)).await);
            }
        }
    };
    clients.start(copy());
    clients.start(copy());
    clients.start(async {
        for _ in 0..15 {
            drop(reader.play().await);
            let hash = reader.primary_hash();
            if let Ok((index, values)) = reader.get(&all).await {
                seen.lock().unwrap().push((hash, index, values));
            }
        }
    });
    let mut started = 0;
    while clients.step(&mut dice, crashes) {
        if started < 3 && dice.below(200) == 0 {
            started += 1;
            clients.start(copy());
        }
    }
    drop(clients);
    both.second.settle();
    let mut wrong = finish(&both.primary, &replicas, &book);
    // In the end, the mirror catches up, and ends where the primary does.
    let mut last = both.mirror().0;
    let lag = (0..500)
        .map(|now| run(last.step(Tick(now))))
        .find(|lag| !matches!(lag, Ok(lag) if lag.positions > 0));
    if !matches!(lag, Some(Ok(_))) {
        wrong.push(format!("the mirror ends with {lag:?}"));
    }
    let (states, primary) = (replay(&both.primary.ever(), &book).states, hashes(&both.primary));
    let end = mirror_replica(&both.second);
    run(end.play()).unwrap();
    let (index, values) = run(end.get(&all)).unwrap();
    let mut seen = seen.into_inner().unwrap();
    seen.push((end.primary_hash(), index, values));
    for ((at, hash), index, values) in seen {
        if primary.get(&at) != Some(&hash) {
            wrong.push(format!("AP3 the mirror has another hash at {at}"));
        }
        let state = states.get(index as usize).cloned().unwrap_or_default();
        let expected: Vec<Option<Bytes>> = all.iter().map(|key| state.get(key).cloned()).collect();
        if values != expected {
            wrong.push(format!("AP3 the mirror shows {values:?} at {index}"));
        }
    }
    wrong
}

#[test]
fn the_mirror_is_always_at_an_earlier_index() {
    for seed in 0..60 {
        assert_eq!(round(seed, Faults::default(), 0), Vec::<String>::new(), "seed {seed}");
    }
    for seed in 0..150 {
        assert_eq!(round(seed, SOME_FAULTS, 4), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_mirror_that_takes_copies_twice_is_found() {
    let found = caught(mutants::APPS_A8, 100, |seed| round(seed, SOME_FAULTS, 4));
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn a_partition_only_increases_the_lag_and_writers_wait_for_it_if_they_want() {
    let both = Both::new(1, Faults::default());
    let (mut mirror, gauge) = both.mirror();
    let map = replica(&both.primary);
    let free = Store::new(map.clone(), ClientId(1), StoreOptions::default());
    let bounded = Store::new(map.clone(), ClientId(2), StoreOptions::default()).bounded_by(gauge.clone());
    run(bounded.multi_put(put(&[("a", "1")]))).unwrap();
    assert_eq!(run(mirror.step(Tick(5))), Ok(Lag { positions: 0, nanos: 0 }));
    both.second.cut_off(true);
    for n in 0..15 {
        run(free.multi_put(put(&[("a", &n.to_string())]))).unwrap();
        assert!(run(mirror.step(Tick(10 + n))).is_err());
        assert_eq!(gauge.positions(), 2 * (n + 1));
    }
    assert_eq!(run(bounded.multi_put(put(&[("a", "x")]))), Err(StoreError::MirrorBehind(30)));
    both.second.cut_off(false);
    let lag = run(mirror.step(Tick(100))).unwrap();
    assert_eq!(lag, Lag { positions: 25, nanos: 0 }, "a bounded batch; what waits now was seen now");
    let mut now = 101;
    while run(mirror.step(Tick(now))).unwrap().positions > 0 {
        now += 1;
    }
    run(bounded.multi_put(put(&[("a", "y")]))).unwrap();
}

#[test]
fn compaction_waits_for_the_mirror_and_a_mirror_that_lost_something_says_so() {
    let both = Both::new(1, Faults::default());
    let map = replica(&both.primary);
    let store = Store::new(map.clone(), ClientId(1), StoreOptions::default());
    for n in 0..10 {
        run(store.multi_put(vec![(key(n % 2), Some("v".into()))])).unwrap();
    }
    let (mut mirror, _) = both.mirror();
    run(mirror.step(Tick(0))).unwrap();
    let all = CompactOptions { patience: 0, history: 0, ..CompactOptions::default() };
    let mut compactor = Compactor::new(map.clone(), both.readers.clone(), ClientId(2));
    assert_eq!(run(compactor.run(all)).unwrap().prefix, 5, "the mirror has copied so much");
    while run(mirror.step(Tick(0))).unwrap().positions > 0 {}
    assert!(run(compactor.run(all)).unwrap().prefix > 5);
    let index = run(store.multi_put(put(&[("a", "1")]))).unwrap();
    while run(mirror.step(Tick(0))).unwrap().positions > 0 {}
    let end = mirror_replica(&both.second);
    run(end.play()).unwrap();
    assert_eq!(end.primary_hash(), map.hash());
    let (at, values) = run(end.get(&keys(&["a", "k0", "k1"]))).unwrap();
    assert_eq!((at, values), (index, vec![Some("1".into()), Some("v".into()), Some("v".into())]));
    let late = Both { second: MemoryLog::new(9, Faults::default()), ..both };
    assert_eq!(run(late.mirror().0.step(Tick(0))), Err(MirrorError::Lost(0)));
}

#[test]
fn a_promoted_mirror_takes_no_more_copies() {
    let both = Both::new(1, Faults::default());
    let store = Store::new(replica(&both.primary), ClientId(1), StoreOptions::default());
    run(store.multi_put(put(&[("a", "1")]))).unwrap();
    let (mut mirror, _) = both.mirror();
    let mut zombie = both.mirror().0;
    run(mirror.step(Tick(0))).unwrap();
    assert_eq!(run(mirror.promote("ada")), Ok(2));
    run(store.multi_put(put(&[("a", "2")]))).unwrap();
    for one in [&mut mirror, &mut zombie] {
        assert_eq!(run(one.step(Tick(1))), Err(MirrorError::Promoted("ada".into())));
    }
}

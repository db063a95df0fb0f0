//! Tests that every store fulfils the contract of [`Store`], and that a store on disk does so across restarts of its process.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::{NodeId, StorageId};
use atoll_db::store::{Change, PAGE_BYTES, may_continue};
use atoll_db::{
    Bound, Direction, FjallStore, KeyRange, MemoryStore, Owner, OwnerError, Store, StoreSnapshot,
};
use bytes::Bytes;
use proptest::prelude::*;

type Model = BTreeMap<Bytes, Bytes>;

fn key() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(0u8..4, 0..4).prop_map(Bytes::from)
}

fn batch() -> impl Strategy<Value = Vec<Change>> {
    proptest::collection::vec((key(), proptest::option::of(0u8..200)), 1..20).prop_map(|changes| {
        // A batch contains each key once.
        let once: BTreeMap<Bytes, Option<u8>> = changes.into_iter().collect();
        once.into_iter().map(|(key, value)| (key, value.map(|v| Bytes::from(vec![v; 3])))).collect()
    })
}

fn page(model: &Model, range: &KeyRange, direction: Direction, limit: usize) -> Vec<(Bytes, Bytes)> {
    let mut items: Vec<_> =
        model.iter().filter(|(k, _)| range.contains(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    if direction == Direction::Backward {
        items.reverse();
    }
    items.truncate(limit);
    items
}

fn equal(snapshot: &dyn StoreSnapshot, model: &Model, range: &KeyRange, limit: usize) {
    for direction in [Direction::Forward, Direction::Backward] {
        for (range, limit) in [(range, limit), (&KeyRange::all(), 1000)] {
            let (found, expected) =
                (snapshot.page(range, direction, limit).unwrap(), page(model, range, direction, limit));
            assert_eq!(found, expected[..found.len().min(expected.len())]);
            assert!(found.len() == expected.len() || may_continue(&found, limit));
        }
    }
    for (key, value) in model {
        assert_eq!(snapshot.get(key).unwrap().as_ref(), Some(value));
    }
    assert_eq!(snapshot.get(b"not there").unwrap(), None);
}

fn apply(model: &mut Model, batch: &[Change]) {
    for (key, value) in batch {
        match value {
            Some(value) => drop(model.insert(key.clone(), value.clone())),
            None => drop(model.remove(key)),
        }
    }
}

/// Commits batches and checks that every snapshot taken in between stays unchanged. Returns the final contents.
fn behaves(store: &mut dyn Store, batches: &[Vec<Change>], range: &KeyRange, limit: usize) -> Model {
    let mut model = Model::new();
    let mut taken: Vec<(Arc<dyn StoreSnapshot>, Model)> = vec![(store.snapshot(), model.clone())];
    for batch in batches {
        apply(&mut model, batch);
        store.commit(batch.clone()).unwrap();
        taken.push((store.snapshot(), model.clone()));
    }
    for (snapshot, model) in &taken {
        equal(&**snapshot, model, range, limit);
    }
    model
}

fn refilled() -> Model {
    (0..50u8).map(|n| (Bytes::from(vec![n % 5, n]), Bytes::from(vec![n; 5]))).collect()
}

/// Checks that an abandoned refill changes nothing, and that a finished one replaces the state but not earlier snapshots.
fn refills(store: &mut dyn Store, model: &Model, range: &KeyRange, limit: usize) {
    store.begin_refill().unwrap();
    store.refill(vec![(Bytes::from_static(b"half"), Bytes::from_static(b"done"))]).unwrap();
    equal(&*store.snapshot(), model, range, limit);
    store.begin_refill().unwrap();
    for part in refilled().into_iter().collect::<Vec<_>>().chunks(20) {
        store.refill(part.to_vec()).unwrap();
    }
    let before = store.snapshot();
    store.finish_refill().unwrap();
    equal(&*before, model, range, limit);
    equal(&*store.snapshot(), &refilled(), range, limit);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn memory_keeps_its_snapshots_and_what_was_persisted(
        batches in proptest::collection::vec(batch(), 0..12),
        more in batch(), start in key(), end in key(), limit in 1usize..10,
    ) {
        let mut store = MemoryStore::new();
        let range = KeyRange::new(start, end);
        let model = behaves(&mut store, &batches, &range, limit);
        store.persist().unwrap();
        store.commit(more).unwrap();
        let before = store.snapshot();
        store.crash();
        equal(&*store.snapshot(), &model, &range, limit);
        drop(before);
        refills(&mut store, &model, &range, limit);
        let model = refilled();
        store.crash();
        equal(&*store.snapshot(), &model, &range, limit);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn fjall_keeps_its_snapshots_and_what_was_committed(
        batches in proptest::collection::vec(batch(), 0..12),
        start in key(), end in key(), limit in 1usize..10,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let range = KeyRange::new(start, end);
        let model = {
            let mut store = FjallStore::open(folder.path(), 1 << 20).unwrap();
            // fjall accepts no empty keys. The engine puts the application's number before each key, so it has none.
            let batches: Vec<Vec<Change>> = batches
                .iter()
                .map(|batch| batch.iter().filter(|(key, _)| !key.is_empty()).cloned().collect())
                .collect();
            behaves(&mut store, &batches, &range, limit)
        };
        let mut store = FjallStore::open(folder.path(), 1 << 20).unwrap();
        equal(&*store.snapshot(), &model, &range, limit);
        refills(&mut store, &model, &range, limit);
        drop(store);
        let store = FjallStore::open(folder.path(), 1 << 20).unwrap();
        equal(&*store.snapshot(), &refilled(), &range, limit);
    }
}

/// Returns a commit that is large enough to be written directly as a file.
fn large(keys: std::ops::Range<u32>, value: u8) -> Vec<Change> {
    keys.map(|n| (Bytes::from(n.to_be_bytes().to_vec()), Some(Bytes::from(vec![value; 100_000])))).collect()
}

/// Large commits take another path to the disk than small ones. The last write of a key must win, also after the store is reopened.
#[test]
fn fjall_mixes_large_commits_and_small_ones() {
    let folder = tempfile::tempdir().unwrap();
    let small = |key: u32, value: Option<u8>| {
        vec![(Bytes::from(key.to_be_bytes().to_vec()), value.map(|v| Bytes::from(vec![v; 3])))]
    };
    let mut removes = large(100..250, 5);
    removes[..50].iter_mut().for_each(|(_, value)| *value = None);
    // The engine's own keys come before those of the commit.
    removes.extend(small(0, Some(5)));
    let batches = [
        small(1, Some(1)),
        small(150, Some(1)),
        large(100..200, 2),
        small(101, Some(3)),
        small(102, None),
        removes,
        small(103, Some(6)),
        large(90..180, 7),
        small(104, Some(8)),
    ];
    let mut model = Model::new();
    for pair in batches.chunks(2) {
        let mut store = FjallStore::open(folder.path(), 1 << 20).unwrap();
        equal(&*store.snapshot(), &model, &KeyRange::all(), 3);
        model = {
            let mut after = model.clone();
            for batch in pair {
                let before = store.snapshot();
                store.commit(batch.clone()).unwrap();
                equal(&*before, &after, &KeyRange::all(), 3);
                apply(&mut after, batch);
                equal(&*store.snapshot(), &after, &KeyRange::all(), 3);
            }
            after
        };
    }
    let store = FjallStore::open(folder.path(), 1 << 20).unwrap();
    equal(&*store.snapshot(), &model, &KeyRange::all(), 3);
}

/// A store names its owner and is refused to any other. A store that names no owner is adopted once.
#[test]
fn a_store_belongs_to_one_owner() {
    let owner = |node, storage| Owner {
        cluster: "reef".to_owned(),
        node: NodeId(node),
        storage: StorageId(storage),
        log: "db".to_owned(),
    };
    let open = |folder: &std::path::Path| FjallStore::open(folder, 1 << 20).unwrap();
    let some = vec![(Bytes::from_static(b"key"), Some(Bytes::from_static(b"value")))];
    let (mine, old) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(open(mine.path()).bind(&owner(1, 7), false), Ok(Bound::New));
    open(mine.path()).commit(some.clone()).unwrap();
    assert_eq!(open(mine.path()).bind(&owner(1, 7), true), Ok(Bound::Same));
    assert_eq!(open(mine.path()).bind(&owner(1, 7), false), Ok(Bound::Same));
    // Another node, and this node with another data directory.
    for other in [owner(2, 7), owner(1, 8)] {
        for was_bound in [false, true] {
            let refused = open(mine.path()).bind(&other, was_bound);
            assert!(matches!(refused, Err(OwnerError::Foreign { .. })), "{refused:?}");
        }
    }
    open(old.path()).commit(some).unwrap();
    let refused = open(old.path()).bind(&owner(1, 7), true);
    assert!(matches!(refused, Err(OwnerError::Unbound { .. })), "{refused:?}");
    assert_eq!(open(old.path()).bind(&owner(1, 7), false), Ok(Bound::Adopted));
    assert_eq!(open(old.path()).bind(&owner(1, 7), true), Ok(Bound::Same));
}

/// With values of half a megabyte, a page of 256 entries would take 128 MB.
fn pages_are_bounded(store: &mut dyn Store) {
    const LIMIT: usize = 256;
    let key = |n: u8| Bytes::from(vec![b'k', n]);
    store.commit((0..100).map(|n| (key(n), Some(Bytes::from(vec![n; 512 * 1024])))).collect()).unwrap();
    let snapshot = store.snapshot();
    for direction in [Direction::Forward, Direction::Backward] {
        let (mut left, mut found, mut pages) = (KeyRange::all(), Vec::new(), 0);
        loop {
            let page = snapshot.page(&left, direction, LIMIT).unwrap();
            let bytes: usize = page.iter().map(|(_, value)| value.len()).sum();
            assert!(bytes < PAGE_BYTES + 1024 * 1024, "{bytes}");
            pages += 1;
            let last = page.last().map(|(key, _)| key.clone());
            let more = may_continue(&page, LIMIT);
            found.extend(page.into_iter().map(|(key, _)| key));
            let Some(last) = last.filter(|_| more) else { break };
            left = if direction == Direction::Forward { left.above(&last) } else { left.below(&last) };
        }
        let mut expected: Vec<Bytes> = (0..100).map(key).collect();
        if direction == Direction::Backward {
            expected.reverse();
        }
        assert!(found == expected && pages > 10, "{pages} pages");
    }
}

#[test]
fn a_page_of_long_values_has_few_of_them() {
    pages_are_bounded(&mut MemoryStore::new());
    let folder = tempfile::tempdir().unwrap();
    pages_are_bounded(&mut FjallStore::open(folder.path(), 1 << 20).unwrap());
}

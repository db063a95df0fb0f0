//! Tests the store of cells against a model, under power cuts, kills, full disks and failures: synced values are there, a write is there as
//! a whole or not at all, and nothing else ever appears.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::{Cell, CellWrite, RoleKind, StorageId};
use atoll_storage::mutants;
use atoll_storage::{CellError, CellOptions, CellStore, Disk, DiskPath, Fault, MemDisk, RecoverCellsError};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

const STORAGE: StorageId = StorageId(0x5eed);

type Key = (RoleKind, Bytes);
type Content = BTreeMap<Key, Bytes>;

fn options() -> CellOptions {
    CellOptions::small(STORAGE)
}

fn open(disk: &MemDisk) -> Result<(CellStore, Content), CellError> {
    let mut found = Content::new();
    let visit = &mut |cell: Cell| {
        assert!(found.insert((cell.owner, cell.key), cell.value).is_none(), "each cell comes once");
        Ok::<_, Infallible>(())
    };
    match CellStore::recover(Arc::new(disk.clone()), options(), visit) {
        Ok(store) => Ok((store, found)),
        Err(RecoverCellsError::Cells(error)) => Err(error),
        Err(RecoverCellsError::Visitor(never)) => match never {},
    }
}

fn key(n: u8) -> Key {
    (RoleKind(1 + n % 2), Bytes::from(vec![b'k', n]))
}

fn value(n: u64, size: usize) -> Bytes {
    (0..size as u64).map(|i| (n.wrapping_mul(37).wrapping_add(i * 11) >> (i % 3)) as u8).collect()
}

fn write(number: u64, key: Key, value: Option<Bytes>) -> CellWrite {
    CellWrite { number, owner: key.0, key: key.1, value }
}

/// Writes and syncs one cell.
fn put(store: &mut CellStore, n: u8, value: Option<Bytes>) -> Result<(), CellError> {
    let number = store.last() + 1;
    store.write(&[write(number, key(n), value)])?;
    store.sync()
}

#[derive(Clone, Debug)]
enum Op {
    /// Writes these cells; None deletes.
    Write(Vec<(u8, Option<u16>)>),
    Sync,
    Mark,
    /// A power cut with this seed.
    Cut(u64),
    Kill,
    /// Makes the disk full, or gives it space again.
    Fill(bool),
    /// After this many more changes to the disk the process dies, followed by a power cut with this seed.
    Die(u8, u64),
    /// A power cut, after which the process dies once recovery has made this many changes.
    CutTwice(u8, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let size = prop_oneof![4 => 0u16..400, 2 => 400u16..3000, 1 => 3000u16..9000];
    let size = prop_oneof![1 => Just(None), 5 => size.prop_map(Some)];
    prop_oneof![
        8 => prop::collection::vec((0u8..12, size), 1..6).prop_map(Op::Write),
        6 => Just(Op::Sync),
        1 => Just(Op::Mark),
        3 => any::<u64>().prop_map(Op::Cut),
        1 => Just(Op::Kill),
        1 => any::<bool>().prop_map(Op::Fill),
        2 => (0u8..30, any::<u64>()).prop_map(|(n, seed)| Op::Die(n, seed)),
        2 => (0u8..20, any::<u64>()).prop_map(|(n, seed)| Op::CutTwice(n, seed)),
    ]
}

struct Dead;

struct Model {
    disk: MemDisk,
    store: CellStore,
    durable: Content,
    /// What the batch that is not synced yet writes.
    pending: BTreeMap<Key, Option<Bytes>>,
    synced: u64,
    counter: u64,
    dying: u64,
}

impl Model {
    fn new() -> Model {
        let disk = MemDisk::new();
        disk.tear_growth(true);
        let (store, found) = open(&disk).unwrap();
        assert!(found.is_empty() && disk.used_bytes() == 0);
        let (durable, pending) = (Content::new(), BTreeMap::new());
        Model { disk, store, durable, pending, synced: 0, counter: 0, dying: 0 }
    }

    fn run(&mut self, op: Op) {
        if self.step(op).is_err() {
            self.disk.crash_seeded(self.dying);
            self.recover();
        }
    }

    fn step(&mut self, op: Op) -> Result<(), Dead> {
        match op {
            Op::Write(cells) => {
                self.sync()?;
                self.write(&cells)?;
            }
            Op::Sync => self.sync()?,
            Op::Mark => self.store.mark().or_else(died)?,
            Op::Cut(seed) => {
                self.disk.crash_seeded(seed);
                self.recover();
            }
            Op::Kill => {
                self.disk.kill_process();
                self.recover();
            }
            Op::CutTwice(n, seed) => {
                self.disk.crash_seeded(seed);
                self.disk.die_after(n.into());
                self.dying = seed;
                self.recover();
            }
            Op::Fill(full) => self.disk.set_capacity(full.then(|| self.disk.used_bytes() + 100)),
            Op::Die(n, seed) => {
                self.disk.die_after(n.into());
                self.dying = seed;
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Dead> {
        self.store.sync().or_else(died)?;
        for (key, value) in std::mem::take(&mut self.pending) {
            match value {
                Some(value) => self.durable.insert(key, value),
                None => self.durable.remove(&key),
            };
        }
        self.synced = self.store.last();
        assert_eq!(self.store.stats().cells, self.durable.len() as u64);
        Ok(())
    }

    fn write(&mut self, cells: &[(u8, Option<u16>)]) -> Result<(), Dead> {
        let mut batch = Vec::new();
        for (n, size) in cells {
            self.counter += 1;
            let value = size.map(|size| value(self.counter, size.into()));
            batch.push(write(self.store.last() + 1 + batch.len() as u64, key(*n), value));
        }
        let reserved = self.store.reserve(&batch);
        if let Err(CellError::NoSpace { .. }) = &reserved {
            assert!(self.store.is_short() && !self.store.has_room_for(&batch));
            return Ok(());
        }
        let reserved = reserved.or_else(died)?;
        assert!(self.store.has_room_for(&batch));
        for cell in &batch {
            self.pending.insert((cell.owner, cell.key.clone()), cell.value.clone());
        }
        self.store.write_reserved(reserved).or_else(died)
    }

    fn recover(&mut self) {
        let (store, found) = loop {
            match open(&self.disk) {
                Ok(opened) => break opened,
                Err(error) => {
                    assert!(died::<()>(error).is_err());
                    self.disk.crash_seeded(self.dying ^ 1);
                }
            }
        };
        assert!(store.last() >= self.synced, "{} < {}, which was synced", store.last(), self.synced);
        let mut expected = self.durable.clone();
        for (key, value) in std::mem::take(&mut self.pending) {
            let is_new = found.get(&key) == value.as_ref();
            match value {
                Some(value) if is_new => drop(expected.insert(key, value)),
                None if is_new => drop(expected.remove(&key)),
                _ => {}
            }
        }
        assert!(found == expected, "found {:?}, expected {:?}", found.keys(), expected.keys());
        (self.durable, self.synced) = (expected, store.last());
        self.store = store;
    }
}

fn died<T>(error: CellError) -> Result<T, Dead> {
    assert!(error.to_string().contains("dead"), "{error}");
    Err(Dead)
}

/// The rare branches that the test must reach.
const MARKS: [&str; 7] = [
    "cells.closed",
    "cells.grow",
    "cells.move",
    "cells.no_space",
    "cells.recover.stale",
    "cells.recover.torn",
    "cells.recover.unlisted",
];

fn explore(cases: u32) -> Result<(), String> {
    let config = ProptestConfig { failure_persistence: None, cases, ..ProptestConfig::default() };
    let mut runner = TestRunner::new_with_rng(
        ProptestConfig { max_shrink_iters: 200, ..config },
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let ops = prop::collection::vec(op(), 1..80);
    let result = runner.run(&ops, |ops| {
        let mut model = Model::new();
        for op in ops {
            model.run(op);
        }
        model.run(Op::Cut(1));
        model.run(Op::Cut(2));
        Ok(())
    });
    result.map_err(|failure| failure.to_string())
}

#[test]
fn synced_cells_survive_and_nothing_else_shows() {
    take_marks();
    if let Err(failure) = explore(1500) {
        panic!("{failure}");
    }
    let marks = take_marks();
    let unseen: Vec<&str> = MARKS.into_iter().filter(|m| !marks.contains_key(m)).collect();
    assert!(unseen.is_empty(), "never reached: {unseen:?}");
    for damage in ["cells.recover.rot", "cells.recover.missing", "cells.recover.older"] {
        assert!(!marks.contains_key(damage), "{damage} without damage");
    }
}

fn fails(mutant: Mutant) -> bool {
    set_mutant(mutant);
    let result = catch_unwind(AssertUnwindSafe(|| explore(200)));
    set_mutant(Mutant::NONE);
    !matches!(result, Ok(Ok(())))
}

#[test]
fn known_bugs_are_found() {
    assert!(fails(mutants::CELLS_BOTH_VERSIONS));
    assert!(fails(mutants::CELLS_UNSYNCED));
}

/// Returns a disk with cells of several sizes, written several times, and its content.
fn used() -> (MemDisk, Content) {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    for n in 0..5u8 {
        for round in 0..3 {
            put(&mut store, n, Some(value(u64::from(n) * 10 + round, 60 + 200 * usize::from(n)))).unwrap();
        }
    }
    put(&mut store, 3, None).unwrap();
    put(&mut store, 1, Some(value(99, 3000))).unwrap();
    put(&mut store, 0, Some(value(98, 10))).unwrap();
    store.mark().unwrap();
    drop(store);
    let (_, content) = open(&disk).unwrap();
    assert_eq!(content.len(), 4);
    (disk, content)
}

fn path(text: &str) -> DiskPath {
    DiskPath::new(text).unwrap()
}

fn files(disk: &MemDisk) -> Vec<DiskPath> {
    let names = disk.list(&path("cells")).unwrap();
    let names = names.iter().map(|name| path(&format!("cells/{name}")));
    names.chain([path("cells.manifest")]).collect()
}

#[test]
fn a_flipped_bit_is_refused_or_changes_nothing() {
    let (disk, content) = used();
    let (mut refused, mut harmless) = (0, 0);
    for file in files(&disk) {
        let len = disk.open(&file, atoll_storage::Open::Read).unwrap().len().unwrap().min(8192);
        for offset in (0..len).step_by(7) {
            let damaged = disk.fork();
            assert!(damaged.flip_bit(&file, offset, (offset % 8) as u8));
            match open(&damaged) {
                Ok((_, found)) => {
                    assert!(found == content, "{file} at {offset}");
                    harmless += 1;
                }
                Err(CellError::Disk(error)) => panic!("{error}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 300 && harmless > 300, "{refused} refused, {harmless} harmless");
}

/// Returns what a power cut keeps, one bit for each decision.
fn kept(mut bits: u32) -> impl FnMut() -> bool {
    move || {
        let keep = bits & 1 == 1;
        bits >>= 1;
        keep
    }
}

/// Two power cuts, each of which tears the write of a cell in every way. The number of the first of these writes is given again before the
/// second. A whole old version with nothing but the end of a longer one behind it made the second recovery refuse the directory.
#[test]
fn a_torn_write_leaves_nothing_that_counts_once_its_number_is_given_again() {
    for (old, new) in [(1000, 1900), (1900, 1000), (1500, 1500)] {
        let base = MemDisk::new();
        let (mut store, _) = open(&base).unwrap();
        put(&mut store, 1, Some(value(1, old))).unwrap();
        put(&mut store, 1, Some(value(2, old))).unwrap();
        store.write(&[write(3, key(1), Some(value(3, new)))]).unwrap();
        for (first, second) in (0..256).map(|bits| (bits / 16, bits % 16)) {
            let disk = base.fork();
            disk.crash(&mut kept(first));
            let (mut store, found) = open(&disk).unwrap();
            let was = found[&key(1)].clone();
            assert!([value(2, old), value(3, new)].contains(&was), "{old} {new} {first}");
            for n in 4..6 {
                put(&mut store, 2, Some(value(n, 10))).unwrap();
            }
            let number = store.last() + 1;
            store.write(&[write(number, key(1), Some(value(6, new)))]).unwrap();
            disk.crash(&mut kept(second));
            let (_, found) = open(&disk).unwrap();
            assert!([was, value(6, new)].contains(&found[&key(1)]), "{old} {new} {first} {second}");
            assert_eq!(found[&key(2)], value(5, 10));
        }
    }
}

/// A version without its tail is repaired, by a copy on the other side of its slot. If a crash tears that copy, there are two reasons for a
/// repair. The next recovery must not overwrite both sides before a sync: a power cut may damage every block that is being written (X3).
#[test]
fn a_recovery_overwrites_one_side_of_a_slot() {
    let base = MemDisk::new();
    let (mut store, _) = open(&base).unwrap();
    put(&mut store, 1, Some(value(1, 1400))).unwrap();
    store.write(&[write(2, key(1), Some(value(2, 1400)))]).unwrap();
    base.crash(&mut kept(0b0111));
    for (deaths, bits) in (0..6 * 16).map(|n| (n / 16, n as u32 % 16)) {
        let disk = base.fork();
        disk.die_after(deaths);
        let _ = open(&disk);
        disk.crash(&mut kept(bits));
        let before = disk.written_bytes();
        let (_, found) = open(&disk).unwrap();
        assert_eq!(found[&key(1)], value(2, 1400));
        assert!(disk.written_bytes() - before <= 2048, "{deaths} {bits}");
    }
}

/// A file grows with several writes and one sync, and is listed after that. Whatever a power cut leaves of the growth, nothing of it may
/// count: neither its length, nor the bytes in it, nor slots that were not filled.
#[test]
fn a_growth_that_a_power_cut_tears_is_done_again() {
    let base = MemDisk::new();
    let (mut store, _) = open(&base).unwrap();
    let large = |n: u8| Some(value(n.into(), 5000));
    let mut next = 0;
    while next == 0 || store.has_room_for(&[write(store.last() + 1, key(next), large(next))]) {
        put(&mut store, next, large(next)).unwrap();
        next += 1;
    }
    drop(store);
    let (_, content) = open(&base).unwrap();
    let mut lens = BTreeSet::new();
    for dies_after in 0..8 {
        for seed in 0..64 {
            let disk = base.fork();
            disk.tear_growth(true);
            let (mut store, _) = open(&disk).unwrap();
            disk.die_after(dies_after);
            if put(&mut store, next, large(next)).is_ok() {
                continue;
            }
            disk.crash_seeded(seed);
            let file = disk.open(&path("cells/class-04"), atoll_storage::Open::Read).unwrap();
            lens.insert(file.len().unwrap());
            let (mut store, found) = open(&disk).unwrap();
            let mut expected = content.clone();
            expected.extend(found.get_key_value(&key(next)).map(|(k, v)| (k.clone(), v.clone())));
            assert!(found == expected, "{dies_after} {seed}: {:?}", found.keys());
            for more in next..next + 20 {
                put(&mut store, more, large(more)).unwrap();
                expected.insert(key(more), large(more).unwrap());
            }
            disk.crash_seeded(seed);
            assert!(open(&disk).unwrap().1 == expected, "{dies_after} {seed}");
        }
    }
    assert!(lens.len() > 20, "{lens:?}");
}

#[test]
fn lost_and_older_files_are_refused() {
    let (disk, _) = used();
    let older = disk.fork();
    let (mut store, _) = open(&disk).unwrap();
    for n in 0..5 {
        put(&mut store, n, Some(value(200 + u64::from(n), 60 + 200 * usize::from(n)))).unwrap();
    }
    // Enough new cells for another listing of slots.
    for n in 20..80 {
        put(&mut store, n, Some(value(1, 60))).unwrap();
    }
    store.mark().unwrap();
    drop(store);
    for file in files(&disk) {
        let lost = disk.fork();
        lost.lose(&file);
        assert!(matches!(open(&lost), Err(CellError::Missing { .. })), "{file} lost");
        let cut = disk.fork();
        cut.cut(&file, 600);
        let error = open(&cut).map(drop).unwrap_err();
        assert!(matches!(error, CellError::Missing { .. } | CellError::Damaged { .. }), "{file} cut");
        let old = disk.fork();
        old.put_back(&file, &older);
        let refused = open(&old).map(drop);
        let unchanged = file.as_str() == "cells/class-03";
        let is_refusal =
            matches!(refused, Err(CellError::Missing { .. } | CellError::Older { .. })) || unchanged;
        assert!(is_refusal, "{file} put back: {refused:?}");
        set_mutant(mutants::CELL_LOSS_UNSEEN);
        let taken = open(&lost).map(drop);
        set_mutant(Mutant::NONE);
        assert_eq!(taken, Ok(()));
    }
    let foreign = CellStore::recover(Arc::new(disk.clone()), CellOptions::small(StorageId(1)), &mut |_| {
        Ok::<_, Infallible>(())
    });
    assert!(matches!(foreign.map(drop), Err(RecoverCellsError::Cells(CellError::Foreign { .. }))));
}

#[test]
fn a_full_disk_takes_overwrites_and_refuses_new_cells() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    put(&mut store, 1, Some(value(1, 100))).unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    let mut n = 2;
    let (written, last) = loop {
        let (written, last) = (disk.written_bytes(), store.last());
        match put(&mut store, n, Some(value(1, 100))) {
            Ok(()) => n += 1,
            Err(error) => {
                assert!(matches!(error, CellError::NoSpace { .. }), "{error}");
                break (written, last);
            }
        }
    };
    assert_eq!((disk.written_bytes(), store.last(), store.is_short()), (written, last, true));
    put(&mut store, 1, Some(value(2, 150))).unwrap();
    put(&mut store, 2, None).unwrap();
    // The slot of the deleted cell is free.
    put(&mut store, n, Some(value(3, 100))).unwrap();
    assert!(matches!(put(&mut store, n + 1, Some(value(3, 100))), Err(CellError::NoSpace { .. })));
    disk.set_capacity(None);
    put(&mut store, n + 1, Some(value(3, 100))).unwrap();
    assert!(!store.is_short());
    drop(store);
    let (_, found) = open(&disk).unwrap();
    assert_eq!(found.len(), usize::from(n));
}

#[test]
fn a_failed_sync_closes_the_store_and_the_last_synced_value_comes_back() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    put(&mut store, 1, Some(value(1, 900))).unwrap();
    disk.fail_next(Fault::Sync, 1);
    let failed = put(&mut store, 1, Some(value(2, 900)));
    assert!(matches!(failed, Err(CellError::Closed { .. })));
    assert!(matches!(put(&mut store, 1, None), Err(CellError::Closed { .. })));
    assert!(matches!(store.mark(), Err(CellError::Closed { .. })));
    disk.crash(&mut || false);
    let (_, found) = open(&disk).unwrap();
    assert_eq!(found, Content::from([(key(1), value(1, 900))]));
}

#[test]
fn a_batch_costs_one_sync_for_each_file_and_the_same_at_every_write() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let batch = |from: u64| -> Vec<CellWrite> {
        (0..10).map(|n| write(from + u64::from(n), key(n), Some(value(from, 100)))).collect()
    };
    store.write(&batch(1)).unwrap();
    store.sync().unwrap();
    let used = disk.used_bytes();
    for round in 1..100 {
        let (syncs, bytes) = (disk.syncs(), disk.written_bytes());
        store.write(&batch(1 + round * 10)).unwrap();
        store.sync().unwrap();
        assert_eq!((disk.syncs() - syncs, disk.written_bytes() - bytes), (1, 10 * 512));
    }
    assert_eq!(disk.used_bytes(), used);
}

#[test]
fn a_deletion_of_nothing_counts_after_a_restart() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    put(&mut store, 1, None).unwrap();
    disk.crash(&mut || false);
    let (mut store, found) = open(&disk).unwrap();
    assert_eq!((store.last(), found.len()), (1, 0));
    put(&mut store, 1, Some(value(1, 1))).unwrap();
    put(&mut store, 2, None).unwrap();
    disk.crash(&mut || false);
    assert_eq!(open(&disk).unwrap().0.last(), 3);
}

#[test]
fn bad_cells_are_refused_and_nothing_is_written() {
    let disk = MemDisk::new();
    let (mut store, _) = open(&disk).unwrap();
    let long = Bytes::from(vec![1; atoll_core::MAX_CELL_KEY_BYTES + 1]);
    for key in [Bytes::new(), long] {
        let refused = store.write(&[write(1, (RoleKind(1), key), None)]);
        assert!(matches!(refused, Err(CellError::BadCell { .. })));
    }
    let large = Bytes::from(vec![1; atoll_core::MAX_CELL_VALUE_BYTES + 1]);
    assert!(matches!(put(&mut store, 1, Some(large.clone())), Err(CellError::BadCell { .. })));
    assert_eq!(disk.used_bytes(), 0);
    put(&mut store, 1, Some(large.slice(1..))).unwrap();
    assert_eq!(open(&disk).unwrap().1.values().map(Bytes::len).sum::<usize>(), large.len() - 1);
}

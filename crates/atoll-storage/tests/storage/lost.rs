//! Tests of files that are lost, cut, put back from an older copy, or taken from another directory: recovery finds everything that was
//! synced, or refuses and names the file.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io::IoSlice;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Checkpoint, Lsn, NodeId, RecordKind, RoleKind, StorageId};
use atoll_storage::{
    Disk, DiskPath, Identity, Journal, JournalOptions, MemDisk, Open, RecoverError, Recovered,
};
use bytes::Bytes;

/// Everything that a start finds: the number up to which the checkpoint covers facts, and the records.
type Found = (Lsn, BTreeSet<u64>);

/// Starts like a node: opens the marker, then the journal.
fn start_as(disk: &MemDisk, new: StorageId) -> Result<(Journal, Found), String> {
    let (marker, _) = Identity::open(disk, "reef", NodeId(1), || new).map_err(|error| error.to_string())?;
    let mut options = JournalOptions::small(marker.storage);
    options.segment_bytes = 16 * 512;
    options.first_segment_bytes = 8 * 512;
    options.checkpoint_reserve_bytes = 512;
    let (mut covers, mut records) = (Lsn(0), BTreeSet::new());
    let mut visit = |recovered| {
        match recovered {
            Recovered::Checkpoint(checkpoint) => covers = checkpoint.covers,
            Recovered::Record(stored) => assert!(records.insert(stored.lsn.0)),
        }
        Ok::<_, Infallible>(())
    };
    match Journal::recover(Arc::new(disk.clone()), options, &mut visit) {
        Ok((journal, _)) => Ok((journal, (covers, records))),
        Err(RecoverError::Journal(error)) => Err(error.to_string()),
    }
}

fn start(disk: &MemDisk) -> Result<(Journal, Found), String> {
    start_as(disk, STORAGE)
}

/// A directory with entries and facts in several segments, some of which are recycled. A start must find the facts and the live entries.
struct Life {
    disk: MemDisk,
    journal: Journal,
    live: BTreeMap<u64, RecordKind>,
    next: u64,
    covers: Lsn,
    round: u64,
}

impl Life {
    fn new(storage: StorageId) -> Life {
        let disk = MemDisk::new();
        let (journal, _) = start_as(&disk, storage).unwrap();
        Life { disk, journal, live: BTreeMap::new(), next: 1, covers: Lsn(0), round: 0 }
    }

    /// Writes this many batches and frees the older half of their entries.
    fn work(&mut self, rounds: u64) {
        let mut places = Vec::new();
        for _ in 0..rounds {
            self.round += 1;
            let batch = match self.round % 3 {
                0 => facts(self.next, 2, 60),
                _ => entries(self.next, 2, 1500),
            };
            for (lsn, record) in &batch.records {
                self.live.insert(lsn.0, record.kind);
            }
            places.extend(self.journal.write(&batch).unwrap());
            self.next = self.journal.sync().unwrap().0 + 1;
            if let Some(job) = self.journal.next_job() {
                self.journal.prepared(job.run()).unwrap();
            }
        }
        let half = places.len() / 2;
        for (lsn, loc) in places.drain(..half) {
            if self.live.get(&lsn.0) == Some(&RecordKind::Entry) {
                self.journal.free(&[loc]).unwrap();
                self.live.remove(&lsn.0);
            }
        }
    }

    fn checkpoint(&mut self) {
        self.covers = self.journal.synced();
        let states = vec![(RoleKind(1), Bytes::from_static(b"state"))];
        self.journal.write_checkpoint(&Checkpoint { covers: self.covers, states }).unwrap();
    }

    fn mark(&mut self) {
        self.journal.mark().unwrap();
        self.journal.sync().unwrap();
    }

    /// Starts from this disk. Returns the reason if the start refuses, and panics if it succeeds although records are lost.
    fn verdict(&self, disk: &MemDisk) -> Result<(), String> {
        let (_, (covers, records)) = start(disk)?;
        let lost: Vec<_> = self
            .live
            .iter()
            .filter(|(lsn, kind)| {
                let in_checkpoint = **kind == RecordKind::Fact && Lsn(**lsn) <= covers;
                !in_checkpoint && !records.contains(lsn)
            })
            .map(|(lsn, _)| *lsn)
            .collect();
        assert!(lost.is_empty(), "records {lost:?} are lost, and nobody says so");
        Ok(())
    }
}

/// Returns a used directory, and an older copy of it.
fn used() -> (Life, MemDisk) {
    let mut life = Life::new(STORAGE);
    life.work(12);
    life.checkpoint();
    life.work(7);
    let older = life.disk.fork();
    life.work(9);
    life.checkpoint();
    life.work(6);
    life.mark();
    assert!(life.journal.stats().recycled > 1);
    life.verdict(&life.disk.fork()).unwrap();
    (life, older)
}

fn path(text: &str) -> DiskPath {
    DiskPath::new(text).unwrap()
}

fn files(disk: &MemDisk) -> Vec<DiskPath> {
    let journal = disk.list(&path("journal")).unwrap();
    let root = disk.list(&DiskPath::root()).unwrap();
    let root = root.iter().map(|name| path(name));
    journal.iter().map(|name| path(&format!("journal/{name}"))).chain(root).collect()
}

fn read(disk: &MemDisk, file: &DiskPath) -> Option<Vec<u8>> {
    let file = disk.open(file, Open::Read).ok()?;
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    Some(bytes)
}

/// Writes these bytes to the file, or removes the file if there are none.
fn put(disk: &MemDisk, file: &DiskPath, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            disk.open(file, Open::Create).unwrap().write_at(0, &[IoSlice::new(bytes)]).unwrap();
        }
        None => {
            let _ = disk.remove(file);
        }
    }
}

fn is_segment(file: &DiskPath) -> bool {
    file.as_str().ends_with(".seg") && !file.as_str().contains("spare")
}

/// Returns groups of files to lose together: each file alone, all segments, and the whole journal.
fn groups(disk: &MemDisk) -> Vec<Vec<DiskPath>> {
    let all = files(disk);
    let journal: Vec<_> = all.iter().filter(|f| f.as_str().starts_with("journal/")).cloned().collect();
    let segments = all.iter().filter(|f| is_segment(f)).cloned().collect();
    all.into_iter().map(|f| vec![f]).chain([segments, journal]).collect()
}

#[test]
fn what_is_deleted_is_missed() {
    let (life, _) = used();
    for group in groups(&life.disk) {
        let disk = life.disk.fork();
        group.iter().for_each(|file| put(&disk, file, None));
        let needed = group.iter().any(is_segment);
        match life.verdict(&disk) {
            Err(error) => assert!(
                group.iter().any(|f| error.contains(f.as_str())) || error.contains("journal"),
                "{error} does not name {group:?}"
            ),
            Ok(()) => assert!(!needed, "{group:?} is not missed"),
        }
    }
}

#[test]
fn what_is_cut_is_missed() {
    let (life, _) = used();
    for file in files(&life.disk) {
        let bytes = read(&life.disk, &file).unwrap();
        for keep in [0, 1, 511, 512, bytes.len() / 4, bytes.len() / 2, bytes.len().saturating_sub(512)] {
            let disk = life.disk.fork();
            put(&disk, &file, bytes.get(..keep));
            if let Err(error) = life.verdict(&disk) {
                assert!(error.contains(file.as_str()), "{error} does not name {file}");
            }
        }
    }
}

#[test]
fn an_older_copy_is_told_from_the_current_one() {
    let (life, older) = used();
    let put_back = |disk: &MemDisk, file: &DiskPath| put(disk, file, read(&older, file).as_deref());
    for file in files(&life.disk).iter().chain(&files(&older)) {
        let disk = life.disk.fork();
        put_back(&disk, file);
        if let Err(error) = life.verdict(&disk) {
            assert!(error.contains(file.as_str()), "{error} does not name {file}");
        }
    }
    // The whole folder is put back.
    let disk = life.disk.fork();
    for file in files(&life.disk).iter().chain(&files(&older)).filter(|f| f.as_str().starts_with("journal/"))
    {
        put_back(&disk, file);
    }
    let error = life.verdict(&disk).unwrap_err();
    assert!(error.contains("journal"), "{error}");
}

/// Writes facts, and after every sixth batch a checkpoint, which leaves spares. Returns a copy of the disk for each batch.
fn write_facts(disk: &MemDisk, journal: &mut Journal, batches: u64) -> Vec<MemDisk> {
    let mut copies = Vec::new();
    for batch in 0..batches {
        journal.write(&facts(journal.synced().0 + 1, 2, 1500)).unwrap();
        journal.sync().unwrap();
        if batch % 6 == 5 {
            let states = vec![(RoleKind(1), Bytes::from_static(b"state"))];
            journal.write_checkpoint(&Checkpoint { covers: journal.synced(), states }).unwrap();
        }
        copies.push(disk.fork());
        if let Some(job) = journal.next_job() {
            journal.prepared(job.run()).unwrap();
        }
    }
    copies
}

/// An old copy of a recycled segment is put back next to the spare that was made of it, and becomes that spare again. The journal must not
/// count it twice: it would close when it uses the file for the second time.
#[test]
fn a_segment_put_back_beside_its_spare_is_one_spare() {
    let disk = MemDisk::new();
    let (mut journal, _) = start(&disk).unwrap();
    let copies = write_facts(&disk, &mut journal, 42);
    let mut tried = 0;
    for (at, now) in copies.iter().enumerate() {
        for file in files(now) {
            let Some(segment) = file.as_str().strip_prefix("journal/spare-") else { continue };
            let segment = path(&format!("journal/{segment}"));
            let Some(bytes) = copies[..at].iter().rev().find_map(|copy| read(copy, &segment)) else {
                continue;
            };
            let disk = now.fork();
            put(&disk, &segment, Some(&bytes));
            let Ok((mut journal, _)) = start(&disk) else { continue };
            write_facts(&disk, &mut journal, 42);
            tried += 1;
        }
    }
    assert!(tried > 0);
}

#[test]
fn the_end_of_the_newest_segment_is_missed_once_marked() {
    let mut life = Life::new(STORAGE);
    // Facts, of which each batch takes one block.
    life.round = 2;
    life.work(1);
    let older = life.disk.fork();
    life.round = 2;
    life.work(1);
    life.mark();
    let is_changed = |f: &DiskPath| is_segment(f) && read(&life.disk, f) != read(&older, f);
    let newest = files(&older).into_iter().find(is_changed).unwrap();
    let disk = life.disk.fork();
    put(&disk, &newest, read(&older, &newest).as_deref());
    let error = life.verdict(&disk).unwrap_err();
    assert!(error.contains(newest.as_str()), "{error}");
}

#[test]
fn files_of_another_directory_are_refused() {
    let (life, _) = used();
    let mut other = Life::new(StorageId(0x07e5));
    other.work(20);
    other.checkpoint();
    other.work(9);
    other.mark();
    for file in files(&other.disk) {
        let disk = life.disk.fork();
        put(&disk, &file, read(&other.disk, &file).as_deref());
        // A spare file holds nothing that is needed, whoever wrote it.
        match life.verdict(&disk) {
            Err(error) => assert!(!error.is_empty()),
            Ok(()) => assert!(!is_segment(&file), "{file} of another directory was taken"),
        }
    }
}

#[test]
fn a_marker_without_a_journal_is_refused_and_an_empty_directory_is_new() {
    let disk = MemDisk::new();
    let (identity, new) = Identity::open(&disk, "reef", NodeId(1), || STORAGE).unwrap();
    assert!(new);
    // Nothing was ever written, so the first start may have ended here.
    start(&disk.fork()).unwrap();
    let marker = read(&disk, &path("node")).unwrap();
    let lost = MemDisk::new();
    put(&lost, &path("node"), Some(&marker));
    let error = start(&lost).map(|_| ()).unwrap_err();
    assert!(error.contains("journal") && error.contains("move"), "{error}");
    assert_eq!(identity.storage, STORAGE);
}

/// A crash at any moment, from the first step on, leaves a directory that opens.
#[test]
fn a_crash_between_any_two_steps_refuses_nothing() {
    for steps in (0..400).step_by(1) {
        let disk = MemDisk::new();
        disk.die_after(steps);
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (journal, _) = start(&disk).ok()?;
            let mut life = Life {
                disk: disk.clone(),
                journal,
                live: BTreeMap::new(),
                next: 1,
                covers: Lsn(0),
                round: 0,
            };
            life.work(9);
            life.checkpoint();
            life.work(9);
            life.mark();
            Some(())
        }));
        for seed in 0..3 {
            let crashed = disk.fork();
            crashed.crash_seeded(seed);
            if let Err(error) = start(&crashed) {
                panic!("dead after {steps} steps, seed {seed}: {error}");
            }
            // The start after one that died before it was complete must succeed, too.
            let again = disk.fork();
            again.crash_seeded(seed);
            again.die_after(steps % 23);
            let _ = start(&again);
            again.crash_seeded(seed + 7);
            if let Err(error) = start(&again) {
                panic!("dead after {steps} steps and {} more, seed {seed}: {error}", steps % 23);
            }
        }
        if lived.is_ok_and(|lived| lived.is_some()) {
            return;
        }
    }
    panic!("it never lived to the end");
}

#[test]
fn without_the_check_records_are_lost() {
    let (life, _) = used();
    let first = files(&life.disk).into_iter().find(is_segment).unwrap();
    let disk = life.disk.fork();
    put(&disk, &first, None);
    set_mutant(atoll_storage::mutants::JOURNAL_LOSS_UNSEEN);
    let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life.verdict(&disk)));
    set_mutant(Mutant::NONE);
    assert!(verdict.is_err(), "the mutant makes no difference");
    assert!(life.verdict(&disk).is_err());
}

//! Tests of space: trims free it, a full disk refuses a batch before anything is written, and failures close the journal permanently.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::{Checkpoint, Loc, Lsn, Space};
use atoll_storage::{
    Disk, DiskError, DiskPath, Fault, File, Journal, JournalError, JournalOptions, MemDisk, Open,
    RecoverError,
};

const KIB: u64 = 1024;

fn open(disk: &MemDisk, options: JournalOptions) -> (Journal, Lsn) {
    match Journal::recover(Arc::new(disk.clone()), options, &mut |_| Ok::<_, Infallible>(())) {
        Ok(opened) => opened,
        Err(RecoverError::Journal(e)) => panic!("{e}"),
    }
}

/// Does what a host does between two batches.
fn tend(journal: &mut Journal) {
    if let Some(job) = journal.next_job() {
        journal.prepared(job.run()).unwrap();
    }
    if journal.wants_checkpoint() {
        let checkpoint = Checkpoint { covers: journal.synced(), states: Vec::new() };
        match journal.write_checkpoint(&checkpoint) {
            Ok(()) | Err(JournalError::NoSpace { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_hundred_times_the_disk_goes_through_a_trimmed_journal() {
    let disk = MemDisk::new();
    let capacity = 1024 * KIB;
    disk.set_capacity(Some(capacity));
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let mut kept: VecDeque<Loc> = VecDeque::new();
    let mut next = 1;
    while journal.stats().record_bytes < 100 * capacity {
        let batch = if next % 7 == 0 { facts(next, 2, 300) } else { entries(next, 4, 2000) };
        let places = journal.write(&batch).unwrap();
        journal.sync().unwrap();
        next += places.len() as u64;
        if batch.records[0].1.kind == atoll_core::RecordKind::Entry {
            kept.extend(places.iter().map(|(_, loc)| *loc));
        }
        while kept.len() > 200 {
            let old = kept.pop_front().unwrap();
            journal.free(&[old]).unwrap();
            if kept.len() == 200 {
                assert!(journal.reader().read(&[*kept.front().unwrap()]).is_ok());
            }
        }
        tend(&mut journal);
        assert_eq!(journal.space(), Space::Plenty);
    }
    let stats = journal.stats();
    assert!(stats.recycled > 1000 && stats.checkpoints > 100, "{stats:?}");
    assert!(stats.spare_segments <= 2 && disk.used_bytes() < 800 * KIB, "{stats:?}");
    // Once every entry is freed, the disk space is free, too.
    journal.free(kept.make_contiguous()).unwrap();
    journal.write(&facts(next, 1, 10)).unwrap();
    journal.sync().unwrap();
    (0..30).for_each(|_| tend(&mut journal));
    assert!(disk.used_bytes() <= 6 * 64 * KIB, "{} {:?}", disk.used_bytes(), journal.stats());
}

#[test]
fn a_recycled_place_is_an_error_and_never_another_record() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let reader = journal.reader();
    let old = journal.write(&entries(1, 1, 1000)).unwrap()[0].1;
    journal.sync().unwrap();
    assert_eq!(reader.read(&[old]).unwrap()[0].lsn, Lsn(1));
    journal.free(&[old]).unwrap();
    let mut next = 2;
    while journal.stats().recycled == 0 {
        let places = journal.write(&entries(next, 4, 1000)).unwrap();
        next += 4;
        journal.sync().unwrap();
        journal.free(&places.iter().map(|(_, loc)| *loc).collect::<Vec<_>>()).unwrap();
    }
    assert!(reader.read(&[old]).unwrap_err().reason.contains("recycled"));
    let beyond = Loc { segment: next, offset_bytes: 0, len_bytes: 100 };
    assert!(reader.read(&[beyond]).is_err());
    let live = journal.write(&entries(next, 1, 100)).unwrap()[0].1;
    for wrong in [
        Loc { offset_bytes: live.offset_bytes + 1, ..live },
        Loc { len_bytes: live.len_bytes - 1, ..live },
        Loc { len_bytes: u32::MAX, ..live },
        Loc { offset_bytes: u32::MAX, ..live },
        Loc { len_bytes: 0, ..live },
    ] {
        assert!(reader.read(&[wrong]).is_err(), "{wrong:?}");
    }
    assert!(reader.read(&[live]).is_ok());
}

#[test]
fn neighbours_are_read_together_and_order_is_kept() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let batch = entries(1, 10, 500);
    let mut locs: Vec<Loc> = journal.write(&batch).unwrap().into_iter().map(|(_, loc)| loc).collect();
    let reader = journal.reader();
    let before = disk.calls().0;
    let got = reader.read(&locs).unwrap();
    assert_eq!(got.iter().map(|s| s.lsn.0).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    assert!(disk.calls().0 - before < 5);
    locs.reverse();
    let got = reader.read(&locs).unwrap();
    assert_eq!(got.iter().map(|s| s.lsn.0).collect::<Vec<_>>(), (1..=10).rev().collect::<Vec<_>>());
}

#[test]
fn a_full_disk_leaves_room_for_facts_and_goes_on_when_space_is_back() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(300 * KIB));
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let mut places = Vec::new();
    let mut next = 1;
    while journal.space() == Space::Plenty {
        places.extend(journal.write(&entries(next, 2, 3000)).unwrap());
        next += 2;
        journal.sync().unwrap();
        tend(&mut journal);
    }
    assert_eq!(journal.space(), Space::FactsOnly);
    // The reserve holds facts (seals, trims, registers) and a checkpoint of them.
    for _ in 0..40 {
        journal.write(&facts(next, 1, 200)).unwrap();
        next += 1;
        journal.sync().unwrap();
        tend(&mut journal);
    }
    let covers = journal.synced();
    journal.write_checkpoint(&Checkpoint { covers, states: Vec::new() }).unwrap();
    assert_eq!(journal.space(), Space::FactsOnly);
    // A trim frees space without a restart.
    let trimmed: Vec<Loc> = places.drain(..places.len() / 2).map(|(_, loc)| loc).collect();
    journal.free(&trimmed).unwrap();
    tend(&mut journal);
    assert_eq!(journal.space(), Space::Plenty);
    journal.write(&entries(next, 2, 3000)).unwrap();
    journal.sync().unwrap();
    next += 2;
    // The journal also resumes after another program has freed space.
    while journal.space() == Space::Plenty {
        journal.write(&entries(next, 2, 3000)).unwrap();
        next += 2;
        journal.sync().unwrap();
        tend(&mut journal);
    }
    disk.set_capacity(Some(600 * KIB));
    tend(&mut journal);
    assert_eq!(journal.space(), Space::Plenty);
}

/// No job prepares segments. The writer itself finds the disk full, while there is still room for facts.
#[test]
fn a_writer_that_is_faster_than_the_preparation_leaves_room_for_facts() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(300 * KIB));
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let mut next = 1;
    while journal.space() == Space::Plenty {
        journal.write(&entries(next, 2, 3000)).unwrap();
        next += 2;
        journal.sync().unwrap();
    }
    for _ in 0..40 {
        journal.write(&facts(next, 1, 200)).unwrap();
        next += 1;
        journal.sync().unwrap();
    }
}

#[test]
fn a_batch_that_finds_no_space_can_be_offered_again() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    disk.set_capacity(Some(disk.used_bytes()));
    let mut next = 1;
    let refused = loop {
        let batch = entries(next, 2, 3000);
        match journal.write(&batch) {
            Ok(_) => next += 2,
            Err(JournalError::NoSpace { .. }) => break batch,
            Err(e) => panic!("{e}"),
        }
        journal.sync().unwrap();
    };
    assert_eq!(journal.last(), Lsn(next - 1));
    assert_eq!(journal.space(), Space::FactsOnly);
    assert_eq!(journal.sync(), Ok(Lsn(next - 1)), "it is open");
    disk.set_capacity(None);
    journal.write(&refused).unwrap();
    assert_eq!(journal.sync(), Ok(Lsn(next + 1)));
    drop(journal);
    assert_eq!(open(&disk, JournalOptions::small(STORAGE)).1, Lsn(next + 1));
}

#[test]
fn a_failed_write_or_sync_closes_for_good() {
    for fault in [Fault::Write, Fault::Sync] {
        let disk = MemDisk::new();
        let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
        let places = journal.write(&entries(1, 1, 10)).unwrap();
        journal.sync().unwrap();
        disk.fail_next(fault, 1);
        let failed = journal.write(&entries(2, 1, 10)).and_then(|_| journal.sync());
        let Err(JournalError::Closed { reason }) = failed else { panic!("{fault:?}") };
        assert!(reason.contains("injected") && reason.contains(".seg"), "{reason}");
        let closed = Err(JournalError::Closed { reason });
        assert_eq!(journal.write(&entries(2, 1, 10)).map(|_| ()), closed);
        assert_eq!(journal.sync().map(|_| ()), closed);
        assert_eq!(journal.free(&[places[0].1]), closed);
        assert_eq!(journal.mark(), closed);
        let covers = journal.synced();
        assert_eq!(journal.write_checkpoint(&Checkpoint { covers, states: Vec::new() }), closed);
        assert!(journal.next_job().is_none() && !journal.wants_checkpoint());
        assert_eq!(journal.space(), Space::Closed);
        assert_eq!(journal.reader().read(&[places[0].1]).unwrap().len(), 1, "reads continue");
    }
}

#[test]
fn records_too_large_are_refused_and_the_largest_is_taken() {
    let disk = MemDisk::new();
    let options = JournalOptions { first_segment_bytes: 4 * 512, ..JournalOptions::small(STORAGE) };
    let (mut journal, _) = open(&disk, options.clone());
    let mut batch = entries(1, 1, 10);
    batch.records[0].1.head = bytes::Bytes::new();
    batch.records[0].1.payload = vec![7; options.max_record_bytes() - 23].into();
    assert!(matches!(journal.write(&batch), Err(JournalError::TooLarge { lsn: Lsn(1), .. })));
    batch.records[0].1.payload = vec![7; options.max_record_bytes() - 24].into();
    let places = journal.write(&batch).unwrap();
    journal.sync().unwrap();
    assert_eq!(journal.reader().read(&[places[0].1]).unwrap()[0].record, batch.records[0].1);
    drop(journal);
    disk.crash(&mut || false);
    assert_eq!(open(&disk, options).1, Lsn(1));
}

/// Every write of the node waits for that segment.
#[test]
fn a_segment_that_the_writer_makes_itself_is_a_short_one() {
    let disk = MemDisk::new();
    let (short, whole) = (16 * 512, 128 * 512);
    let options = JournalOptions {
        first_segment_bytes: short,
        segment_bytes: whole,
        fact_reserve_bytes: 0,
        ..JournalOptions::small(STORAGE)
    };
    let (mut journal, _) = open(&disk, options);
    // No job runs, so the writer has to make one segment after the other.
    let job = journal.needs_segment().unwrap();
    let mut lsn = 0;
    let mut grown = |journal: &mut Journal, record_bytes: usize| {
        let before = (journal.stats().disk_bytes, journal.stats().inline_prepares);
        while journal.stats().inline_prepares == before.1 {
            lsn += 1;
            journal.write(&entries(lsn, 1, record_bytes)).unwrap();
            journal.sync().unwrap();
        }
        journal.stats().disk_bytes - before.0
    };
    assert_eq!(grown(&mut journal, 6000), short.into());
    assert_eq!(grown(&mut journal, 20_000), whole.into(), "a short one would not take the record");
    // The preparation continues meanwhile, and its segment is used later.
    journal.prepared(job.run()).unwrap();
    let job = journal.needs_segment().unwrap();
    journal.prepared(job.run()).unwrap();
    assert_eq!(journal.stats().ready_segments, 1);
}

/// A writer that is faster than the preparation, on a log that is trimmed: freed files are reused, including short ones, although they are
/// given back slowly.
#[test]
fn short_files_are_used_again() {
    let disk = MemDisk::new();
    let (short, whole) = (16 * 512_u32, 128 * 512);
    let options = JournalOptions {
        first_segment_bytes: short,
        segment_bytes: whole,
        fact_reserve_bytes: 0,
        ..JournalOptions::small(STORAGE)
    };
    let (mut journal, _) = open(&disk, options.clone());
    let (mut kept, mut lsn, mut most) = (VecDeque::new(), 0, 0);
    while journal.stats().recycled < 200 {
        lsn += 1;
        let record_bytes = if lsn % 50 == 0 { 20_000 } else { 2000 };
        kept.extend(journal.write(&entries(lsn, 1, record_bytes)).unwrap().iter().map(|(_, loc)| *loc));
        journal.sync().unwrap();
        if kept.len() > 30 {
            journal.free(&[kept.pop_front().unwrap()]).unwrap();
        }
        most = most.max(disk.used_bytes());
    }
    let few = 100 * 2048 + 3 * u64::from(whole);
    assert!(journal.stats().inline_prepares > 100 && most < few, "{most} {:?}", journal.stats());
    // Short spares survive a restart, which does not need them, and are given back in pieces. Spares of full length stay.
    drop(journal);
    let (mut journal, _) = open(&disk, options);
    (0..200).for_each(|_| tend(&mut journal));
    let stats = journal.stats();
    // The sum allows for the reserve and the manifest.
    assert!(!journal.has_excess() && disk.used_bytes() <= stats.disk_bytes + (16 + 8) * KIB, "{stats:?}");
}

/// A due checkpoint may be delayed, but not while new files are filled because no spare is free.
#[test]
fn a_checkpoint_that_would_free_the_next_file_is_told() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let mut next = 1;
    let mut fill = |journal: &mut Journal| {
        let segments = journal.stats().used_segments;
        let mut places = Vec::new();
        while journal.stats().used_segments == segments {
            journal.write(&facts(next, 1, 10)).unwrap();
            places.extend(journal.write(&entries(next + 1, 1, 2000)).unwrap().iter().map(|(_, loc)| *loc));
            next += 2;
            journal.sync().unwrap();
        }
        places
    };
    let places = fill(&mut journal);
    assert!(!journal.lacks_files(), "it is needed");
    journal.free(&places).unwrap();
    fill(&mut journal);
    assert!(journal.lacks_files() && journal.wants_checkpoint());
    let checkpoint = Checkpoint { covers: journal.synced(), states: Vec::new() };
    journal.write_checkpoint(&checkpoint).unwrap();
    assert!(!journal.lacks_files());
    assert!(journal.stats().spare_segments > 0);
}

#[test]
fn sparse_segments_are_emptied_by_their_owner() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let mut live: Vec<Loc> = Vec::new();
    let mut next = 1;
    // One entry in ten stays forever.
    for _ in 0..400 {
        let places = journal.write(&entries(next, 10, 800)).unwrap();
        next += 10;
        journal.sync().unwrap();
        live.push(places[3].1);
        let dead: Vec<Loc> = places.iter().map(|(_, l)| *l).filter(|l| *l != places[3].1).collect();
        journal.free(&dead).unwrap();
        tend(&mut journal);
        if let Some(segment) = journal.sparse_segment() {
            let (moved, rest): (Vec<Loc>, Vec<Loc>) = live.iter().partition(|l| l.segment == segment);
            let mut records = journal.reader().read(&moved).unwrap();
            let batch = records.drain(..).enumerate().map(|(i, s)| (Lsn(next + i as u64), s.record));
            let batch = atoll_core::JournalBatch::of(batch.collect());
            let places = journal.write(&batch).unwrap();
            next += places.len() as u64;
            journal.sync().unwrap();
            journal.free(&moved).unwrap();
            live = rest;
            live.extend(places.iter().map(|(_, l)| *l));
        }
    }
    let stats = journal.stats();
    assert!(live.len() == 400 && stats.live_bytes > 300 * KIB, "{stats:?}");
    assert!(stats.disk_bytes < 2 * stats.live_bytes + 5 * 64 * KIB, "{stats:?}");
    assert_eq!(journal.reader().read(&live).unwrap().len(), 400);
}

#[test]
fn bad_options_are_named() {
    let small = JournalOptions::small(STORAGE);
    for (options, name) in [
        (JournalOptions { block_bytes: 1000, ..small.clone() }, "block_bytes"),
        (JournalOptions { block_bytes: 256, ..small.clone() }, "block_bytes"),
        (JournalOptions { segment_bytes: 1024, ..small.clone() }, "segment_bytes"),
        (JournalOptions { first_segment_bytes: 1 << 20, ..small.clone() }, "first_segment_bytes"),
    ] {
        let opened =
            Journal::recover(Arc::new(MemDisk::new()), options, &mut |_| Ok::<_, Infallible>(())).map(|_| ());
        let Err(RecoverError::Journal(JournalError::BadOption { option, .. })) = opened else { panic!() };
        assert_eq!(option, name);
    }
}

#[test]
fn a_file_is_given_back_in_pieces_while_segments_are_made() {
    let disk = MemDisk::new();
    let segment_bytes = 8 << 20;
    let options = JournalOptions {
        segment_bytes,
        first_segment_bytes: 8 << 20,
        spare_segments: 0,
        ..JournalOptions::small(STORAGE)
    };
    let (mut journal, _) = open(&disk, options.clone());
    let mut places = Vec::new();
    for batch in 0..40 {
        places.extend(journal.write(&entries(1 + 16 * batch, 16, 60_000)).unwrap());
        journal.sync().unwrap();
    }
    journal.free(&places.iter().map(|(_, loc)| *loc).collect::<Vec<_>>()).unwrap();
    journal.mark().unwrap();
    journal.sync().unwrap();
    journal.free(&[]).unwrap();
    // Preparing a segment takes precedence over giving back a file.
    let job = journal.needs_segment().unwrap();
    assert!(journal.has_excess() && journal.gives_back().is_none(), "one job at a time");
    journal.prepared(job.run()).unwrap();
    let step = |journal: &mut Journal| {
        let before = disk.used_bytes();
        assert!(journal.needs_segment().is_none(), "a piece is not for those who wait for a segment");
        let Some(job) = journal.gives_back() else { return false };
        journal.prepared(job.run()).unwrap();
        let after = disk.used_bytes();
        assert!(after < before && after + (1 << 20) >= before, "{after} after {before}");
        true
    };
    assert!(step(&mut journal) && step(&mut journal));
    // A restart finds a file that is partly given back, and completes the work.
    drop(journal);
    let (mut journal, _) = open(&disk, options);
    tend(&mut journal);
    let steps = (0..100).take_while(|_| step(&mut journal)).count();
    assert!((8..40).contains(&steps), "{steps}");
    assert_eq!(journal.stats().spare_segments, 0);
}

#[test]
fn a_restart_gives_the_unused_end_of_a_segment_back_in_pieces() {
    let disk = MemDisk::new();
    let options = JournalOptions {
        segment_bytes: 8 << 20,
        first_segment_bytes: 8 << 20,
        ..JournalOptions::small(STORAGE)
    };
    let (mut journal, _) = open(&disk, options.clone());
    let first = journal.write(&entries(1, 10, 5000)).unwrap();
    journal.sync().unwrap();
    drop(journal);
    let whole = disk.used_bytes();
    let (mut journal, last) = open(&disk, options.clone());
    assert!(last == Lsn(10) && disk.used_bytes() >= whole, "the start waits for nothing to be given back");
    assert!(journal.sparse_segment().is_none(), "what is given back anyway is not copied");
    let before = disk.used_bytes();
    let step = |journal: &mut Journal| {
        let job = journal.gives_back();
        job.map(|job| journal.prepared(job.run()).unwrap()).is_some()
    };
    assert!(step(&mut journal) && step(&mut journal));
    assert_eq!(disk.used_bytes(), before - (2 << 20));
    // The segment is freed while it is shortened: the file keeps its name until the job is done.
    let job = journal.gives_back().unwrap();
    journal.write(&entries(11, 1, 100)).unwrap();
    journal.sync().unwrap();
    journal.mark().unwrap();
    journal.sync().unwrap();
    journal.free(&first.iter().map(|(_, loc)| *loc).collect::<Vec<_>>()).unwrap();
    assert_eq!(journal.stats().used_segments, 2);
    journal.prepared(job.run()).unwrap();
    assert_eq!(journal.stats().used_segments, 1);
    // A power cut while an end is given back loses nothing.
    let kept = journal.write(&entries(12, 10, 5000)).unwrap();
    journal.sync().unwrap();
    drop(journal);
    let (mut journal, _) = open(&disk, options.clone());
    assert!(step(&mut journal));
    drop(journal);
    disk.crash(&mut || false);
    let (mut journal, last) = open(&disk, options);
    assert_eq!(last, Lsn(21));
    while step(&mut journal) {}
    let locs: Vec<Loc> = kept.iter().map(|(_, loc)| *loc).collect();
    assert_eq!(journal.reader().read(&locs).unwrap().len(), 10);
    assert!(journal.stats().disk_bytes < (8 << 20) + (1 << 20), "{:?}", journal.stats());
}

/// Space is free again before the journal looks how much there is, so the figure may never grow any more.
#[test]
fn a_disk_that_was_full_for_a_moment_is_tried_again() {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, JournalOptions::small(STORAGE));
    let job = journal.needs_segment().unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    let full = job.run();
    disk.set_capacity(Some(disk.used_bytes() + 1024 * KIB));
    journal.prepared(full).unwrap();
    let job = (0..1000).find_map(|_| journal.needs_segment()).unwrap();
    journal.prepared(job.run()).unwrap();
    assert_eq!((journal.space(), journal.stats().ready_segments), (Space::Plenty, 1));
}

/// A disk with a quota, which the figure of free bytes does not show.
struct Quota(MemDisk);

impl Disk for Quota {
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError> {
        self.0.open(path, how)
    }
    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError> {
        self.0.list(dir)
    }
    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        self.0.create_dir(dir)
    }
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        self.0.rename(from, to)
    }
    fn remove(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.0.remove(path)
    }
    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        self.0.sync_dir(dir)
    }
    fn free_bytes(&self) -> Result<u64, DiskError> {
        Ok(1 << 40)
    }
}

/// However long a quota was used up, the journal soon finds out that there is room again. A host looks every 250 ms.
#[test]
fn a_quota_that_was_used_up_for_long_is_tried_again_soon() {
    let disk = MemDisk::new();
    let quota: Arc<dyn Disk> = Arc::new(Quota(disk.clone()));
    let opened = Journal::recover(quota, JournalOptions::small(STORAGE), &mut |_| Ok::<_, Infallible>(()));
    let (mut journal, _) = opened.unwrap();
    disk.set_capacity(Some(disk.used_bytes()));
    let five_minutes = 5 * 60 * 4;
    let attempt = |journal: &mut Journal| {
        let job = (0..five_minutes).find_map(|_| journal.needs_segment());
        journal.prepared(job.expect("an attempt within five minutes").run()).unwrap();
    };
    for _ in 0..70 {
        attempt(&mut journal);
        assert_eq!(journal.stats().ready_segments, 0);
    }
    disk.set_capacity(None);
    attempt(&mut journal);
    assert_eq!((journal.space(), journal.stats().ready_segments), (Space::Plenty, 1));
}

//! Tests of a full disk: accepted batches are written, facts are still accepted, a checkpoint can always be written, and no file is filled
//! in vain.

use std::convert::Infallible;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::testing::take_marks;
use atoll_core::{Checkpoint, Loc, Lsn, RoleKind, Space};
use atoll_storage::{Disk, DiskPath, Journal, JournalOptions, MemDisk, Open, RecoverError};
use bytes::Bytes;

const KIB: u64 = 1024;

fn open(disk: &MemDisk, options: &JournalOptions) -> Journal {
    match Journal::recover(Arc::new(disk.clone()), options.clone(), &mut |_| Ok::<_, Infallible>(())) {
        Ok((journal, _)) => journal,
        Err(RecoverError::Journal(e)) => panic!("{e}"),
    }
}

/// Options with segments of 64 KiB, and of 8 KiB where the writer makes them.
fn short() -> JournalOptions {
    JournalOptions { first_segment_bytes: 8 * 1024, ..JournalOptions::small(STORAGE) }
}

/// Writes and syncs a batch, and returns the locations of its records.
fn write(journal: &mut Journal, batch: &atoll_core::JournalBatch) -> Vec<Loc> {
    let places = journal.write(batch).unwrap().iter().map(|(_, loc)| *loc).collect();
    journal.sync().unwrap();
    places
}

fn checkpoint(journal: &Journal, bytes: usize) -> Checkpoint {
    let states = vec![(RoleKind(1), Bytes::from(vec![7; bytes]))];
    Checkpoint { covers: journal.synced(), states }
}

/// A trim is a fact. Queued after a batch that finds no room, it would wait forever, because only a trim frees room.
#[test]
fn batches_that_were_taken_before_the_disk_was_known_to_be_full_are_written_and_facts_after_them() {
    for batch_entries in 1..12 {
        let disk = MemDisk::new();
        disk.set_capacity(Some(500 * KIB));
        // Twice the bytes that may wait, plus as much for facts as is written below.
        let entry_bytes = batch_entries * 2100;
        let options = JournalOptions { fact_reserve_bytes: 2 * entry_bytes + 16 * KIB, ..short() };
        let mut journal = open(&disk, &options);
        let mut next = 1;
        while journal.space() == Space::Plenty {
            write(&mut journal, &entries(next, batch_entries, 2000));
            next += batch_entries;
        }
        write(&mut journal, &entries(next, batch_entries, 2000));
        next += batch_entries;
        for _ in 0..16 {
            write(&mut journal, &facts(next, 1, 200));
            next += 1;
        }
    }
}

/// There is no reserve, and another program has taken the free space.
#[test]
fn a_checkpoint_takes_the_room_of_a_spare_file() {
    let disk = MemDisk::new();
    let options = JournalOptions { checkpoint_reserve_bytes: 0, ..short() };
    let mut journal = open(&disk, &options);
    let mut next = 1;
    while journal.stats().spare_segments < 3 {
        let places = write(&mut journal, &entries(next, 1, 3000));
        next += 1;
        journal.free(&places).unwrap();
        if journal.stats().recycled == 0 {
            // The fact keeps the segment until the checkpoint.
            write(&mut journal, &facts(next, 1, 10));
            next += 1;
        }
        if journal.stats().used_segments > 6 {
            let covers = checkpoint(&journal, 10);
            journal.write_checkpoint(&covers).unwrap();
        }
    }
    disk.set_capacity(Some(disk.used_bytes()));
    let spares = journal.stats().spare_segments;
    take_marks();
    // A checkpoint that is longer than the space left by the last one.
    let larger = checkpoint(&journal, 6000);
    journal.write_checkpoint(&larger).unwrap();
    assert!(take_marks().contains_key("journal.checkpoint.from_spare"));
    assert!(journal.stats().spare_segments < spares);
}

/// Zeros that never become a segment would take space that other programs on the same disk need.
#[test]
fn no_segment_is_begun_that_does_not_fit() {
    let disk = MemDisk::new();
    let mut journal = open(&disk, &JournalOptions::small(STORAGE));
    disk.set_capacity(Some(disk.used_bytes() + 60 * KIB));
    take_marks();
    assert!((0..200).all(|_| journal.needs_segment().is_none()));
    assert!(!take_marks().contains_key("journal.segment.fill_failed"));
    assert_eq!(journal.space(), Space::Plenty, "the first segment has room yet");
    disk.set_capacity(Some(disk.used_bytes() + 70 * KIB));
    let job = journal.needs_segment().unwrap();
    journal.prepared(job.run()).unwrap();
    assert_eq!(journal.stats().ready_segments, 1);
    // If the free space is 0 or unknown, the journal tries.
    let disk = MemDisk::new();
    let mut journal = open(&disk, &JournalOptions::small(STORAGE));
    disk.set_capacity(Some(disk.used_bytes()));
    let job = journal.needs_segment().unwrap();
    journal.prepared(job.run()).unwrap();
    assert_eq!(journal.stats().ready_segments, 0);
}

/// A short file that is reused does not show that there is room. If it did, entries would be accepted and refused in turn.
#[test]
fn a_disk_stays_full_until_the_reserve_is_whole() {
    let disk = MemDisk::new();
    let mut journal = open(&disk, &short());
    disk.set_capacity(Some(disk.used_bytes() + 60 * KIB));
    let (mut next, mut places) = (1, Vec::new());
    while journal.space() == Space::Plenty {
        places.push(write(&mut journal, &entries(next, 1, 3000)));
        next += 1;
        assert!(journal.needs_segment().is_none());
    }
    // Facts use their reserve.
    for _ in 0..16 {
        write(&mut journal, &facts(next, 1, 1000));
        next += 1;
    }
    for freed in places {
        journal.free(&freed).unwrap();
        while let Some(job) = journal.needs_segment() {
            journal.prepared(job.run()).unwrap();
        }
        assert_eq!(journal.space(), Space::FactsOnly, "{:?}", journal.stats());
    }
    assert!(journal.stats().ready_segments > 1, "they are collected meanwhile");
    let covers = checkpoint(&journal, 10);
    journal.write_checkpoint(&covers).unwrap();
    while let Some(job) = journal.needs_segment() {
        journal.prepared(job.run()).unwrap();
    }
    assert_eq!(journal.space(), Space::Plenty);
}

/// Copies would use the space in which trims must be journaled.
#[test]
fn a_full_disk_asks_for_no_compaction() {
    let disk = MemDisk::new();
    let mut journal = open(&disk, &JournalOptions::small(STORAGE));
    disk.set_capacity(Some(disk.used_bytes() + 1024 * KIB));
    let mut next = 1;
    // One entry in ten stays.
    while journal.space() == Space::Plenty {
        let places = write(&mut journal, &entries(next, 10, 1500));
        next += 10;
        journal.free(&places[1..]).unwrap();
        if let Some(job) = journal.next_job() {
            journal.prepared(job.run()).unwrap();
        }
    }
    assert_eq!(journal.sparse_segment(), None);
    disk.set_capacity(None);
    while let Some(job) = journal.needs_segment() {
        journal.prepared(job.run()).unwrap();
    }
    assert!(journal.sparse_segment().is_some());
}

/// The next checkpoint is longer than the last. A reserve of the old length is better than none.
#[test]
fn a_reserve_that_cannot_grow_is_kept() {
    let disk = MemDisk::new();
    let mut journal = open(&disk, &JournalOptions::small(STORAGE));
    let path = DiskPath::new("journal/reserve").unwrap();
    let reserve = || disk.open(&path, Open::Read).unwrap().len().unwrap();
    assert_eq!(reserve(), 16 * KIB);
    write(&mut journal, &facts(1, 1, 10));
    disk.set_capacity(Some(disk.used_bytes() + 14 * KIB));
    let larger = checkpoint(&journal, 12 * 1024);
    journal.write_checkpoint(&larger).unwrap();
    assert_eq!(reserve(), 16 * KIB);
    disk.set_capacity(None);
    journal.write_checkpoint(&larger).unwrap();
    assert!(reserve() > 24 * KIB);
    // A restart finds the reserve at the same length.
    drop(journal);
    drop(open(&disk, &JournalOptions::small(STORAGE)));
    assert!(reserve() > 24 * KIB);
}

/// Nothing could be recycled during the preparation. Recycling must resume when the preparation fails.
#[test]
fn a_preparation_that_finds_the_disk_full_lets_go_of_what_it_held() {
    let disk = MemDisk::new();
    let mut journal = open(&disk, &short());
    let job = journal.needs_segment().unwrap();
    let (mut next, mut places) = (1, Vec::new());
    while journal.stats().inline_prepares < 3 {
        places.extend(write(&mut journal, &entries(next, 1, 3000)));
        next += 1;
    }
    journal.free(&places).unwrap();
    journal.mark().unwrap();
    journal.sync().unwrap();
    assert_eq!(journal.stats().recycled, 0, "the job's segment may yet come between");
    disk.set_capacity(Some(disk.used_bytes() + 20 * KIB));
    journal.prepared(job.run()).unwrap();
    assert!(journal.stats().recycled > 0 && journal.stats().spare_segments > 0);
    assert!(journal.needs_segment().is_some());
    assert_eq!(journal.sync(), Ok(Lsn(next - 1)));
}

/// The disk has no room for the name of a new file either. The journal must handle the first error, not the one from the clean-up.
#[test]
fn a_disk_without_room_for_a_name_closes_nothing() {
    let disk = MemDisk::new();
    let options = JournalOptions { checkpoint_reserve_bytes: 0, ..JournalOptions::small(STORAGE) };
    let mut journal = open(&disk, &options);
    write(&mut journal, &facts(1, 1, 10));
    disk.set_capacity(Some(disk.used_bytes()));
    let covers = checkpoint(&journal, 10);
    assert!(journal.write_checkpoint(&covers).is_err());
    assert_eq!(journal.space(), Space::Plenty, "it is open");
    drop(journal);
    disk.set_capacity(Some(disk.used_bytes() + 64 * KIB));
    let options = JournalOptions::small(STORAGE);
    let mut journal = open(&disk, &options);
    write(&mut journal, &facts(2, 1, 10));
}

//! Tests of batches that are written while no thread waits for them.

use std::convert::Infallible;
use std::io::IoSlice;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::{Lsn, Record};
use atoll_storage::{
    DIRECT_BLOCK_BYTES, DIRECT_BYTES, Disk, DiskPath, Journal, JournalOptions, MemDisk, Open, RealDisk,
    Recovered, Syncs,
};

fn options() -> JournalOptions {
    JournalOptions {
        block_bytes: 4096,
        segment_bytes: 256 * 1024,
        first_segment_bytes: 64 * 1024,
        ..JournalOptions::small(STORAGE)
    }
}

fn recover(disk: Arc<dyn Disk>) -> (Journal, Vec<(Lsn, Record)>) {
    let mut found = Vec::new();
    let mut visit = |item| {
        if let Recovered::Record(stored) = item {
            found.push((stored.lsn, stored.record));
        }
        Ok::<_, Infallible>(())
    };
    let (journal, _) = Journal::recover(disk, options(), &mut visit).unwrap();
    (journal, found)
}

/// Opens a directory whose small writes nobody waits for. None where this machine has no such writes.
fn open(folder: &std::path::Path) -> Option<Arc<RealDisk>> {
    let disk = RealDisk::open(folder, Syncs::Real).unwrap();
    match disk.use_direct_writes() {
        Ok(()) => Some(Arc::new(disk)),
        Err(why) => {
            eprintln!("not run: {why}");
            None
        }
    }
}

/// Batches of all sizes, written both ways in turn, with marks in between and readers at work, over several segments and starts.
#[test]
fn direct_and_cached_batches_come_back_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for life in 0..3 {
        let Some(disk) = open(folder.path()) else { return };
        let (mut journal, found) = recover(disk);
        assert_eq!(found, written, "life {life}");
        let mut next = journal.last().0 + 1;
        let mut begun = 0;
        for round in 0..120 {
            let batch = match round % 4 {
                0 => facts(next, 1, 50),
                1 => entries(next, 3, 900),
                2 => entries(next, 1, 9_000),
                _ => entries(next, 5, 3_000),
            };
            let places = match journal.begin_batch(&batch).unwrap() {
                Some(places) => {
                    assert!(journal.is_under_way());
                    journal.wait_batch().unwrap();
                    begun += 1;
                    places
                }
                None => {
                    let places = journal.write(&batch).unwrap();
                    journal.sync().unwrap();
                    places
                }
            };
            assert_eq!(journal.synced(), Lsn(next + batch.records.len() as u64 - 1));
            next = journal.synced().0 + 1;
            let locs: Vec<_> = places.iter().map(|(_, loc)| *loc).collect();
            let read = journal.reader().read(&locs).unwrap();
            assert!(read.iter().zip(&batch.records).all(|(s, r)| (s.lsn, &s.record) == (r.0, &r.1)));
            written.extend(batch.records);
            if round % 7 == 0 {
                journal.mark().unwrap();
                journal.sync().unwrap();
            }
            if let Some(job) = journal.next_job() {
                journal.prepared(job.run()).unwrap();
            }
        }
        assert!(begun > 60, "{begun} batches were written directly");
        assert!(journal.stats().used_segments > 1);
    }
}

/// A reader has the blocks of the next batches in the page cache, as zeros.
#[test]
fn a_reader_that_was_there_before_sees_what_was_written_directly() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = open(folder.path()) else { return };
    let path = DiskPath::new("file").unwrap();
    let mut file = disk.open(&path, Open::Create).unwrap();
    let len = 64 * DIRECT_BLOCK_BYTES;
    file.write_at(0, &[IoSlice::new(&vec![0; len])]).unwrap();
    file.sync_data().unwrap();
    let reader = disk.open(&path, Open::Read).unwrap();
    let mut direct = disk.open_direct(&path).unwrap();
    let mut seen = vec![1; len];
    assert_eq!(reader.read_at(0, &mut seen), Ok(len));
    for n in 0..16_u8 {
        let at = usize::from(n) * DIRECT_BYTES;
        let bytes = vec![n + 1; DIRECT_BYTES];
        let (first, second) = bytes.split_at(usize::from(n) * 100);
        direct.begin(at as u64, &[IoSlice::new(first), IoSlice::new(second)]).unwrap();
        let ended = loop {
            // A read at the same time may bring the old bytes back into the cache.
            reader.read_at(0, &mut seen).unwrap();
            if let Some(ended) = direct.poll() {
                break ended;
            }
        };
        ended.unwrap();
        assert_eq!(reader.read_at(0, &mut seen), Ok(len));
        assert!(seen[at..at + DIRECT_BYTES] == bytes, "block {n}");
        assert!(seen[at + DIRECT_BYTES..].iter().all(|byte| *byte == 0));
        // A cached write of a part of a block keeps the rest of it.
        file.write_at(at as u64 + 10, &[IoSlice::new(&[n + 1; 7])]).unwrap();
        file.sync_data().unwrap();
        assert_eq!(reader.read_at(0, &mut seen), Ok(len));
        assert!(seen[at..at + DIRECT_BYTES] == bytes, "block {n}");
    }
}

#[test]
fn a_disk_with_a_write_under_way_can_be_dropped() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let Some(disk) = open(folder.path()) else { return };
        let (mut journal, _) = recover(disk);
        let batch = entries(journal.last().0 + 1, 1, 2_000);
        let begun = journal.begin_batch(&batch).unwrap();
        assert!(begun.is_some());
        drop(journal);
    }
    // The write ended before the lock of the directory was released, so the next start has found it.
    let (_, found) = recover(open(folder.path()).unwrap());
    assert_eq!(found.len(), 20);
}

#[test]
fn what_is_not_aligned_or_a_second_write_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut disks: Vec<Arc<dyn Disk>> = vec![Arc::new(MemDisk::new())];
    if let Some(disk) = open(folder.path()) {
        disks.push(disk);
    }
    for disk in disks {
        let path = DiskPath::new("file").unwrap();
        disk.open(&path, Open::Create).unwrap().set_len(1 << 20).unwrap();
        let mut direct = disk.open_direct(&path).unwrap();
        let bytes = vec![7; 2 * DIRECT_BYTES];
        for (offset, len) in [(512, DIRECT_BLOCK_BYTES), (0, 512), (0, 2 * DIRECT_BYTES), (0, 0)] {
            assert!(direct.begin(offset, &[IoSlice::new(&bytes[..len])]).is_err(), "{len} at {offset}");
        }
        direct.begin(0, &[IoSlice::new(&bytes[..DIRECT_BYTES])]).unwrap();
        assert!(direct.begin(0, &[IoSlice::new(&bytes[..DIRECT_BYTES])]).is_err());
        direct.wait().unwrap();
        assert!(direct.poll().is_none() && direct.wait().is_err(), "its end is reported once");
    }
}

#[test]
fn syncs_that_are_off_and_a_disk_that_was_not_asked_have_no_direct_writes() {
    let folder = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(folder.path(), Syncs::OffForTests).unwrap();
    assert_eq!(disk.use_direct_writes().unwrap_err().to_string(), "syncs: switched off");
    drop(disk);
    let disk = Arc::new(RealDisk::open(folder.path(), Syncs::Real).unwrap());
    let (mut journal, _) = recover(disk.clone());
    assert!(journal.signal().is_none());
    assert_eq!(journal.begin_batch(&facts(1, 1, 50)), Ok(None));
    if disk.use_direct_writes().is_ok() {
        assert!(journal.signal().is_some());
        assert!(disk.list(&DiskPath::root()).unwrap().iter().all(|name| name != "direct-trial"));
    }
}

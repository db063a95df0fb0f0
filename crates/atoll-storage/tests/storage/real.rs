//! Tests of the journal in a directory of the file system.

use std::convert::Infallible;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::{Checkpoint, Lsn, NodeId, StorageId};
use atoll_storage::{
    Disk, DiskError, DiskPath, Identity, Journal, JournalOptions, RealDisk, Recovered, Syncs,
};

fn options() -> JournalOptions {
    JournalOptions {
        block_bytes: 4096,
        segment_bytes: 256 * 1024,
        first_segment_bytes: 64 * 1024,
        ..JournalOptions::small(STORAGE)
    }
}

#[test]
fn it_comes_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for life in 0..4 {
        let disk = Arc::new(RealDisk::open(dir.path(), Syncs::Real).unwrap());
        let mut found = Vec::new();
        let mut visit = |r| {
            if let Recovered::Record(r) = r {
                found.push((r.lsn, r.record));
            }
            Ok::<_, Infallible>(())
        };
        let (mut journal, last) = Journal::recover(disk, options(), &mut visit).unwrap();
        assert_eq!(found, written, "life {life}");
        let mut next = last.0 + 1;
        for round in 0..30 {
            let batch = if round % 5 == 4 { facts(next, 1, 50) } else { entries(next, 5, 3000) };
            let places = journal.write(&batch).unwrap();
            next = journal.sync().unwrap().0 + 1;
            let locs: Vec<_> = places.iter().map(|(_, loc)| *loc).collect();
            let read = journal.reader().read(&locs).unwrap();
            assert!(read.iter().zip(&batch.records).all(|(s, r)| (s.lsn, &s.record) == (r.0, &r.1)));
            written.extend(batch.records);
            if let Some(job) = journal.next_job() {
                journal.prepared(std::thread::spawn(|| job.run()).join().unwrap()).unwrap();
            }
        }
        let covers = journal.synced();
        journal.write_checkpoint(&Checkpoint { covers, states: Vec::new() }).unwrap();
        written.retain(|(_, r)| r.kind == atoll_core::RecordKind::Entry);
        assert!(journal.stats().used_segments > 1);
    }
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path(), Syncs::Real).unwrap();
    assert!(matches!(RealDisk::open(dir.path(), Syncs::Real), Err(DiskError::Locked { .. })));
    drop(disk);
    let disk = RealDisk::open(dir.path(), Syncs::OffForTests).unwrap();
    assert!(disk.free_bytes().unwrap() > 0);
    let (_, new) = Identity::open(&disk, "reef", NodeId(1), || StorageId(5)).unwrap();
    assert!(new && !Identity::open(&disk, "reef", NodeId(1), || StorageId(6)).unwrap().1);
    assert_eq!(disk.list(&DiskPath::root()).unwrap(), ["journal.manifest", "lock", "node"]);
}

#[test]
fn starting_makes_little() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(RealDisk::open(dir.path(), Syncs::Real).unwrap());
    let (journal, last) =
        Journal::recover(disk, JournalOptions::new(STORAGE), &mut |_| Ok::<_, Infallible>(())).unwrap();
    assert_eq!(last, Lsn(0));
    assert!(journal.stats().disk_bytes <= 8 << 20);
}

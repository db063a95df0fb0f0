//! Data directories of format 1, written by an earlier build, must stay readable, or be refused with a reason.
//!
//! `tests/fixtures/format-1` was written by `write_the_fixture`; it is never written again for this format.

use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::{Checkpoint, JournalBatch, Lsn, NodeId, Record, RoleKind};
use atoll_storage::{Identity, Journal, JournalOptions, RealDisk, Recovered, Syncs};
use bytes::Bytes;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/format-1")
}

fn options() -> JournalOptions {
    JournalOptions {
        segment_bytes: 8 * 512,
        first_segment_bytes: 8 * 512,
        checkpoint_reserve_bytes: 512,
        ..JournalOptions::small(STORAGE)
    }
}

fn batches() -> [JournalBatch; 4] {
    [facts(1, 3, 50), entries(4, 2, 900), facts(6, 2, 20), entries(8, 3, 300)]
}

fn checkpoint() -> Checkpoint {
    Checkpoint { covers: Lsn(3), states: vec![(RoleKind(1), Bytes::from_static(b"state"))] }
}

#[test]
#[ignore = "writes the fixture, once per format"]
fn write_the_fixture() {
    assert!(!fixture().exists(), "a format is written once");
    let disk = Arc::new(RealDisk::open(&fixture(), Syncs::Real).unwrap());
    Identity::open(&*disk, "reef", NodeId(3), || STORAGE).unwrap();
    let (mut journal, _) = Journal::recover(disk, options(), &mut |_| Ok::<_, Infallible>(())).unwrap();
    for (i, batch) in batches().iter().enumerate() {
        journal.write(batch).unwrap();
        journal.sync().unwrap();
        if i == 0 {
            journal.write_checkpoint(&checkpoint()).unwrap();
        }
    }
    journal.mark().unwrap();
    journal.sync().unwrap();
}

#[test]
fn format_1_is_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("journal")).unwrap();
    for from in [fixture(), fixture().join("journal")] {
        for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
            fs::copy(&entry, dir.path().join(entry.strip_prefix(fixture()).unwrap())).unwrap();
        }
    }
    let disk = Arc::new(RealDisk::open(dir.path(), Syncs::Real).unwrap());
    let (identity, new) = Identity::open(&*disk, "reef", NodeId(3), || unreachable!()).unwrap();
    assert!(!new && identity.storage == STORAGE);
    let (mut found, mut found_checkpoint) = (Vec::<(Lsn, Record)>::new(), None);
    let mut visit = |r| {
        match r {
            Recovered::Checkpoint(c) => found_checkpoint = Some(c),
            Recovered::Record(r) => found.push((r.lsn, r.record)),
        }
        Ok::<_, Infallible>(())
    };
    let (_, last) = Journal::recover(disk, options(), &mut visit).unwrap();
    let written: Vec<_> = batches().into_iter().skip(1).flat_map(|b| b.records).collect();
    assert_eq!((last, found, found_checkpoint), (Lsn(10), written, Some(checkpoint())));
}

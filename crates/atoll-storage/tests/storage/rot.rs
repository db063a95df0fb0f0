//! Tests of damage: recovery refuses and reports damage to synced records, cuts damage above them, and never panics, whatever bytes a file
//! contains.

use std::convert::Infallible;
use std::io::IoSlice;
use std::sync::Arc;

use crate::common::{STORAGE, entries, facts};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Checkpoint, Loc, Lsn, RoleKind, Stored};
use atoll_storage::{
    Disk, DiskPath, Journal, JournalError, JournalOptions, MemDisk, Open, RecoverError, Recovered,
};
use bytes::Bytes;
use proptest::prelude::*;

fn options() -> JournalOptions {
    let mut options = JournalOptions::small(STORAGE);
    options.segment_bytes = 8 * 512;
    options.first_segment_bytes = 8 * 512;
    options.checkpoint_reserve_bytes = 512;
    options
}

type Opened = (Journal, Lsn, Vec<Stored>);

fn open(disk: &MemDisk) -> Result<Opened, JournalError> {
    let mut records = Vec::new();
    let mut visit = |r| {
        if let Recovered::Record(r) = r {
            records.push(r);
        }
        Ok::<_, Infallible>(())
    };
    match Journal::recover(Arc::new(disk.clone()), options(), &mut visit) {
        Ok((journal, last)) => Ok((journal, last, records)),
        Err(RecoverError::Journal(e)) => Err(e),
    }
}

fn path(text: &str) -> DiskPath {
    DiskPath::new(text).unwrap()
}

fn segment(generation: u64) -> DiskPath {
    path(&format!("journal/{generation:016x}.seg"))
}

fn length(disk: &MemDisk, path: &DiskPath) -> u64 {
    disk.open(path, Open::Read).unwrap().len().unwrap()
}

/// Writes three synced batches to two segments and marks the last one.
fn synced() -> (MemDisk, Vec<(Lsn, Loc)>) {
    let disk = MemDisk::new();
    let (mut journal, ..) = open(&disk).unwrap();
    let mut places = Vec::new();
    for batch in [entries(1, 2, 700), facts(3, 2, 300), entries(5, 2, 600)] {
        places.extend(journal.write(&batch).unwrap());
        journal.sync().unwrap();
    }
    journal.mark().unwrap();
    journal.sync().unwrap();
    assert!(places.iter().any(|(_, l)| l.segment == 1) && places.iter().any(|(_, l)| l.segment == 2));
    (disk, places)
}

#[test]
fn every_flipped_bit_is_refused_or_changes_nothing() {
    let (disk, places) = synced();
    let (_, last, whole) = open(&disk.fork()).unwrap();
    assert_eq!((last, whole.len()), (Lsn(6), 6));
    let (mut refused, mut harmless) = (0, 0);
    for generation in [1, 2] {
        for offset in 0..length(&disk, &segment(generation)) {
            for bit in 0..8 {
                let rotten = disk.fork();
                assert!(rotten.flip_bit(&segment(generation), offset, bit));
                match open(&rotten) {
                    Ok((_, last, records)) => {
                        harmless += 1;
                        assert_eq!((last, &records), (Lsn(6), &whole), "{generation} {offset} {bit}");
                        let inside = |loc: &Loc| {
                            let end = loc.offset_bytes + loc.len_bytes;
                            loc.segment == generation
                                && (loc.offset_bytes.into()..end.into()).contains(&offset)
                        };
                        assert!(!places.iter().any(|(_, loc)| inside(loc)), "{generation} {offset} {bit}");
                    }
                    Err(JournalError::UnsupportedFormat { .. }) => refused += 1,
                    Err(JournalError::Damaged { file, offset: at, .. }) => {
                        refused += 1;
                        assert_eq!(file, segment(generation).to_string());
                        // The error reports the start of the damaged batch or record, or the end of batches if the footer is damaged.
                        assert!(at <= offset, "byte {offset} bit {bit}, reported at {at}");
                    }
                    Err(e) => panic!("{e}"),
                }
            }
        }
    }
    assert!(refused > 8 * 3000 && harmless > 8 * 1000, "{refused} {harmless}");
}

#[test]
fn rot_is_named_and_nothing_on_disk_changes() {
    let (disk, places) = synced();
    let loc = places[1].1;
    assert!(disk.flip_bit(&segment(loc.segment), u64::from(loc.offset_bytes) + 100, 3));
    let before = disk.used_bytes();
    for _ in 0..2 {
        let Err(JournalError::Damaged { file, offset, .. }) = open(&disk) else { panic!("not refused") };
        assert_eq!((file, offset), (segment(loc.segment).to_string(), loc.offset_bytes.into()));
        assert_eq!(disk.used_bytes(), before);
    }
}

#[test]
fn mutant_t9_cuts_synced_records() {
    let (disk, places) = synced();
    let loc = places[1].1;
    assert!(disk.flip_bit(&segment(loc.segment), u64::from(loc.offset_bytes) + 100, 3));
    set_mutant(atoll_storage::mutants::NATIVE_T9);
    let opened = open(&disk);
    set_mutant(Mutant::NONE);
    assert_eq!(opened.unwrap().1, Lsn(0), "the mutant must do what it is for");
}

#[test]
fn a_torn_tail_is_cut_and_never_comes_back() {
    let disk = MemDisk::new();
    let (mut journal, ..) = open(&disk).unwrap();
    journal.write(&entries(1, 1, 100)).unwrap();
    journal.sync().unwrap();
    // The batch spans three segments. Only its part in the last one survives.
    journal.write(&facts(2, 8, 900)).unwrap();
    let tail = disk.fork();
    drop(journal);
    let mut sectors = 0;
    disk.crash(&mut || {
        sectors += 1;
        sectors > 12
    });
    let (mut journal, last, records) = open(&disk).unwrap();
    assert_eq!((last, records.len()), (Lsn(1), 1));
    // The same numbers are written again, with other content. No later life must see the old records.
    let batch = entries(2, 3, 50);
    journal.write(&batch).unwrap();
    journal.sync().unwrap();
    for _ in 0..3 {
        disk.crash(&mut || false);
        let (_, last, records) = open(&disk).unwrap();
        assert_eq!(last, Lsn(4));
        let got: Vec<_> = records.into_iter().skip(1).map(|s| (s.lsn, s.record)).collect();
        assert_eq!(got, batch.records);
    }
    // Without the power cut, all of it was there.
    tail.kill_process();
    assert_eq!(open(&tail).unwrap().1, Lsn(9));
}

#[test]
fn what_was_handed_out_is_durable() {
    let disk = MemDisk::new();
    let (mut journal, ..) = open(&disk).unwrap();
    journal.write(&entries(1, 2, 100)).unwrap();
    // The process is killed before the sync. The page cache still has the records, so recovery hands them out; then the power fails.
    disk.kill_process();
    assert_eq!(open(&disk).unwrap().1, Lsn(2));
    disk.crash(&mut || false);
    assert_eq!(open(&disk).unwrap().1, Lsn(2));
}

#[test]
fn what_a_failed_sync_lost_is_not_handed_out() {
    use atoll_storage::Fault;
    let disk = MemDisk::new();
    let (mut journal, ..) = open(&disk).unwrap();
    journal.write(&entries(1, 2, 100)).unwrap();
    journal.sync().unwrap();
    journal.write(&entries(3, 2, 100)).unwrap();
    disk.fail_next(Fault::Sync, 1);
    assert!(matches!(journal.sync(), Err(JournalError::Closed { .. })));
    disk.kill_process();
    let (_, last, _) = open(&disk).unwrap();
    assert_eq!(last, Lsn(2), "memory showed four records, the medium has two");
}

#[test]
fn other_versions_directories_and_checkpoints_are_refused() {
    let (disk, _) = synced();
    let other = JournalOptions { storage: atoll_core::StorageId(9), ..options() };
    let opened = Journal::recover(Arc::new(disk.clone()), other, &mut |_| Ok::<_, Infallible>(()));
    assert!(matches!(opened, Err(RecoverError::Journal(JournalError::Foreign { .. }))));

    let version = disk.fork();
    let mut file = version.open(&segment(1), Open::Write).unwrap();
    file.write_at(8, &[IoSlice::new(&[3, 0, 0, 0])]).unwrap();
    let Err(JournalError::UnsupportedFormat { found: 3, supported: 2, .. }) = open(&version) else {
        panic!()
    };

    let (mut journal, last, _) = open(&disk).unwrap();
    let states = vec![(RoleKind(1), Bytes::from_static(b"state"))];
    journal.write_checkpoint(&Checkpoint { covers: last, states }).unwrap();
    let checkpoint = path("journal/checkpoint");
    for offset in 0..length(&disk, &checkpoint) {
        let rotten = disk.fork();
        rotten.flip_bit(&checkpoint, offset, 2);
        assert!(open(&rotten).is_err(), "byte {offset}");
    }
    let mut file = disk.open(&checkpoint, Open::Write).unwrap();
    file.write_at(8, &[IoSlice::new(&[7])]).unwrap();
    let Err(JournalError::UnsupportedFormat { found: 7, .. }) = open(&disk) else { panic!() };
}

/// Checks that opening does not panic. It may succeed or fail.
fn survives(disk: &MemDisk) {
    if let Ok((mut journal, last, records)) = open(disk) {
        assert!(records.is_sorted_by_key(|s| s.lsn.0));
        journal.write(&entries(last.0 + 1, 1, 10)).unwrap();
        journal.sync().unwrap();
    }
}

fn overwrite(disk: &MemDisk, path: &DiskPath, offset: u64, bytes: &[u8]) {
    let mut file = disk.open(path, Open::Write).unwrap();
    file.write_at(offset, &[IoSlice::new(bytes)]).unwrap();
}

#[test]
fn truncated_files_do_not_panic() {
    let (disk, _) = synced();
    let (mut journal, last, _) = open(&disk).unwrap();
    journal
        .write_checkpoint(&Checkpoint { covers: last, states: vec![(RoleKind(1), Bytes::new())] })
        .unwrap();
    drop(journal);
    let names = disk.list(&path("journal")).unwrap();
    for name in names {
        let file = path(&format!("journal/{name}"));
        for len in (0..length(&disk, &file)).step_by(37) {
            let cut = disk.fork();
            cut.open(&file, Open::Write).unwrap().set_len(len).unwrap();
            survives(&cut);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_do_not_panic(
        patches in prop::collection::vec(
            (1u64..4, 0u64..4096, prop::collection::vec(any::<u8>(), 1..200)), 1..6),
        checkpoint in prop::option::of(prop::collection::vec(any::<u8>(), 0..100)),
    ) {
        let (disk, _) = synced();
        for (generation, offset, bytes) in &patches {
            if disk.open(&segment(*generation), Open::Read).is_ok() {
                overwrite(&disk, &segment(*generation), *offset, bytes);
            }
        }
        if let Some(bytes) = checkpoint {
            disk.open(&path("journal/checkpoint"), Open::Create).unwrap();
            overwrite(&disk, &path("journal/checkpoint"), 0, &bytes);
        }
        survives(&disk);
    }

    #[test]
    fn fields_with_right_checksums_do_not_panic(
        offset in prop_oneof![Just(512u32), Just(1024), any::<u32>()],
        count in prop_oneof![0u32..4, any::<u32>()],
        body in prop_oneof![0u32..4096, any::<u32>()],
        first in prop_oneof![0u64..20, any::<u64>()],
        synced_upto in prop_oneof![0u64..20, any::<u64>()],
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        // A batch header with a valid format and checksum, but wrong numbers.
        let (disk, _) = synced();
        let seed = crc32c::crc32c_append(crc32c::crc32c(&STORAGE.0.to_le_bytes()), &2u64.to_le_bytes());
        let fields = [
            offset.to_le_bytes().as_slice(), &count.to_le_bytes(), &body.to_le_bytes(), &[0; 4],
            &first.to_le_bytes(), &synced_upto.to_le_bytes(),
        ].concat();
        let crc = crc32c::crc32c_append(seed, &fields).to_le_bytes();
        let bytes = [b"BTCH".as_slice(), &crc, &fields, &tail].concat();
        overwrite(&disk, &segment(2), 512, &bytes);
        survives(&disk);
    }
}

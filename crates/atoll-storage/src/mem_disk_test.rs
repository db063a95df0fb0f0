//! Tests what a power cut keeps, and what faults do.
#![allow(clippy::unwrap_used)]

use super::*;

fn path(text: &str) -> DiskPath {
    DiskPath::new(text).unwrap()
}

fn read(disk: &MemDisk, name: &str) -> Vec<u8> {
    let file = disk.open(&path(name), Open::Read).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[test]
fn a_cut_keeps_any_subset_of_unsynced_sectors() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let disk = MemDisk::new();
        let mut file = disk.open(&path("a"), Open::Create).unwrap();
        file.write_at(0, &[IoSlice::new(&[1; 3 * SECTOR_BYTES])]).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(&DiskPath::root()).unwrap();
        file.write_at(0, &[IoSlice::new(&[2; 2 * SECTOR_BYTES])]).unwrap();
        disk.crash_seeded(seed);
        let got = read(&disk, "a");
        assert_eq!(got[2 * SECTOR_BYTES..], [1; SECTOR_BYTES]);
        seen.insert((got[0], got[SECTOR_BYTES]));
        assert!(file.sync_data().is_err(), "a handle from before the cut is dead");
    }
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_torn_growth_has_any_length_and_shows_what_nobody_wrote() {
    let (mut lens, mut stale) = (BTreeSet::new(), 0);
    for seed in 0..256 {
        let disk = MemDisk::new();
        disk.tear_growth(true);
        let mut file = disk.open(&path("a"), Open::Create).unwrap();
        file.write_at(0, &[IoSlice::new(&[0; 2 * SECTOR_BYTES])]).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(&DiskPath::root()).unwrap();
        file.write_at(2 * SECTOR_BYTES as u64, &[IoSlice::new(&[0; 3 * SECTOR_BYTES])]).unwrap();
        disk.crash_seeded(seed);
        let got = read(&disk, "a");
        assert_eq!(got[..2 * SECTOR_BYTES], [0; 2 * SECTOR_BYTES], "this was synced");
        stale += usize::from(got.iter().any(|byte| *byte != 0));
        lens.insert(got.len() / SECTOR_BYTES);
        disk.crash_seeded(seed);
        assert_eq!(read(&disk, "a"), got, "a cut decides once");
    }
    assert_eq!(lens, (2..=5).collect());
    assert!(stale > 100, "{stale}");
}

#[test]
fn names_are_durable_after_their_directory_is_synced() {
    for keep in [false, true] {
        let disk = MemDisk::new();
        disk.create_dir(&path("d")).unwrap();
        disk.sync_dir(&DiskPath::root()).unwrap();
        disk.open(&path("d/a"), Open::Create).unwrap();
        disk.sync_dir(&path("d")).unwrap();
        disk.rename(&path("d/a"), &path("d/b")).unwrap();
        disk.open(&path("d/c"), Open::Create).unwrap();
        disk.crash(&mut || keep);
        let expected: &[&str] = if keep { &["b", "c"] } else { &["a"] };
        assert_eq!(disk.list(&path("d")).unwrap(), expected);
    }
}

#[test]
fn a_failed_sync_is_never_made_good_by_a_later_one() {
    let disk = MemDisk::new();
    let mut file = disk.open(&path("a"), Open::Create).unwrap();
    file.write_at(0, &[IoSlice::new(&[1; 8])]).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(&DiskPath::root()).unwrap();
    file.write_at(0, &[IoSlice::new(&[2; 8])]).unwrap();
    disk.fail_next(Fault::Sync, 1);
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok());
    assert_eq!(read(&disk, "a"), [2; 8], "memory shows it");
    disk.fork().crash(&mut || false);
    file.forget_cached();
    assert_eq!(read(&disk, "a"), [1; 8], "the medium does not");
}

#[test]
fn capacity_counts_what_is_there() {
    let disk = MemDisk::new();
    disk.set_capacity(Some(1000));
    let mut file = disk.open(&path("a"), Open::Create).unwrap();
    file.write_at(0, &[IoSlice::new(&[0; 1000])]).unwrap();
    let full = file.write_at(500, &[IoSlice::new(&[1; 501])]);
    assert!(matches!(full, Err(DiskError::NoSpace { .. })));
    file.write_at(0, &[IoSlice::new(&[1; 1000])]).unwrap();
    disk.remove(&path("a")).unwrap();
    assert_eq!(disk.free_bytes(), Ok(1000));
}

#[test]
fn a_direct_write_is_durable_at_its_end_and_syncs_nothing_else() {
    let mut seen = BTreeSet::new();
    for seed in 0..64 {
        let disk = MemDisk::new();
        let mut file = disk.open(&path("a"), Open::Create).unwrap();
        file.write_at(0, &[IoSlice::new(&[1; 3 * 4096])]).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(&DiskPath::root()).unwrap();
        file.write_at(0, &[IoSlice::new(&[2])]).unwrap();
        let mut direct = disk.open_direct(&path("a")).unwrap();
        direct.begin(4096, &[IoSlice::new(&[3; 4096])]).unwrap();
        assert_eq!(direct.poll(), Some(Ok(())));
        disk.hold_direct_writes(true);
        direct.begin(2 * 4096, &[IoSlice::new(&[4; 4096])]).unwrap();
        assert_eq!(direct.poll(), None);
        disk.crash_seeded(seed);
        let got = read(&disk, "a");
        assert_eq!(got[4096..2 * 4096], [3; 4096]);
        seen.insert((got[0], got[2 * 4096], got[2 * 4096 + SECTOR_BYTES]));
        assert!(direct.poll().is_some_and(|ended| ended.is_err()), "a handle from before the cut is dead");
    }
    assert_eq!(seen.len(), 8, "any subset of the sectors that were not synced");
}

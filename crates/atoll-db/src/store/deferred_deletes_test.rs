//! Tests of which files are truncated, which are left alone, and when whole files are removed.
#![allow(clippy::unwrap_used)]

use super::*;

const MIB: usize = 1024 * 1024;
/// Limits so small that a file of a few bytes has several pieces, and a few files exceed the bound.
const SMALL: Bounds = Bounds { piece_bytes: 10, waiting_bytes: 100 };

fn bytes_in(folder: &Path) -> Vec<(OsString, u64)> {
    let mut found: Vec<_> =
        entries(folder).unwrap().iter().map(|e| (e.file_name(), e.metadata().unwrap().len())).collect();
    found.sort();
    found
}

/// Returns a folder with files that the store has removed, and the result of a scan of it.
fn removed(files: &[(&str, usize)]) -> (tempfile::TempDir, Aside, Look) {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(FOLDER)).unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(FOLDER).join(name), vec![1; *bytes]).unwrap();
    }
    let mut aside = Aside::open(dir.path(), SMALL).unwrap();
    let look = aside.look();
    assert_eq!(look.left.len(), files.len());
    (dir, aside, look)
}

#[test]
fn a_file_goes_in_pieces_once_the_store_has_removed_it_and_never_before() {
    let dir = tempfile::tempdir().unwrap();
    let tables = dir.path().join("keyspaces/0/tables");
    fs::create_dir_all(&tables).unwrap();
    fs::write(tables.join("7"), vec![1; 3 * MIB]).unwrap();
    fs::write(dir.path().join("0.jnl"), vec![2; MIB]).unwrap();
    fs::write(dir.path().join("version"), b"3").unwrap();
    let mut aside = Aside::open(dir.path(), BOUNDS).unwrap();
    assert_eq!(aside.look().left, [], "the store has them all");
    let all = [("0-7".into(), 3 * MIB as u64), ("0.jnl".into(), MIB as u64)];
    assert_eq!(bytes_in(&aside.folder), all);
    fs::remove_file(tables.join("7")).unwrap();
    let mut look = aside.look();
    assert_eq!(look.left, [("0-7".into(), 3 * MIB as u64)]);
    aside.cut(&mut look, MIB as u64);
    assert_eq!(look.left, [("0-7".into(), 2 * MIB as u64)]);

    // The next life finds the rest of the file, a new file of the store with the same name, and a file that does not belong to the
    // store.
    fs::write(tables.join("7"), b"new").unwrap();
    fs::write(aside.folder.join("7"), b"a stranger").unwrap();
    let mut aside = Aside::open(dir.path(), BOUNDS).unwrap();
    let mut look = aside.look();
    assert_eq!(look.left, [("0-7".into(), 2 * MIB as u64)]);
    while !look.left.is_empty() {
        aside.cut(&mut look, MIB as u64);
    }
    assert_eq!(fs::read(tables.join("7")).unwrap(), b"new");
    assert_eq!(aside.look().left, []);
    let all = [("0-7".into(), 3), ("0.jnl".into(), MIB as u64), ("7".into(), 10)];
    assert_eq!(bytes_in(&aside.folder), all);
}

/// Some file systems report a wrong count for all of their files.
#[test]
fn a_file_that_the_store_has_is_not_cut_whatever_the_count_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("3.jnl"), b"in use").unwrap();
    let mut aside = Aside::open(dir.path(), BOUNDS).unwrap();
    assert_eq!(aside.look().left, []);
    let name = OsStr::new("3.jnl");
    let meta = fs::symlink_metadata(aside.folder.join(name)).unwrap();
    assert!(aside.is_stored(name, &meta).unwrap());
    let other = fs::symlink_metadata(dir.path()).unwrap();
    assert!(!aside.is_stored(name, &other).unwrap());
    fs::remove_file(dir.path().join("3.jnl")).unwrap();
    assert!(!aside.is_stored(name, &meta).unwrap());
}

#[test]
fn where_names_are_not_counted_all_second_ones_go_and_the_files_of_the_store_stay() {
    let (dir, mut aside, _) = removed(&[("1.jnl", 30)]);
    fs::write(dir.path().join("2.jnl"), b"in use").unwrap();
    aside.look();
    assert_eq!(bytes_in(&aside.folder), [("1.jnl".into(), 30), ("2.jnl".into(), 6)]);
    aside.counts_names = false;
    for _ in 0..2 {
        let look = aside.look();
        assert_eq!(look.left, []);
        assert_eq!(look.error.unwrap().kind(), ErrorKind::Unsupported);
        assert_eq!(bytes_in(&aside.folder), []);
    }
    assert_eq!(fs::read(dir.path().join("2.jnl")).unwrap(), b"in use");
}

#[test]
fn an_error_skips_what_it_is_about_until_the_next_look() {
    let (dir, mut aside, _) = removed(&[("1-1", 30), ("2.jnl", 40)]);
    let (link_refused, not_read) = (dir.path().join("0.jnl"), dir.path().join("keyspaces/0"));
    let not_asked = dir.path().join("keyspaces/1");
    // There are so many that some come after the failing ones, in whatever order they are read.
    for tables in (2..10).map(|tree| dir.path().join(format!("keyspaces/{tree}/tables"))) {
        fs::create_dir_all(&tables).unwrap();
        fs::write(tables.join("3"), b"in use").unwrap();
    }
    fs::create_dir(&link_refused).unwrap();
    std::os::unix::fs::symlink("0", &not_read).unwrap();
    fs::write(&not_asked, b"no folder").unwrap();
    fs::write(dir.path().join("3.jnl"), b"in use").unwrap();
    let look = aside.look();
    assert!(look.error.is_some());
    assert_eq!(look.left, [("2.jnl".into(), 40)]);
    assert_eq!(aside.names.len(), 2 + 8 + 1, "{:?}", aside.names);

    fs::remove_dir(&link_refused).unwrap();
    fs::remove_file(&not_read).unwrap();
    fs::remove_file(&not_asked).unwrap();
    fs::write(&link_refused, b"in use").unwrap();
    let look = aside.look();
    assert!(look.error.is_none());
    assert_eq!(look.left.len(), 2);
    assert!(aside.names.contains(OsStr::new("0.jnl")));
}

#[test]
fn a_second_name_that_somebody_removed_is_no_error_and_given_again() {
    let (dir, mut aside, mut look) = removed(&[("1.jnl", 30), ("2.jnl", 40)]);
    fs::write(dir.path().join("3.jnl"), b"in use").unwrap();
    aside.look();
    fs::remove_dir_all(&aside.folder).unwrap();
    aside.cut(&mut look, 10);
    assert_eq!((look.left.len(), aside.stuck.len()), (1, 0));
    for _ in 0..2 {
        let look = aside.look();
        assert!(look.error.is_none());
        assert_eq!(look.left, []);
    }
    assert_eq!(bytes_in(&aside.folder), [("3.jnl".into(), 6)]);
}

/// Runs the thread itself, with its real pauses.
#[test]
fn after_an_error_the_thread_goes_on() {
    fn wait_for(done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("0.jnl")).unwrap();
    let _deferred = DeferredDeletes::of(dir.path()).unwrap();
    std::thread::sleep(2 * LOOK_EVERY);
    let (first, second) = (dir.path().join("1.jnl"), dir.path().join(FOLDER).join("1.jnl"));
    fs::write(&first, b"in use").unwrap();
    wait_for(|| second.exists());
    fs::remove_file(&first).unwrap();
    wait_for(|| !second.exists());
}

/// A symbolic link to itself can be removed, but not opened.
#[test]
fn a_file_that_cannot_be_cut_keeps_no_other_waiting_and_goes_whole_at_last() {
    let (_dir, mut aside, _) = removed(&[("1.jnl", 30)]);
    let name = "222222222222.jnl";
    std::os::unix::fs::symlink(name, aside.folder.join(name)).unwrap();
    aside.names.insert(name.into());
    let mut look = aside.look();
    aside.cut(&mut look, 10);
    assert_eq!(look.left, [("1.jnl".into(), 30)], "the other one was tried first");
    for bytes in [20, 10] {
        let mut look = aside.look();
        aside.cut(&mut look, 10);
        assert_eq!(look.left, [("1.jnl".into(), bytes)]);
    }
    assert_eq!(aside.stuck, BTreeMap::from([(name.into(), 3)]), "and only the first time is told");
    for _ in 3..=LOOKS_BEFORE_WHOLE {
        assert!(aside.names.contains(OsStr::new(name)));
        assert_eq!(aside.look().left, [("1.jnl".into(), 10)]);
    }
    assert_eq!(bytes_in(&aside.folder), [("1.jnl".into(), 10)]);
    assert_eq!((aside.names.len(), aside.stuck.len()), (1, 0));
}

/// `remove_file` cannot remove a folder.
#[test]
fn a_file_that_cannot_be_removed_keeps_no_other_waiting_though_too_much_is_there() {
    let (_dir, mut aside, mut look) = removed(&[("1.jnl", 30), ("2.jnl", 40)]);
    fs::create_dir(aside.folder.join("3.jnl")).unwrap();
    look.left.push(("3.jnl".into(), 1000));
    aside.cut(&mut look, 10);
    assert_eq!(look.left, [("1.jnl".into(), 30), ("2.jnl".into(), 40)], "these may wait");
    aside.cut(&mut look, 10);
    assert_eq!(look.left, [("1.jnl".into(), 30), ("2.jnl".into(), 30)]);
}

#[test]
fn what_is_left_beyond_the_bound_goes_at_once() {
    let (_dir, mut aside, mut look) = removed(&[("1.jnl", 40), ("2.jnl", 40), ("3.jnl", 40), ("4.jnl", 40)]);
    aside.cut(&mut look, 10);
    assert_eq!(bytes_in(&aside.folder), [("1.jnl".into(), 40), ("2.jnl".into(), 40)]);
    aside.cut(&mut look, 10);
    assert_eq!(look.left, [("1.jnl".into(), 40), ("2.jnl".into(), 30)]);
    assert_eq!(BOUNDS.waiting_bytes, 2 << 30, "as the documentation says");
}

#[test]
fn on_a_full_disk_everything_goes_at_once() {
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let (_dir, mut aside, mut look) = removed(&[("1.jnl", 40), ("2.jnl", 40)]);
        look.pass::<()>(Err(kind.into()));
        aside.cut(&mut look, 10);
        assert_eq!(bytes_in(&aside.folder), []);
        assert!(!aside.look().is_full, "asked anew each time");
    }
}

#[test]
fn with_less_room_than_what_waits_would_give_everything_goes_at_once() {
    let (_dir, mut aside, _) = removed(&[("1.jnl", 30), ("2.jnl", 20)]);
    aside.free_bytes = |_| Some(50);
    assert!(!aside.look().is_full);
    aside.free_bytes = |_| Some(49);
    let mut look = aside.look();
    aside.cut(&mut look, 10);
    assert_eq!(bytes_in(&aside.folder), []);
}

#[test]
fn small_files_go_together() {
    let (_dir, mut aside, mut look) = removed(&[("1.jnl", 20), ("2.jnl", 0), ("3.jnl", 4), ("4.jnl", 4)]);
    aside.cut(&mut look, 10);
    assert_eq!(bytes_in(&aside.folder), [("1.jnl".into(), 18)]);
}

#[test]
fn the_more_is_left_the_faster_it_goes() {
    assert_eq!(BOUNDS.pause(0), LOOK_EVERY);
    assert_eq!(BOUNDS.pause(1), LOOK_EVERY);
    assert_eq!(BOUNDS.pause(1000 * BOUNDS.piece_bytes), PACE / 1000);
    assert_eq!(BOUNDS.pause(u64::MAX), REST);
    // Pieces are larger only if syncs are slow as well.
    let (piece, second) = (BOUNDS.piece_bytes, Duration::from_secs(1));
    assert_eq!(BOUNDS.piece(0, second), piece);
    assert_eq!(BOUNDS.piece(50 * piece, second), piece);
    assert_eq!(BOUNDS.piece(2000 * piece, Duration::from_millis(5)), piece);
    assert_eq!(BOUNDS.piece(2000 * piece, Duration::from_millis(50)), 10 * piece);
    assert_eq!(BOUNDS.piece(2000 * piece, second), 40 * piece, "as for a fifth of a second");
    assert_eq!(BOUNDS.piece(u64::MAX, second), u64::MAX / 50);
}

/// A store that removes 150 MiB a second for two minutes, on a disk that syncs in 20 ms.
#[test]
fn what_waits_does_not_outgrow_the_pace_where_syncs_are_slow() {
    let (mut left, mut begun, mut elapsed) = (0, Duration::ZERO, Duration::ZERO);
    while elapsed < Duration::from_secs(120) {
        let pause = BOUNDS.pause(left);
        let piece = BOUNDS.piece(left, elapsed + pause - begun);
        begun = elapsed + pause;
        left = left.saturating_sub(piece);
        let took = pause + Duration::from_millis(20);
        elapsed += took;
        left += 150 * MIB as u64 * u64::try_from(took.as_micros()).unwrap() / 1_000_000;
    }
    assert!(left < 1600 * MIB as u64, "{left}");
}

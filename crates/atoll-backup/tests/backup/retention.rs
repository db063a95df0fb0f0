//! What is too old goes, and everything newer can still be restored.

use std::sync::atomic::Ordering;

use atoll_backup::{Backup, LogPos, Moment, retain};

use crate::toy::{ID, Shaky, Toy, folder, restore, round, shipper, state_below, wait};

/// A backup with a snapshot at each multiple of 1000 ms; the store, and where each was taken.
fn grown(store: &Shaky) -> Vec<u64> {
    let toy = Toy::at(10);
    let mut ships = shipper(store);
    (1..=6)
        .map(|number| {
            toy.go_to(number * 20);
            round(&mut ships, store, &toy, true, number * 1000).unwrap();
            ships.newest().unwrap().head.below.0
        })
        .collect()
}

fn kept(store: &Shaky) -> Vec<u64> {
    wait(Backup::open(folder(store))).unwrap().snapshots.iter().map(|s| s.head.below.0).collect()
}

#[test]
fn every_moment_of_the_kept_time_can_be_restored_and_the_rest_is_gone() {
    let store = Shaky::default();
    let all = grown(&store);
    assert_eq!(wait(retain(&folder(&store), ID, 10_000, 6000)), Ok(0), "nothing is that old");
    // The second snapshot is still needed: it covers what was there 3000 ms ago.
    assert_eq!(wait(retain(&folder(&store), ID, 3000, 6500)), Ok(2));
    assert_eq!(kept(&store), all[2..]);
    for at in all[2]..=120 {
        assert_eq!(restore(&store, Moment::Position(LogPos(at))), Ok(state_below(at)), "position {at}");
    }
    let names = store.names.lock().unwrap().clone();
    let left = |needle: &str| names.iter().filter(|n| n.contains(needle) && store.has(n)).count();
    assert_eq!(left("/snapshots/0000000000000000/"), 1, "only the mark");
    assert_eq!(left("/snapshots/0000000000000001/"), 1, "only the mark");
    assert!(left("/entries/0000000000000000") == 0 && left("/entries/") > 0);
    assert_eq!(wait(retain(&folder(&store), ID, 0, u64::MAX)), Ok(3));
    assert_eq!(kept(&store), all[5..], "the newest one stays");
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(120)));
    let toy = Toy::at(150);
    round(&mut shipper(&store), &store, &toy, false, 9000).unwrap();
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(150)), "a new node continues behind it");
}

#[test]
fn a_round_that_is_cut_off_is_finished_by_the_next_one() {
    for one_in in [2, 3, 4] {
        let store = Shaky::default();
        let all = grown(&store);
        store.loses_one_in.store(one_in, Ordering::Relaxed);
        for _ in 0..40 {
            let _ = wait(retain(&folder(&store), ID, 2000, 6500));
        }
        store.loses_one_in.store(0, Ordering::Relaxed);
        wait(retain(&folder(&store), ID, 2000, 6500)).unwrap();
        assert_eq!(kept(&store), all[3..]);
        let names = store.names.lock().unwrap().clone();
        for snapshot in 0..3 {
            let of = format!("/snapshots/{snapshot:016x}/");
            let left: Vec<_> =
                names.iter().filter(|n| n.contains(&of) && !n.ends_with("gone") && store.has(n)).collect();
            assert!(left.is_empty(), "{left:?}");
        }
        assert_eq!(restore(&store, Moment::Latest), Ok(state_below(120)));
    }
}

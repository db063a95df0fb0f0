//! Looks that show what was there a while ago, as lists of some stores do.

use atoll_backup::{Backup, LogPos, Moment, retain};

use crate::toy::{ID, Lag, Shaky, Toy, folder, restore, round, shipper, state_below, wait};

#[test]
fn what_was_shipped_a_moment_ago_is_found_and_nothing_is_told_as_missing() {
    let (store, toy) = (Shaky::default(), Toy::at(10));
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    for lags_from in [60, 90, 120] {
        store.looks_lag(Some(Lag::HidesAll));
        for at in lags_from..lags_from + 30 {
            toy.go_to(at);
            round(&mut ships, &store, &toy, at % 9 == 0, at).unwrap();
            let backup = wait(Backup::open(folder(&store))).unwrap_or_else(|why| panic!("at {at}: {why}"));
            assert_eq!(backup.end.unwrap().to, LogPos(at));
            assert_eq!(backup.snapshots.len() as u64, ships.next_snapshot());
        }
        store.looks_lag(None);
    }
    // Some of the last runs were put before a look, and some after it.
    toy.go_to(150);
    round(&mut ships, &store, &toy, false, 150).unwrap();
    store.looks_lag(Some(Lag::HidesAll));
    toy.go_to(151);
    round(&mut ships, &store, &toy, false, 151).unwrap();
    store.looks_lag(None);
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(151)));
}

#[test]
fn a_node_that_begins_while_looks_lag_behind_retention_ships_where_readers_look() {
    for lag in [Lag::HidesPuts, Lag::HidesAll] {
        let (store, toy) = (Shaky::default(), Toy::at(10));
        let mut ships = shipper(&store);
        round(&mut ships, &store, &toy, true, 1000).unwrap();
        for number in 2..=5 {
            toy.go_to(number * 20);
            round(&mut ships, &store, &toy, true, number * 1000).unwrap();
        }
        // Looks do not show the marks of what is given up now, and show nothing of what is put.
        store.looks_lag(Some(lag));
        assert_eq!(wait(retain(&folder(&store), ID, 0, 10_000)), Ok(4));
        for at in 101..140 {
            toy.go_to(at);
            // Each time a node that has just started.
            round(&mut shipper(&store), &store, &toy, at % 7 == 0, 10_000 + at).unwrap();
            let backup = wait(Backup::open(folder(&store)));
            let backup = backup.unwrap_or_else(|why| panic!("{lag:?}, at {at}: {why}"));
            assert_eq!(backup.end.unwrap().to, LogPos(at));
        }
        store.looks_lag(None);
        for at in 100..140 {
            let restored = restore(&store, Moment::Position(LogPos(at)));
            assert_eq!(restored, Ok(state_below(at)), "{lag:?}, position {at}");
        }
        assert_eq!(restore(&store, Moment::Latest), Ok(state_below(139)));
    }
}

//! What is shipped is read back, up to any moment.

use std::sync::atomic::Ordering;

use atoll_backup::{Backup, BackupError, LogPos, Moment, Shipper, mutants, take};
use atoll_core::testing::{Mutant, set_mutant};

use crate::toy::{ID, Shaky, Toy, folder, restore, round, shipper, state_below, time_of, wait};

/// A backup with entries 0 to 100, and snapshots at 7, 37 and 67.
fn grown() -> (Shaky, Toy) {
    let (store, toy) = (Shaky::default(), Toy::at(10));
    let mut ships = shipper(&store);
    for (number, at) in [10, 25, 40, 55, 70, 85, 100].into_iter().enumerate() {
        toy.go_to(at);
        round(&mut ships, &store, &toy, number % 2 == 0, at).unwrap();
    }
    (store, toy)
}

#[test]
fn every_position_and_every_time_from_the_first_snapshot_on_is_restored() {
    let (store, _) = grown();
    for at in 7..=100 {
        assert_eq!(restore(&store, Moment::Position(LogPos(at))), Ok(state_below(at)), "position {at}");
        let exact = Moment::Time(time_of(at - 1));
        assert_eq!(restore(&store, exact), Ok(state_below(at)), "time of {}", at - 1);
        if at < 100 {
            assert_eq!(
                restore(&store, Moment::Time(time_of(at - 1) + 9)),
                Ok(state_below(at)),
                "before {at}"
            );
        }
    }
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(100)));
}

#[test]
fn what_is_not_in_the_backup_is_refused() {
    let (store, _) = grown();
    let why = |moment| restore(&store, moment).unwrap_err();
    assert!(why(Moment::Position(LogPos(6))).contains("the backup begins with the state below 7"));
    assert!(why(Moment::Position(LogPos(101))).contains("the backup ends below 100"));
    assert!(why(Moment::Time(time_of(100))).contains("the backup ends below 100"));
    assert!(why(Moment::Time(5)).contains("nothing earlier"));
    let none = wait(Backup::open(folder(&Shaky::default()))).unwrap_err();
    assert!(matches!(none, BackupError::None { .. }), "{none}");
    let empty = Shaky::default();
    shipper(&empty);
    assert!(restore(&empty, Moment::Latest).unwrap_err().contains("no snapshot yet"));
}

#[test]
fn two_nodes_that_ship_at_once_make_one_row() {
    let (store, toy) = (Shaky::default(), Toy::at(5));
    let (mut one, mut two) = (shipper(&store), shipper(&store));
    round(&mut one, &store, &toy, true, 1).unwrap();
    for at in [20, 30, 50, 51, 90] {
        toy.go_to(at);
        // The second one knows of nothing that the first one ships.
        let mut blind = two.clone();
        round(&mut one, &store, &toy, false, 2).unwrap();
        wait(blind.ship(&toy, 3, 3)).unwrap();
        round(&mut two, &store, &toy, at == 50, 4).unwrap();
        assert_eq!(two.end().unwrap().to, LogPos(at));
    }
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(90)));
}

#[test]
fn of_two_nodes_that_ship_the_same_snapshot_one_succeeds() {
    let (store, toy) = (Shaky::default(), Toy::at(30));
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    let taken = |writer| wait(take(&folder(&store), ID, 1, &toy, writer)).unwrap();
    let (one, two) = (taken(1), taken(2));
    let mut other = ships.clone();
    assert_eq!(wait(ships.add(&one, false, 2)), Ok(true));
    assert_eq!(wait(other.add(&two, false, 3)), Err(BackupError::Overtaken));
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(30)));
}

#[test]
fn a_gap_is_told_and_both_sides_of_it_can_be_restored() {
    let (store, toy) = grown();
    toy.go_to(200);
    toy.trim.store(150, Ordering::Relaxed);
    let mut ships = shipper(&store);
    let lost = round(&mut ships, &store, &toy, false, 9).unwrap_err();
    assert!(matches!(lost, BackupError::Source(_)), "{lost}");
    let taken = wait(take(&folder(&store), ID, ships.next_snapshot(), &toy, 9)).unwrap();
    assert_eq!(wait(ships.add(&taken, false, 9)), Ok(false), "runs up to it may still come");
    assert_eq!(wait(ships.add(&taken, true, 9)), Ok(true));
    round(&mut ships, &store, &toy, false, 10).unwrap();
    for at in [100, 197, 200] {
        assert_eq!(restore(&store, Moment::Position(LogPos(at))), Ok(state_below(at)), "position {at}");
    }
    let why = restore(&store, Moment::Position(LogPos(150))).unwrap_err();
    assert!(why.contains("does not have the entries 100 to 197"), "{why}");
    let listed = wait(Backup::open(folder(&store))).unwrap();
    let joined: Vec<_> = listed.snapshots.iter().map(|s| s.head.joined).collect();
    assert_eq!(joined, [false, true, true, true, false], "of {:?}", listed.snapshots);
}

#[test]
fn another_backup_at_the_same_place_is_refused() {
    let (store, _) = grown();
    let other = wait(Shipper::open(folder(&store), ID + 1, 1)).unwrap_err();
    assert!(matches!(other, BackupError::Other { .. }), "{other}");
}

#[test]
fn a_copy_that_skips_an_entry_has_another_hash() {
    let store = Shaky::default();
    let toy = Toy::at(10);
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    toy.go_to(20);
    set_mutant(mutants::BACKUP_SKIPS_ENTRY);
    let shipped = round(&mut ships, &store, &toy, false, 2);
    set_mutant(Mutant::NONE);
    shipped.unwrap();
    let why = restore(&store, Moment::Latest).unwrap_err();
    assert!(why.contains("the hash below 20 differs"), "{why}");
}

/// A replica that has lost its store may have committed nothing yet of what it has applied.
#[test]
fn a_snapshot_of_an_older_state_than_the_newest_one_is_refused() {
    for (bug, refused) in [(Mutant::NONE, true), (mutants::BACKUP_GOES_BACK, false)] {
        let (store, toy) = grown();
        let mut ships = shipper(&store);
        wait(ships.follow()).unwrap();
        let behind = Toy { lag: toy.at.load(Ordering::Relaxed), ..Toy::at(toy.at.load(Ordering::Relaxed)) };
        let taken = wait(take(&folder(&store), ID, ships.next_snapshot(), &behind, 9)).unwrap();
        set_mutant(bug);
        let added = wait(ships.add(&taken, false, 9));
        set_mutant(Mutant::NONE);
        assert_eq!(matches!(added, Err(BackupError::Source(_))), refused, "{added:?}");
        assert_eq!(restore(&store, Moment::Latest).is_ok(), refused, "the newest snapshot must be of use");
    }
}

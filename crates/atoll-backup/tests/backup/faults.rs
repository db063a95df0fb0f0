//! A store that loses requests and answers, and objects that are not what they were.

use std::sync::atomic::Ordering;

use atoll_backup::{BackupError, LogPos, Moment};

use crate::toy::{Shaky, Toy, restore, round, shipper, state_below, wait};

#[test]
fn lost_requests_and_lost_answers_lose_and_double_nothing() {
    for one_in in [3, 4, 5, 8] {
        let (store, toy) = (Shaky::default(), Toy::at(4));
        let mut nodes = [shipper(&store), shipper(&store)];
        store.loses_one_in.store(one_in, Ordering::Relaxed);
        for step in 1..60 {
            toy.go_to(4 + step * 3);
            let turn = usize::try_from(step % 2).unwrap();
            match round(&mut nodes[turn], &store, &toy, step % 7 == 1, step) {
                Ok(()) => {}
                Err(error) => assert!(error.passes(), "{error}"),
            }
        }
        store.loses_one_in.store(0, Ordering::Relaxed);
        round(&mut nodes[0], &store, &toy, true, 99).unwrap();
        let end = nodes[0].end().unwrap().to.0;
        assert_eq!(end, 4 + 59 * 3);
        assert_eq!(restore(&store, Moment::Latest), Ok(state_below(end)), "one in {one_in}");
        for at in (10..end).step_by(11) {
            let restored = restore(&store, Moment::Position(LogPos(at)));
            match restored {
                Ok(state) => assert_eq!(state, state_below(at)),
                Err(why) => assert!(why.contains("the backup begins"), "{why}"),
            }
        }
    }
}

#[test]
fn a_store_that_is_away_stops_nothing_and_the_backlog_follows() {
    let (store, toy) = (Shaky::default(), Toy::at(10));
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    store.down.store(true, Ordering::Relaxed);
    toy.go_to(500);
    let why = round(&mut ships, &store, &toy, false, 2).unwrap_err();
    assert!(matches!(why, BackupError::Store(_)) && why.passes(), "{why}");
    assert_eq!(ships.end().unwrap().to, LogPos(10));
    store.down.store(false, Ordering::Relaxed);
    round(&mut ships, &store, &toy, false, 3).unwrap();
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(500)));
}

#[test]
fn objects_that_are_altered_cut_missing_or_swapped_end_a_restore_by_name() {
    let (store, toy) = (Shaky::default(), Toy::at(10));
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    toy.go_to(60);
    round(&mut ships, &store, &toy, false, 2).unwrap();
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(60)));
    let names: Vec<String> = store.names.lock().unwrap().clone();
    let read = |name: &String| {
        let parts = name.rsplit('/').next().unwrap();
        name.contains("/entries/") || (parts.contains('-') && !parts.starts_with("attempt"))
    };
    let names: Vec<&String> = names.iter().filter(|name| read(name)).collect();
    assert!(names.len() > 5, "{names:?}");
    for name in &names {
        let mut kept = Vec::new();
        store.alter(name, |bytes| {
            kept = bytes.clone();
            let mut altered = bytes;
            let last = altered.len() - 1;
            altered[last] ^= 4;
            Some(altered)
        });
        let why = restore(&store, Moment::Latest).unwrap_err();
        assert!(why.contains(name.as_str()) && why.contains("damaged"), "{why}");
        store.alter(name, |_| Some(kept[..kept.len() - 3].to_vec()));
        let why = restore(&store, Moment::Latest).unwrap_err();
        assert!(why.contains(name.as_str()) && why.contains("damaged"), "{why}");
        store.alter(name, |_| None);
        match restore(&store, Moment::Latest) {
            // Without its last run, a backup just ends earlier.
            Ok(state) => {
                assert_eq!(*name, names[names.len() - 1], "only the last run can be missing without notice");
                assert_eq!(state, state_below(state.len() as u64), "without {name}");
            }
            Err(why) => assert!(why.contains(name.as_str()) && why.contains("missing"), "{why}"),
        }
        // Put back by a stranger, under its name.
        let like = names.iter().find(|other| *other != name && other.len() == name.len());
        let Some(other) = like else {
            wait(put_raw(&store, name, kept));
            continue;
        };
        let mut stolen = Vec::new();
        store.alter(other, |bytes| {
            stolen.clone_from(&bytes);
            Some(bytes)
        });
        wait(put_raw(&store, name, stolen));
        assert!(restore(&store, Moment::Latest).is_err(), "{other} under the name {name}");
        store.alter(name, |_| Some(kept));
    }
    assert_eq!(restore(&store, Moment::Latest), Ok(state_below(60)));
}

#[test]
fn an_answer_that_is_altered_once_is_asked_for_again() {
    let (store, toy) = (Shaky::default(), Toy::at(10));
    let mut ships = shipper(&store);
    round(&mut ships, &store, &toy, true, 1).unwrap();
    toy.go_to(60);
    round(&mut ships, &store, &toy, false, 2).unwrap();
    let names = store.names.lock().unwrap().clone();
    for name in names.iter().filter(|name| !name.contains("attempt")) {
        *store.alters_next.lock().unwrap() = Some(name.clone());
        let restored = restore(&store, Moment::Latest);
        assert_eq!(restored, Ok(state_below(60)), "with an altered answer of {name}");
        assert_eq!(*store.alters_next.lock().unwrap(), None, "{name} was not read");
    }
}

async fn put_raw(store: &Shaky, name: &str, bytes: Vec<u8>) {
    use atoll_object_store::{Put, Store};
    store.put(name.to_owned(), bytes.into(), Put::Replace).await.unwrap();
}

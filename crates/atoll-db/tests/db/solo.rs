//! Tests of an application on an engine without a log: writes, reads, rollbacks, and what survives a crash.

use std::sync::{Arc, Mutex};

use crate::common::{Map, MapEngine, delete, fail, items, panic, put, sum, total, two_parts};
use atoll_db::{Applications, Direction, Halt, KeyRange, LogPos, MemoryStore, Observer, Solo, View};

fn open(store: &MemoryStore) -> (Solo, MapEngine) {
    let mut apps = Applications::new();
    let slot = apps.add(Map::default());
    let solo = Solo::open(apps, Box::new(store.clone())).expect("an empty store opens");
    let engine = solo.engine(&slot);
    (solo, engine)
}

fn run(engine: &MapEngine, command: bytes::Bytes) -> Result<String, String> {
    let mut ticket = engine.propose(command).expect("never busy");
    let applied = ticket.try_take().expect("at once").expect("answered").map_err(|e| e.to_string())?;
    match applied.reply {
        Ok(reply) => Ok(String::from_utf8_lossy(&reply).into_owned()),
        Err(rejected) => Err(String::from_utf8_lossy(&rejected.0).into_owned()),
    }
}

#[test]
fn what_is_written_is_read_and_old_views_stay_as_they_are() {
    let (_solo, engine) = open(&MemoryStore::new());
    assert_eq!(run(&engine, put("a", "1")), Ok("new".into()));
    let old = engine.view();
    assert_eq!(run(&engine, put("a", "2")), Ok("1".into()));
    assert_eq!(run(&engine, put("b", "3")), Ok("new".into()));
    assert_eq!(run(&engine, delete("b")), Ok("3".into()));
    assert_eq!(items(&old), [("a".into(), "1".into())]);
    assert_eq!(items(&engine.view()), [("a".into(), "2".into())]);
    assert_eq!((old.below(), engine.view().below()), (LogPos(1), LogPos(4)));
}

#[test]
fn a_rejected_command_changes_nothing_and_tells_nothing() {
    let (_solo, engine) = open(&MemoryStore::new());
    let events = Arc::new(Events::default());
    engine.observe(events.clone());
    run(&engine, put("a", "1")).expect("applied");
    assert_eq!(run(&engine, fail("a", "2")), Err("as asked".into()));
    assert_eq!(items(&engine.view()), [("a".into(), "1".into())]);
    assert_eq!(engine.health().rejected, 1);
    // A part of a command can fail without the rest.
    assert_eq!(run(&engine, two_parts("x", "y")), Ok("one part".into()));
    assert_eq!(items(&engine.view()), [("a".into(), "1".into()), ("x".into(), "1".into())]);
    assert_eq!(*events.0.lock().expect("not poisoned"), ["a", "x"]);
}

#[derive(Default)]
struct Events(Mutex<Vec<String>>);

impl Observer<String> for Events {
    fn on_events(&self, _below: LogPos, events: Vec<String>) {
        self.0.lock().expect("not poisoned").extend(events);
    }

    fn on_restored(&self, _below: LogPos, _view: &View) {}
}

/// Reads the view while it receives events.
struct Early(MapEngine, Mutex<Vec<usize>>);

impl Observer<String> for Early {
    fn on_events(&self, _below: LogPos, _events: Vec<String>) {
        self.1.lock().expect("not poisoned").push(items(&self.0.view()).len());
    }
}

#[test]
fn events_come_before_the_view_that_shows_their_effects() {
    let (_solo, engine) = open(&MemoryStore::new());
    let early = Arc::new(Early(engine.clone(), Mutex::default()));
    engine.observe(early.clone());
    run(&engine, put("a", "1")).expect("applied");
    run(&engine, put("b", "1")).expect("applied");
    assert_eq!(*early.1.lock().expect("not poisoned"), [0, 1]);
}

#[test]
fn a_poison_command_stops_the_replica_and_reads_go_on() {
    let (_solo, engine) = open(&MemoryStore::new());
    run(&engine, put("a", "1")).expect("applied");
    let unknown = run(&engine, panic("p")).expect_err("poison");
    assert!(unknown.contains("unknown outcome"), "{unknown}");
    assert!(matches!(engine.halted(), Some(Halt::Poison { at: LogPos(1), index: 0, .. })));
    assert!(run(&engine, put("b", "1")).expect_err("stopped").contains("as the test wants it"));
    assert_eq!(items(&engine.view()), [("a".into(), "1".into())]);
    let mut wait = engine.wait_applied(LogPos(2));
    assert!(wait.try_take().expect("at once").expect("answered").is_err());
}

#[test]
fn what_was_committed_outlives_a_crash_and_no_more() {
    let store = MemoryStore::new();
    let (solo, engine) = open(&store);
    run(&engine, put("a", "1")).expect("applied");
    run(&engine, put("gone", "1")).expect("applied");
    run(&engine, delete("gone")).expect("applied");
    solo.commit();
    run(&engine, put("b", "1")).expect("applied");
    drop((solo, engine));
    store.crash();
    let (_solo, engine) = open(&store);
    assert_eq!(items(&engine.view()), [("a".into(), "1".into())]);
    assert_eq!(engine.view().below(), LogPos(3));
    assert_eq!(run(&engine, sum()), Ok("1".into()), "caches are recomputed");
    assert_eq!(total(&engine.view()), 1);
}

#[test]
fn scans_see_overlay_and_store_as_one_in_both_directions() {
    let store = MemoryStore::new();
    let (solo, engine) = open(&store);
    for n in 0..600 {
        run(&engine, put(&format!("k{n:04}"), "1")).expect("applied");
    }
    solo.commit();
    for n in (0..600).step_by(3) {
        run(&engine, delete(&format!("k{n:04}"))).expect("applied");
    }
    for n in (1..600).step_by(3) {
        run(&engine, put(&format!("k{n:04}x"), "2")).expect("applied");
    }
    let view = engine.view();
    let mut expected: Vec<String> = Vec::new();
    for n in 0..600 {
        if n % 3 != 0 {
            expected.push(format!("k{n:04}"));
        }
        if n % 3 == 1 {
            expected.push(format!("k{n:04}x"));
        }
    }
    let keys = |range: &KeyRange, direction| -> Vec<String> {
        let key = |item: Result<(bytes::Bytes, bytes::Bytes), _>| {
            String::from_utf8_lossy(&item.expect("memory does not fail").0).into_owned()
        };
        view.scan(range, direction).map(key).collect()
    };
    assert_eq!(keys(&KeyRange::prefix(b"k"), Direction::Forward), expected);
    expected.reverse();
    assert_eq!(keys(&KeyRange::all(), Direction::Backward)[..expected.len()], expected);
    assert_eq!(keys(&KeyRange::new(&b"k0001"[..], &b"k0003"[..]), Direction::Forward).len(), 3);
}

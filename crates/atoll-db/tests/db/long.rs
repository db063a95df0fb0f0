//! Commands that are longer than an entry of the log, in a cluster whose nodes are killed between their parts.

use std::time::Duration;

use crate::common::world::{NODES, World};
use crate::common::{add, put};
use atoll_core::testing::take_marks;
use atoll_db::{Direction, KeyRange, MemoryStore, ProposeError, Store};

/// A value that differs everywhere, so that a part in a wrong place shows.
fn value(bytes: usize) -> String {
    let words = (0..bytes / 8 + 1).map(|n| format!("{n:07} "));
    let mut value: String = words.collect();
    value.truncate(bytes);
    value
}

/// Checks that the nodes have the same state, with this value under `k`, and that no part is left in their stores.
fn check(world: &mut World, expected: Option<&str>) {
    world.driver.run_for(Duration::from_secs(5));
    for n in 0..NODES as usize {
        let found = world.nodes[n].engine.view().get(b"k").unwrap();
        assert!(found.as_deref() == expected.map(str::as_bytes), "node {n} has another value");
        let parts = world.stores[n].snapshot();
        let parts = parts.page(&KeyRange::prefix(&[u8::MAX]), Direction::Forward, 10).unwrap();
        assert_eq!(parts.len(), 0, "node {n} has parts of a command");
        assert_eq!(world.nodes[n].db.health().found, [], "node {n}");
    }
}

/// Runs the world until node 2 has applied a part, and not the last one.
fn run_into_a_command(world: &mut World) {
    take_marks();
    for _ in 0..200_000 {
        world.driver.run_for(Duration::from_micros(5));
        let marks = take_marks();
        if marks.contains_key("db.parts.kept") {
            assert!(!marks.contains_key("db.parts.whole"));
            return;
        }
    }
    panic!("no part was applied");
}

#[test]
fn a_long_command_is_applied_as_a_whole_before_what_is_proposed_behind_it() {
    let mut world = World::new(31);
    world.driver.run_for(Duration::from_secs(1));
    let long = value(16 << 20);
    let engine = world.nodes[0].engine.clone();
    let mut first = engine.propose(put("k", &long)).unwrap();
    let mut behind = engine.propose_behind(engine.losses(), add("behind", 1)).unwrap();
    world.driver.run_for(Duration::from_secs(10));
    let first = first.try_take().unwrap().unwrap().unwrap();
    let behind = behind.try_take().unwrap().unwrap().unwrap();
    assert!(first.reply.is_ok() && first.position < behind.position && first.index == 0);
    check(&mut world, Some(&long));
    assert_eq!(world.nodes[0].db.health().waiting_commands, 0);
}

#[test]
fn a_command_whose_node_dies_between_two_parts_does_not_happen() {
    let mut world = World::cutting(32, (1_000, 1_000));
    world.driver.run_for(Duration::from_secs(1));
    drop(world.nodes[0].engine.propose(put("k", &value(500_000))).unwrap());
    run_into_a_command(&mut world);
    world.kill(0);
    world.driver.run_for(Duration::from_secs(5));
    // What the node proposes next ends it. The first part of that follows no other.
    let next = value(70_000);
    let mut ticket = world.nodes[0].engine.propose(put("k", &next)).unwrap();
    world.driver.run_for(Duration::from_secs(5));
    assert!(ticket.try_take().unwrap().unwrap().is_ok());
    assert!(take_marks().contains_key("db.parts.abandoned"));
    check(&mut world, Some(&next));
}

#[test]
fn replicas_that_stop_or_are_refilled_between_two_parts_have_the_same_state() {
    for (seed, wiped) in [(33, false), (34, true)] {
        let mut world = World::cutting(seed, (1_000, 1_000));
        world.driver.run_for(Duration::from_secs(1));
        let long = value(300_000);
        let mut ticket = world.nodes[0].engine.propose(put("k", &long)).unwrap();
        run_into_a_command(&mut world);
        for n in [1, 2] {
            if wiped {
                world.stores[n] = MemoryStore::new();
            }
            world.kill(n);
            world.driver.run_for(Duration::from_millis(3));
        }
        world.driver.run_for(Duration::from_secs(20));
        assert!(ticket.try_take().unwrap().unwrap().is_ok(), "seed {seed}");
        check(&mut world, Some(&long));
    }
}

#[test]
fn a_command_that_loses_a_part_did_not_happen_and_neither_did_what_is_behind_it() {
    let mut world = World::cutting(35, (1_000, 1_000));
    world.driver.run_for(Duration::from_secs(1));
    let engine = world.nodes[0].engine.clone();
    let known = engine.losses();
    let mut long = engine.propose(put("k", &value(400_000))).unwrap();
    let mut behind = engine.propose_behind(known, add("behind", 1)).unwrap();
    run_into_a_command(&mut world);
    world.servers.faults(|f| f.append_full = 1_000);
    while long.try_take().is_none_or(|done| {
        assert!(done.unwrap().unwrap_err().did_not_happen());
        false
    }) {
        world.driver.run_for(Duration::from_micros(100));
    }
    world.servers.faults(|f| f.append_full = 0);
    world.driver.run_for(Duration::from_secs(1));
    assert!(matches!(behind.try_take(), Some(Ok(Err(ProposeError::Refused)))));
    let mut next = engine.propose(add("next", 1)).unwrap();
    world.driver.run_for(Duration::from_secs(1));
    assert!(next.try_take().unwrap().unwrap().is_ok());
    assert_eq!(engine.view().get(b"behind").unwrap(), None);
    check(&mut world, None);
}

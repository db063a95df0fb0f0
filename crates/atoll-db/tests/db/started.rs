//! Tests of the start check: a replica that starts with an existing state shows it only after it has been compared with that of a
//! peer.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::world::{NODES, World, with_role};
use crate::common::{add, items, salted};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_db::{Checked, Finding, LogPos, OutOfService, Shelf};

/// Returns every value of a key that a reader at a node sees during four seconds.
fn shown(world: &mut World, n: usize, key: &str) -> Vec<Option<String>> {
    let mut seen = Vec::new();
    for _ in 0..4_000 {
        if let Ok(value) = world.nodes[n].engine.view().get(key.as_bytes()) {
            let value = value.map(|v| String::from_utf8_lossy(&v).into_owned());
            if !seen.contains(&value) {
                seen.push(value);
            }
        }
        world.driver.run_for(Duration::from_millis(1));
    }
    seen
}

fn some(value: &str) -> Option<String> {
    Some(value.to_owned())
}

/// Returns a world in which node 3 is restarted with a state in its store that differs from that of its peers but matches its own
/// hashes, as if the store belonged to another replica.
fn swapped() -> World {
    let mut world = World::new(21);
    world.salts[2] = 1;
    world.kill(2);
    world.driver.run_for(Duration::from_millis(100));
    drop(world.nodes[0].engine.propose(salted("bad")).unwrap());
    // The state is committed, and there are too few entries for running replicas to compare their hashes.
    world.driver.run_for(Duration::from_millis(300));
    assert_eq!(world.nodes[2].db.health().found, []);
    world.kill_keeping(2);
    world
}

#[test]
fn a_value_that_was_altered_while_the_node_was_down_is_never_shown() {
    let mut world = World::altered(20);
    assert_eq!(shown(&mut world, 1, "u00001"), [some("1")]);
    let health = world.nodes[1].db.health();
    assert!(matches!(&health.found[..], [Finding::Rot(_)]), "{health:?}");
    assert_eq!((health.refills, health.checked), (1, Some(Checked::Refilled)));
}

#[test]
fn a_store_with_another_state_is_never_shown() {
    let mut world = swapped();
    assert_eq!(shown(&mut world, 2, "bad"), [some("0")]);
    let health = world.nodes[2].db.health();
    assert!(matches!(&health.found[..], [Finding::Differs(_)]), "{health:?}");
    assert_eq!((health.refills, health.checked), (1, Some(Checked::Refilled)));
    assert_eq!(items(&world.nodes[2].engine.view()), items(&world.nodes[0].engine.view()));
}

/// Without the check, a replica shows both wrong values.
#[test]
fn what_is_not_compared_is_shown() {
    set_mutant(atoll_db::mutants::DB_SERVES_UNCHECKED);
    let (mut altered, mut swapped) = (World::altered(20), swapped());
    let seen = (shown(&mut altered, 1, "u00001"), shown(&mut swapped, 2, "bad"));
    set_mutant(Mutant::NONE);
    assert!(seen.0.contains(&some("7")), "{seen:?}");
    assert!(seen.1.contains(&some("1")), "{seen:?}");
}

/// After a start of all nodes, replicas in their start check are compared with each other, so they do not wait for each other.
#[test]
fn after_a_start_of_all_nodes_nobody_waits_for_long() {
    for seed in 0..20 {
        let mut world = World::new(seed);
        for n in 0..60 {
            world.propose(n % 3, 1);
            world.driver.run_for(Duration::from_millis(2));
        }
        // Each node has committed up to a different position.
        (0..NODES as usize).for_each(|n| world.kill(n));
        let mut late = Duration::ZERO;
        while world.nodes.iter().any(|node| node.db.health().checked.is_none()) {
            world.driver.run_for(Duration::from_millis(1));
            late += Duration::from_millis(1);
        }
        assert!(late <= Duration::from_millis(100), "seed {seed}: compared after {late:?}");
        for node in &world.nodes {
            let health = node.db.health();
            let fine = matches!(health.checked, Some(Checked::Agrees { .. } | Checked::Nothing));
            assert!(fine && health.found.is_empty(), "seed {seed}: {health:?}");
        }
    }
}

/// Commands and barriers wait for the start check and are not refused.
#[test]
fn whoever_comes_while_it_is_compared_waits() {
    let mut world = World::altered(23);
    let node = &world.nodes[1];
    assert_eq!(node.db.health().out_of_service, Some(OutOfService::Checking));
    assert!(node.engine.view().get(b"u00002").is_err());
    let mut barrier = node.engine.barrier();
    world.kill(2);
    let mut command = world.nodes[2].engine.propose(add("more", 1)).unwrap();
    let mut checked = world.nodes[2].engine.checked();
    assert!(checked.try_take().is_none());
    world.driver.run_for(Duration::from_secs(1));
    assert!(checked.try_take().is_some());
    assert!(matches!(command.try_take(), Some(Ok(Ok(_)))));
    assert!(barrier.try_take().is_some());
}

#[test]
fn without_an_answer_it_serves_after_a_while_and_says_so() {
    let mut world = World::new(24);
    for n in 0..30 {
        world.propose(n % 3, 1);
        world.driver.run_for(Duration::from_millis(3));
    }
    world.driver.run_for(Duration::from_millis(300));
    for n in [0, 2] {
        let shelf = Shelf::default();
        world.driver.restart(NodeId(n + 1), |core| with_role(core, &shelf)).unwrap();
    }
    world.down.store(true, Ordering::Relaxed);
    world.kill(1);
    world.driver.run_for(Duration::from_millis(1_900));
    assert_eq!(world.nodes[1].db.health().checked, None);
    assert!(world.nodes[1].engine.view().get(b"u00001").is_err());
    world.driver.run_for(Duration::from_millis(400));
    let health = world.nodes[1].db.health();
    assert_eq!((health.checked, health.out_of_service), (Some(Checked::Unanswered), None));
    assert_eq!(world.nodes[1].engine.view().get(b"u00001").unwrap().unwrap(), "1");
    assert!(world.nodes[1].engine.view().below() > LogPos::ZERO);
}

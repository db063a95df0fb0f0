//! Tests of replicas on one virtual log. Its Loglets fail and are extended; its nodes are killed and lose what they did not
//! persist. The oracles see only what clients see. They check that commands are applied exactly once and in the order of each
//! node's proposals, that reads after a barrier are linearizable, and that states at equal positions are equal.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::common::{self, world::World};
use crate::common::{add, items};
use atoll_contract::LogPos;
use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::{NodeId, Ticket};
use atoll_db::{
    BarrierError, Direction, Finding, Halt, KeyRange, MemoryStore, OutOfService, ProposeError, RotKind,
};

fn scenario(seed: u64) {
    // In half of the runs, every command is cut into parts.
    let mut world = if seed.is_multiple_of(2) { World::new(seed) } else { World::cutting(seed, (5, 4)) };
    world.run(seed);
    world.judge(seed);
}

#[test]
fn replicas_agree_under_faults() {
    take_marks();
    for seed in 0..100 {
        scenario(seed);
    }
    let marks = take_marks();
    for mark in [
        "db.propose.create",
        "db.tailer.trimmed",
        "db.refilled",
        "db.upkeep.trim",
        "vlog.check_tail.sealed",
        "vlog.append.found",
        "db.parts.whole",
        "db.parts.abandoned",
        "db.propose.long_given_up",
    ] {
        assert!(marks.contains_key(mark), "{mark} was never reached; reached: {marks:?}");
    }
}

#[test]
fn mutants_are_caught_from_outside() {
    for mutant in [
        atoll_db::mutants::DB_BARRIER_WITHOUT_CHECK,
        atoll_db::mutants::DB_VIEW_BEFORE_EVENTS,
        atoll_db::mutants::DB_COMMIT_AHEAD_OF_STATE,
        atoll_db::mutants::DB_PARTS_UNCHECKED,
        atoll_db::mutants::DB_PARTS_IN_MEMORY,
    ] {
        set_mutant(mutant);
        let caught = (0..20).filter(|s| catch_unwind(AssertUnwindSafe(|| scenario(*s))).is_err()).count();
        set_mutant(Mutant::NONE);
        println!("{mutant:?}: caught by {caught} of 20 seeds");
        assert!(caught > 0, "{mutant:?} was not noticed");
    }
}

#[test]
fn a_replica_that_differs_is_noticed_and_refilled() {
    let mut world = World::new(7);
    world.salts[2] = 1;
    world.kill(2);
    for n in 0..400 {
        world.propose(n % 3, 1);
        world.driver.run_for(Duration::from_millis(3));
    }
    let told = world.nodes[2].db.health();
    assert_eq!((told.refills, told.divergence), (0, None));
    let engine = world.nodes[0].engine.clone();
    drop(engine.propose(common::salted("bad")).unwrap());
    for n in 0..400 {
        world.propose(n % 3, 1);
        world.driver.run_for(Duration::from_millis(3));
    }
    let found = |n: usize| world.nodes[n].db.health().found;
    let [Finding::Differs(wrong)] = &found(0)[..] else { panic!("{:?}", found(0)) };
    assert_eq!(wrong.peer, NodeId(3), "found by those that are right");
    assert_ne!(wrong.mine, wrong.theirs);
    let [Finding::Differs(told)] = &found(2)[..] else { panic!("{:?}", found(2)) };
    assert_eq!(told.mine, wrong.theirs, "and by the one that is wrong, with both hashes and where that is");
    assert_eq!(world.nodes[0].db.health().divergence, None, "all agree again");
    assert_eq!(world.nodes[2].db.health().refills, 1);
    assert_eq!(world.nodes[0].db.health().refills, 0);
    let bad = |n: usize| world.nodes[n].engine.view().get(b"bad").unwrap();
    assert_eq!(bad(2), bad(0));
}

/// Doors write nothing that is so long, but earlier ones did. Every replica has it, so one that is refilled must get it.
#[test]
fn a_row_longer_than_any_chunk_reaches_a_replica_that_is_refilled() {
    let mut world = World::new(13);
    let engine = world.nodes[0].engine.clone();
    for (key, bytes) in [("a", 10), ("b", 5_000_000), ("c", 10), ("d", 3_000_000)] {
        drop(engine.propose(common::long(key, bytes)).unwrap());
    }
    let run = |world: &mut World| {
        for n in 0..200 {
            world.propose(n % 2, 1);
            world.driver.run_for(Duration::from_millis(3));
        }
    };
    run(&mut world);
    // Everything up to here is trimmed from the log, which keeps 20 entries.
    world.stores[2] = MemoryStore::new();
    world.kill(2);
    run(&mut world);
    assert_eq!(world.nodes[2].db.health().refills, 1);
    assert_eq!(world.nodes[2].engine.view().get(b"b").unwrap().unwrap().len(), 5_000_000);
    assert!(items(&world.nodes[2].engine.view()) == items(&world.nodes[0].engine.view()));
}

/// A replica that is found to be wrong accepts no reads or writes until it has been refilled from a peer.
#[test]
fn a_replica_that_is_wrong_serves_nobody() {
    let mut world = World::altered(11);
    // Its peers count as down, so the refill has to wait.
    world.down.store(true, Ordering::Relaxed);
    world.driver.run_for(Duration::from_secs(2));
    let node = &world.nodes[1];
    let health = node.db.health();
    assert!(matches!(health.withheld, Some(Finding::Rot(_))), "{health:?}");
    assert!(node.engine.is_withheld());
    assert!(node.engine.view().get(b"u00001").is_err(), "a read at a replica that is wrong");
    let mut scan = node.engine.view().scan(&KeyRange::all(), Direction::Forward);
    assert!(scan.next().is_some_and(|item| item.is_err()));
    let mut refused = node.engine.propose(add("more", 1)).unwrap();
    assert!(matches!(refused.try_take(), Some(Ok(Err(ProposeError::Withheld)))));
    let mut refused = node.engine.barrier();
    assert!(matches!(refused.try_take(), Some(Ok(Err(BarrierError::Withheld)))));
    world.down.store(false, Ordering::Relaxed);
    world.driver.run_for(Duration::from_secs(4));
    let node = &world.nodes[1];
    let health = node.db.health();
    assert_eq!((health.refills, &health.withheld, health.found_total), (1, &None, 1), "{health:?}");
    assert_eq!(node.engine.view().get(b"u00001").unwrap().unwrap(), "1");
    assert_eq!(items(&node.engine.view()), items(&world.nodes[0].engine.view()));
}

#[test]
fn a_poison_command_stops_all_replicas_at_one_position() {
    let mut world = World::new(9);
    for n in 0..30 {
        world.propose(n % 3, 1);
        world.driver.run_for(Duration::from_millis(3));
    }
    let poison = world.nodes[0].engine.propose(common::panic("p")).unwrap();
    // When the replica halts, some of these commands have been sent and some are still queued.
    let mut behind = Vec::new();
    while world.nodes[0].engine.halted().is_none() {
        behind.push(world.nodes[0].engine.propose(add("behind", 1)).unwrap());
        world.driver.run_for(Duration::from_micros(50));
    }
    world.driver.run_for(Duration::from_millis(200));
    let after = world.nodes[1].engine.propose(add("after", 1)).unwrap();
    let halts: Vec<_> = world.nodes.iter().map(|node| node.engine.halted().unwrap()).collect();
    let Halt::Poison { at, app: "map", .. } = &halts[0] else { panic!("{:?}", halts[0]) };
    assert!(halts.iter().all(|halt| *halt == halts[0]), "{halts:?}");
    for node in &world.nodes {
        assert_eq!(node.engine.view().below(), *at, "whole entries, up to the one that is poison");
        assert!(!items(&node.engine.view()).is_empty(), "reads continue");
    }
    let end = |mut ticket: atoll_db::Proposed| ticket.try_take().unwrap().unwrap().unwrap_err();
    assert!(!end(poison).did_not_happen());
    assert!(end(after).did_not_happen());
    behind.into_iter().for_each(|ticket| drop(end(ticket)));
    assert_eq!(world.nodes[0].db.health().waiting_commands, 0, "everybody is answered");
    // The poison command still halts the replica after a restart, and nothing before it was lost.
    world.kill(2);
    world.driver.run_for(Duration::from_millis(500));
    assert_eq!(world.nodes[2].engine.halted().as_ref(), Some(&halts[0]));
    assert_eq!(items(&world.nodes[2].engine.view()), items(&world.nodes[0].engine.view()));
}

#[test]
fn a_store_that_was_altered_is_found_and_refilled() {
    let mut world = World::altered(8);
    world.driver.run_for(Duration::from_secs(4));
    let health = world.nodes[1].db.health();
    let [Finding::Rot(rot)] = &health.found[..] else { panic!("{health:?}") };
    assert!(rot.keys.contains(b"\x01u00001") && !rot.keys.contains(b"\x01u00060"), "{rot}");
    assert!(matches!(rot.kind, RotKind::Differs { written, read } if written != read), "{rot}");
    assert_eq!((health.refills, health.withheld), (1, None));
    assert_eq!(health.scrubbed.unwrap().wrong, None, "after the refill it is well");
    assert_eq!(world.nodes[1].engine.view().get(b"u00001").unwrap().unwrap(), "1");
    assert_eq!(world.nodes[0].db.health().refills, 0);
}

/// A scrub pauses after each page. Of a large store it takes hours, in which the log would only grow.
#[test]
fn the_log_is_trimmed_while_a_store_is_scrubbed() {
    let mut world = World::new(17);
    let step = |world: &mut World, n: usize| {
        world.propose(n % 3, 1);
        world.driver.run_for(Duration::from_millis(3));
    };
    for n in 0..400 {
        step(&mut world, n);
    }
    let earlier = world.nodes[0].db.health().scrubbed;
    world.nodes[0].db.scrub();
    let (mut trim, mut steps) = (LogPos::ZERO, 0);
    let scrubbed = loop {
        match world.nodes[0].db.health().scrubbed {
            Some(scrubbed) if Some(&scrubbed) != earlier.as_ref() => break scrubbed,
            _ => trim = world.nodes[0].log.chain().unwrap().chain.trim(),
        }
        step(&mut world, steps);
        steps += 1;
        assert!(steps < 4_000, "the scrub never ends");
    };
    assert!(steps > 60, "the scrub took only {steps} steps");
    assert!(
        trim > scrubbed.below,
        "trimmed below {trim} while the state below {} was scrubbed",
        scrubbed.below
    );
}

/// The ticket is complete on return, so the test does not have to run the world.
#[test]
fn a_command_that_is_too_large_is_refused_at_once() {
    let world = World::new(1);
    let mut ticket: Ticket<_> =
        world.nodes[0].engine.propose(vec![0; atoll_db::MAX_LONG_COMMAND_BYTES + 1].into()).unwrap();
    assert!(matches!(ticket.try_take(), Some(Ok(Err(ProposeError::TooLarge { .. })))));
}

/// A refused caller waits for room for its whole command. If it waited for less, the wait would end immediately each time, although
/// the command does not fit.
#[test]
fn what_is_refused_waits_for_room_for_all_of_it() {
    let mut world = World::new(2);
    let engine = world.nodes[0].engine.clone();
    let large = add(&"k".repeat(900_000), 1);
    let mut taken = Vec::new();
    let busy = loop {
        match engine.propose(large.clone()) {
            Ok(ticket) => taken.push(ticket),
            Err(busy) => break busy,
        }
    };
    assert_eq!((busy.commands, busy.refused_bytes), (taken.len(), large.len()));
    let mut room = std::pin::pin!(engine.room(&busy));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut cx).is_pending(), "{} bytes wait, and more would fit", busy.bytes);
    assert!(engine.propose(add("small", 1)).is_ok(), "there is room for what is small");
    world.driver.run_for(Duration::from_secs(5));
    assert!(room.as_mut().poll(&mut cx).is_ready());
    assert!(engine.propose(large).is_ok());
}

/// A session that wrote one thing after another relies on it: what it wrote later is there only if what it wrote before is.
#[test]
fn after_a_failed_append_nothing_is_applied_that_was_proposed_behind_it() {
    let mut world = World::new(14);
    world.driver.run_for(Duration::from_secs(1));
    world.servers.faults(|f| f.append_full = 1_000);
    let engine = world.nodes[0].engine.clone();
    let known = engine.losses();
    // More than the entries in flight take.
    let propose = |n| engine.propose(add(&format!("k{n:03}"), 1)).unwrap();
    let mut tickets: Vec<_> = (0..200).map(propose).collect();
    let first = loop {
        world.driver.run_for(Duration::from_micros(20));
        if let Some(first) = tickets[0].try_take() {
            break first.unwrap();
        }
    };
    assert!(first.unwrap_err().did_not_happen());
    world.servers.faults(|f| f.append_full = 0);
    // This caller does not know of it yet.
    let mut late = engine.propose_behind(known, add("k999", 1)).unwrap();
    assert!(matches!(late.try_take(), Some(Ok(Err(ProposeError::Refused)))));
    world.driver.run_for(Duration::from_secs(5));
    for ticket in &mut tickets[1..] {
        assert!(ticket.try_take().unwrap().unwrap().unwrap_err().did_not_happen());
    }
    assert_eq!(engine.view().get(b"k199").unwrap(), None);
    let mut next = engine.propose_behind(engine.losses(), add("k999", 1)).unwrap();
    world.driver.run_for(Duration::from_secs(1));
    assert!(next.try_take().unwrap().unwrap().is_ok());
    assert_eq!(world.nodes[0].db.health().waiting_commands, 0);
}

/// A clock that is far ahead does not advance the log's time. The other nodes continue to propose, and the node itself proposes
/// again once its clock is correct (X29).
#[test]
fn a_clock_far_ahead_is_refused_by_name_until_it_is_right() {
    let mut world = World::new(12);
    let century_ms = 100 * 365 * 86_400_000;
    let write = |world: &mut World, n: usize| {
        let mut ticket = world.nodes[n].engine.propose(add("clock", 1)).unwrap();
        world.driver.run_for(Duration::from_secs(1));
        ticket.try_take().unwrap().unwrap()
    };
    assert!(write(&mut world, 0).is_ok());
    world.ahead_ms[0].store(century_ms, Ordering::Relaxed);
    for _ in 0..3 {
        let refused = write(&mut world, 0).unwrap_err();
        assert!(refused.did_not_happen());
        let ProposeError::ClockAhead(ahead) = refused else { panic!("{refused}") };
        assert_eq!((ahead.node, ahead.of), (NodeId(1), vec![NodeId(2), NodeId(3)]));
        assert!(ahead.ahead_ms >= century_ms, "{}", ahead.ahead_ms);
    }
    let health = world.nodes[0].db.health();
    assert!(matches!(health.out_of_service, Some(OutOfService::ClockAhead(_))), "{health:?}");
    assert_eq!(health.waiting_commands, 0, "what is refused waits no more");
    assert!(write(&mut world, 1).unwrap().time_ms < century_ms);
    world.ahead_ms[0].store(0, Ordering::Relaxed);
    assert!(write(&mut world, 0).unwrap().time_ms < century_ms);
    assert_eq!(world.nodes[0].db.health().out_of_service, None);
    assert!(world.nodes.iter().all(|node| node.engine.view().get(b"clock").unwrap().unwrap() == "3"));
}

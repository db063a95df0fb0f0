//! Surgery on the log of a database (virtuallog §7): replicas that have halted at an entry continue once it has changed, and it changes
//! only if no replica has applied it.

use std::time::Duration;

use crate::common::world::{World, with_role};
use crate::common::{add, items, panic, panic_unsalted, put};
use atoll_contract::{LogPos, ReadFrom};
use atoll_core::{Level, NodeId};
use atoll_db::{Direction, Halt, KeyRange, MemoryStore, NotFenced, OperateError, ProposeError, Shelf, Store};
use atoll_log::surgery::hash_of;
use atoll_log::{Incision, SurgeryError};
use bytes::{BufMut, Bytes, BytesMut};

/// Returns a world in which all members can read what surgery writes.
fn new_world(seed: u64) -> World {
    let mut world = World::new(seed);
    (0..3).for_each(|n| raise_level(&mut world, n));
    world
}

/// Tells a node the level of the cluster, as it must be told after each start.
fn raise_level(world: &mut World, n: usize) {
    world.driver.env(NodeId(n as u32 + 1)).levels().learn(Level::CURRENT).unwrap();
}

fn kill(world: &mut World, n: usize) {
    world.kill(n);
    raise_level(world, n);
}

/// Proposes a command through a node, and returns its outcome.
fn propose(world: &mut World, n: usize, command: Bytes) -> Result<LogPos, ProposeError> {
    let ticket = world.nodes[n].engine.propose(command).unwrap();
    let node = NodeId(n as u32 + 1);
    world.driver.block_on(node, ticket).unwrap().map(|applied| applied.position)
}

/// Proposes a command that stops replicas, and returns its position. All but those in `pass` stop.
fn poison(world: &mut World, n: usize, command: Bytes, pass: &[usize]) -> LogPos {
    let Err(ProposeError::Halted(halt)) = propose(world, n, command) else { panic!("it is poison") };
    let at = halt.at_entry().unwrap();
    world.driver.run_for(Duration::from_millis(200));
    for m in (0..3).filter(|m| !pass.contains(m)) {
        assert!(matches!(world.nodes[m].db.halted(), Some(Halt::Poison { at: here, .. }) if here == at));
    }
    at
}

fn incision(at: LogPos, with: Option<Bytes>) -> Incision {
    Incision { at, with, operator: "ann".into(), reason: "it stops every replica".into(), take_over: false }
}

fn operate(world: &mut World, n: usize, incision: Incision) -> Result<(), OperateError> {
    let ticket = world.nodes[n].db.operate(incision);
    world.driver.block_on(NodeId(n as u32 + 1), ticket).unwrap().map(drop)
}

/// Returns the payload that readers get at a position.
fn payload(world: &mut World, at: LogPos) -> Bytes {
    let ticket = world.nodes[0].log.read(at..at.plus(1), 1, ReadFrom::Anywhere);
    world.driver.block_on(NodeId(1), ticket).unwrap().unwrap().entries[0].payload.clone()
}

/// Returns an entry with the head of another one and a single command.
fn entry_like(old: &Bytes, command: &Bytes) -> Bytes {
    let mut new = BytesMut::from(&old[..32]);
    new.put_slice(&[1, 1]);
    new.put_u32_le(command.len() as u32);
    new.put_slice(command);
    new.freeze()
}

fn all_continue(world: &mut World) {
    world.driver.run_for(Duration::from_secs(2));
    for n in 0..3 {
        assert_eq!(world.nodes[n].db.halted(), None, "replica {n} continues");
        propose(world, n, add("after", 1)).unwrap();
    }
    world.driver.run_for(Duration::from_millis(200));
    let states: Vec<_> = (0..3).map(|n| items(&world.nodes[n].engine.view())).collect();
    assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
}

#[test]
fn replicas_that_stopped_at_an_entry_continue_without_it() {
    let mut world = new_world(3);
    propose(&mut world, 0, put("a", "1")).unwrap();
    let at = poison(&mut world, 1, panic("x"), &[]);
    let old = payload(&mut world, at);
    let ticket = world.nodes[2].db.operate(incision(at, None));
    let record = world.driver.block_on(NodeId(3), ticket).unwrap().unwrap();
    assert_eq!((record.at, record.node, record.old_hash), (at, NodeId(3), hash_of(&old)));
    all_continue(&mut world);
    // A replica that replays the log does not stop either.
    kill(&mut world, 0);
    all_continue(&mut world);
}

#[test]
fn replicas_that_stopped_at_an_entry_continue_with_another_one_in_its_place() {
    let mut world = new_world(4);
    let at = poison(&mut world, 0, panic("x"), &[]);
    let old = payload(&mut world, at);
    // The first replacement stops them again, and is itself replaced.
    operate(&mut world, 1, incision(at, Some(entry_like(&old, &panic("y"))))).unwrap();
    world.driver.run_for(Duration::from_secs(2));
    assert!(world.nodes.iter().all(|node| node.db.halted().is_some()));
    operate(&mut world, 1, incision(at, Some(entry_like(&old, &put("instead", "7"))))).unwrap();
    all_continue(&mut world);
    assert_eq!(world.nodes[0].engine.view().get(b"instead").unwrap().unwrap(), "7");
    let records = world.nodes[1].log.chain().unwrap().chain.surgery().records().len();
    assert_eq!(records, 2);
}

#[test]
fn the_parts_of_a_command_whose_last_one_is_excised_go_too() {
    let mut world = World::cutting(9, (50, 30));
    propose(&mut world, 0, put("a", "1")).unwrap();
    let at = poison(&mut world, 1, panic(&"x".repeat(200)), &[]);
    let parts = |world: &World, n: usize| {
        let snapshot = world.stores[n].snapshot();
        snapshot.page(&KeyRange::prefix(&[u8::MAX]), Direction::Forward, 100).unwrap().len()
    };
    operate(&mut world, 0, incision(at, None)).unwrap();
    all_continue(&mut world);
    world.driver.run_for(Duration::from_secs(1));
    assert_eq!([0, 1, 2].map(|n| parts(&world, n)), [0, 0, 0]);
}

#[test]
fn an_entry_that_a_replica_has_applied_stays() {
    let mut world = new_world(5);
    world.salts[2] = 1;
    kill(&mut world, 2);
    let at = poison(&mut world, 0, panic_unsalted("x"), &[2]);
    assert!(world.nodes[2].engine.view().below() > at);
    let refused = operate(&mut world, 1, incision(at, None));
    let Err(OperateError::NotFenced { why, held: false, .. }) = refused else { panic!("{refused:?}") };
    assert!(matches!(why, NotFenced::Passed { node: NodeId(3), .. }), "{why:?}");
    assert_eq!(world.nodes[1].log.chain().unwrap().chain.surgery().held(), None);
    // With another program, the others apply it, too.
    for n in 0..2 {
        world.salts[n] = 1;
        kill(&mut world, n);
    }
    all_continue(&mut world);
    assert!(world.nodes[0].engine.view().get(b"x").unwrap().is_some());
}

#[test]
fn surgery_waits_for_every_replica_and_is_given_up_without_an_answer() {
    let mut world = new_world(6);
    let at = poison(&mut world, 0, panic("x"), &[]);
    // Node 3 is up, and has not opened its database.
    let shelf = Shelf::default();
    world.driver.restart(NodeId(3), |core| with_role(core, &shelf)).unwrap();
    let refused = operate(&mut world, 0, incision(at, None));
    let Err(OperateError::NotFenced { why, held: false, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(why, NotFenced::Silent(vec![3]));
    kill(&mut world, 2);
    world.driver.run_for(Duration::from_secs(1));
    operate(&mut world, 0, incision(at, None)).unwrap();
    all_continue(&mut world);
}

/// Takes the store of a node, and starts the node again.
fn lose_store(world: &mut World, n: usize) {
    world.stores[n] = MemoryStore::new();
    kill(world, n);
    world.driver.run_for(Duration::from_secs(1));
}

#[test]
fn surgery_does_not_wait_for_a_replica_to_which_no_peer_sends_its_state() {
    let mut world = new_world(8);
    for n in 0..60 {
        propose(&mut world, 0, put(&format!("k{n}"), "1")).unwrap();
        world.driver.run_for(Duration::from_millis(5));
    }
    let at = poison(&mut world, 0, panic("x"), &[]);
    let trim = world.nodes[0].log.chain().unwrap().chain.trim();
    assert!(trim > LogPos::ZERO, "a replica without a store needs the state of a peer");
    lose_store(&mut world, 2);
    assert_eq!(world.nodes[2].engine.view().below(), LogPos::ZERO);
    operate(&mut world, 1, incision(at, None)).unwrap();
    all_continue(&mut world);
}

#[test]
fn a_surgery_that_was_cut_short_ends_by_itself() {
    let mut world = new_world(9);
    let first = propose(&mut world, 0, put("a", "1")).unwrap();
    let at = poison(&mut world, 0, panic("x"), &[]);
    // Its node dies before it has asked anybody.
    let begin = |world: &mut World, at| {
        let ticket = world.nodes[0].log.hold(incision(at, None), 7);
        world.driver.block_on(NodeId(1), ticket).unwrap().unwrap();
        kill(world, 0);
    };
    begin(&mut world, first);
    lose_store(&mut world, 2);
    assert_eq!(world.nodes[2].engine.view().below(), first, "the position is held");
    let refused = operate(&mut world, 1, incision(at, None));
    assert!(matches!(refused, Err(OperateError::Log(SurgeryError::UnderWay { .. }))), "{refused:?}");
    world.driver.run_for(Duration::from_secs(3));
    assert_eq!(world.nodes[2].engine.view().below(), at, "it is held no more");
    begin(&mut world, at);
    // Nobody needs to wait.
    operate(&mut world, 1, Incision { take_over: true, ..incision(at, None) }).unwrap();
    all_continue(&mut world);
}

#[test]
fn a_replacement_must_be_an_entry() {
    let mut world = new_world(7);
    let at = poison(&mut world, 0, panic("x"), &[]);
    let garbage = incision(at, Some(Bytes::from_static(b"garbage")));
    assert_eq!(operate(&mut world, 0, garbage), Err(OperateError::NotAnEntry));
    assert_eq!(world.nodes[0].db.halted().unwrap().at_entry(), Some(at));
}

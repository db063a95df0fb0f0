//! Hand-over of a group (rmwpaxos §9a): growth, replacement, dead movers, rival movers, registers that are created meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::clients::{self, Memory, Shared};
use crate::common::world::{Faults, World, member, members, storage_of};
use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, RegisterError, Registers, Version, Written};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_rmwpaxos::{GroupConfig, HandOverError, Member};
use bytes::Bytes;

fn write(world: &mut World, history: &Shared, node: u32, name: &str, expected: u64) {
    let nonce = u128::from(world.rng.next()) << 32 | 1;
    let (r, h) = (world.registers(node), history.clone());
    let value = Bytes::from(format!("{name} {expected}"));
    let done = world.run_on(node, clients::write(r, h, name.to_owned(), expected, value, nonce));
    assert_eq!(
        done.unwrap().map(|w| matches!(w, Written::Yes(_))),
        Ok(true),
        "write of {name} at {expected}"
    );
}

fn read(world: &mut World, history: &Shared, node: u32, name: &str) -> Option<u64> {
    let (r, h) = (world.registers(node), history.clone());
    world.run_on(node, clients::read(r, h, name.to_owned())).unwrap()
}

fn list(world: &mut World, node: u32, prefix: &str) -> Vec<String> {
    let (r, prefix) = (world.registers(node), prefix.to_owned());
    let listed = world.run_on(node, async move { r.list(&prefix).await }).unwrap().unwrap();
    listed.into_iter().map(|l| l.name).collect()
}

fn hand_over(world: &mut World, node: u32, to: Vec<Member>) -> Result<GroupConfig, HandOverError> {
    let ticket = world.registers(node).hand_over(to);
    world.run_on(node, ticket).unwrap().unwrap()
}

/// Checks the protocol only, for registers that were written without a history.
fn sound_protocol(world: &mut World) {
    world.oracle.check();
    assert!(world.oracle.violations.is_empty(), "{:#?}", world.oracle.violations);
}

fn sound(world: &mut World, history: &Shared) {
    world.oracle.check();
    let mut violations = std::mem::take(&mut world.oracle.violations);
    violations.extend(history.lock().unwrap().check());
    assert!(violations.is_empty(), "{violations:#?}");
}

#[test]
fn one_node_grows_to_three_to_five_and_moves_to_three_others() {
    let mut world = World::new(1, 8, &[1]);
    world.start_all();
    let history = Shared::default();
    for n in 0..40 {
        write(&mut world, &history, 1 + n % 8, &format!("log/{n:02}"), 0);
    }
    for (epoch, group) in [(2, vec![1, 2, 3]), (3, vec![1, 2, 3, 4, 5]), (4, vec![6, 7, 8])] {
        let now = hand_over(&mut world, 2, members(&group)).unwrap();
        assert_eq!(now, GroupConfig::new(epoch, members(&group)).unwrap());
        for n in 0..40u32 {
            let name = format!("log/{n:02}");
            assert_eq!(read(&mut world, &history, 1 + (n + 1) % 8, &name), Some(epoch - 1));
            write(&mut world, &history, 1 + (n + 2) % 8, &name, epoch - 1);
        }
        assert_eq!(list(&mut world, 4, "log/").len(), 40);
        assert_eq!(list(&mut world, 4, "log/1").len(), 10);
    }
    // The nodes of the first group are no longer needed, and the registers survive a restart of the others.
    for n in [1, 2, 3, 4, 5, 6] {
        world.crash(NodeId(n));
    }
    world.start(NodeId(6));
    world.run_for(Duration::from_secs(1));
    assert_eq!(read(&mut world, &history, 6, "log/07"), Some(4));
    sound(&mut world, &history);
}

/// Writes registers named `log/0000` and so on.
fn create(world: &mut World, registers: u32) {
    let r = world.registers(1);
    let write_all = async move {
        for n in 0..registers {
            let value = Bytes::from(n.to_string());
            let nonce = Nonce(u128::from(n) + 1);
            r.register(&format!("log/{n:04}")).write_if(Version(0), value, nonce).await.unwrap();
        }
    };
    world.run_on(1, write_all).unwrap();
}

#[test]
fn thousands_of_registers_are_listed_and_moved_in_pages() {
    let mut world = World::new(4, 3, &[1]);
    world.start_all();
    create(&mut world, 2_300);
    assert_eq!(list(&mut world, 2, "").len(), 2_300);
    hand_over(&mut world, 1, members(&[2, 3])).unwrap();
    let names = list(&mut world, 1, "log/");
    assert_eq!(names.len(), 2_300);
    assert!(names.is_sorted());
    assert_eq!(list(&mut world, 1, "log/22").len(), 100);
    let r = world.registers(3);
    let read = world.run_on(3, async move { r.register("log/2299").read().await }).unwrap().unwrap();
    assert_eq!((read.version, read.value), (Version(1), Bytes::from("2299")));
}

#[test]
fn a_hand_over_may_take_longer_than_one_of_its_steps() {
    let mut world = World::new(6, 3, &[1]);
    world.options.hand_over_deadline = Duration::from_secs(2);
    world.start_all();
    create(&mut world, 1_200);
    world.faults.sync_us = 40_000;
    let begun = world.now;
    hand_over(&mut world, 1, members(&[2, 3])).unwrap();
    let took = world.now.since(begun);
    assert!(
        took > world.options.hand_over_deadline * 3 / 2,
        "only {took:?}: the disks are too fast for this test"
    );
    world.faults.sync_us = Faults::NONE.sync_us;
    assert_eq!(list(&mut world, 3, "log/").len(), 1_200);
}

#[test]
fn a_mover_that_gave_up_continues_where_it_stopped() {
    let mut world = World::new(7, 3, &[1]);
    world.options.hand_over_deadline = Duration::from_secs(2);
    world.start_all();
    let history = Shared::default();
    create(&mut world, 1_200);
    let ticket = world.registers(1).hand_over(members(&[2, 3]));
    while world.marks.get("rmw.move.final").is_none_or(|n| *n < 1_100) {
        assert!(world.step());
    }
    world.cut = [(1, 3), (3, 1), (2, 3), (3, 2)].map(|(a, b)| (NodeId(a), NodeId(b))).into();
    let given_up = world.run_on(1, ticket).unwrap().unwrap();
    assert!(matches!(given_up, Err(HandOverError::Unfinished(_))), "{given_up:?}");
    world.cut.clear();
    let ticket = world.registers(1).finish_hand_over();
    assert_eq!(world.run_on(1, ticket).unwrap().unwrap().unwrap().epoch, 2);
    // Those that were under way were made final, but not installed.
    let twice = world.marks["rmw.move.final"] - 1_200;
    assert!(twice <= 2 * 16, "{twice} registers were made final again");
    // A new register may have a name among those that were carried over first.
    write(&mut world, &history, 2, "log/0000x", 0);
    assert_eq!(list(&mut world, 3, "log/").len(), 1_201);
    world.crash(NodeId(1));
    for name in ["log/0000", "log/0999", "log/1099", "log/1199"] {
        assert_eq!(read(&mut world, &history, 3, name), Some(1), "{name}");
    }
    sound_protocol(&mut world);
}

/// Writes a register for the first time, with a state of about `bytes`. Returns whether there was room.
fn fill(world: &mut World, history: &Shared, node: u32, name: &str, bytes: usize) -> bool {
    put(world, history, node, name, (0, bytes))
}

/// Writes a register at a version, with a state of about `bytes`. Returns whether there was room.
fn put(world: &mut World, history: &Shared, node: u32, name: &str, (expected, bytes): (u64, usize)) -> bool {
    let (r, h, nonce) = (world.registers(node), history.clone(), u128::from(world.rng.next()) << 32 | 1);
    let value = Bytes::from(vec![b'v'; bytes]);
    match world.run_on(node, clients::write(r, h, name.to_owned(), expected, value, nonce)).unwrap() {
        Ok(Written::Yes(_)) => true,
        Err(
            RegisterError::NotWritten(Unavailability::DiskFull)
            | RegisterError::Unknown(Unavailability::DiskFull),
        ) => false,
        other => panic!("write of {name}: {other:?}"),
    }
}

#[test]
fn a_full_group_hands_over() {
    let mut world = World::new(8, 4, &[1, 2, 3]);
    world.capacity_bytes = 5_000;
    world.options.deadline = Duration::from_millis(200);
    world.options.hand_over_deadline = Duration::from_secs(2);
    world.start_all();
    let history = Shared::default();
    let names: Vec<String> = (0..100).map(|n| format!("log/{n:02}")).collect();
    let held = names.iter().position(|name| !fill(&mut world, &history, 1, name, 200)).unwrap();
    // Then not even the root register has room.
    let _ = ["x", "y", "z"].iter().position(|name| !fill(&mut world, &history, 1, name, 0)).unwrap();
    for (epoch, group) in [(2, vec![2, 3, 4]), (3, vec![1, 3, 4])] {
        assert_eq!(hand_over(&mut world, 1, members(&group)).unwrap().epoch, epoch);
        for name in &names[..held] {
            assert_eq!(read(&mut world, &history, 2, name), Some(1), "{name} in epoch {epoch}");
        }
        // It is still full.
        assert!(!fill(&mut world, &history, 3, "more", 200));
    }
    sound(&mut world, &history);
}

#[test]
fn a_group_without_room_for_new_registers_writes_the_old_ones_and_hands_over() {
    let mut world = World::new(10, 4, &[1, 2, 3]);
    world.capacity_bytes = 8_000;
    world.start_all();
    let history = Shared::default();
    let names: Vec<String> = (0..100).map(|n| format!("log/{n:02}")).collect();
    let held = names.iter().position(|name| !fill(&mut world, &history, 1, name, 200)).unwrap();
    for (node, name) in [(1, "more/1"), (2, "more/2"), (3, "more/3")] {
        let began = world.now;
        assert!(!fill(&mut world, &history, node, name, 200), "{name}");
        assert!(world.now.since(began) < Duration::from_millis(20), "a refusal needs no second attempt");
    }
    // Each is written by a node that has its token, and by one that prepares it.
    for (i, name) in names[..held].iter().enumerate() {
        assert!(put(&mut world, &history, 1 + i as u32 % 2, name, (1, 210)), "{name}");
    }
    assert_eq!(hand_over(&mut world, 1, members(&[2, 3, 4])).unwrap().epoch, 2);
    for name in &names[..held] {
        assert!(put(&mut world, &history, 3, name, (2, 220)), "{name}");
    }
    assert!(!fill(&mut world, &history, 3, "more", 200));
    sound(&mut world, &history);
}

#[test]
fn a_member_above_the_mark_votes_for_registers_that_it_has_missed() {
    let mut world = World::new(11, 3, &[1, 2, 3]);
    world.start(NodeId(1));
    world.start(NodeId(2));
    world.capacity_bytes = 4_000;
    world.start(NodeId(3));
    let history = Shared::default();
    for n in 0..10 {
        assert!(fill(&mut world, &history, 1, &format!("log/{n}"), 200));
    }
    for (node, name) in [(1, "written/1"), (2, "written/2"), (2, "read")] {
        assert!(fill(&mut world, &history, node, name, 10), "{name}");
    }
    assert!(!world.marks.contains_key("rmw.write.missed_by_full"));
    // Now node 3 belongs to every majority. It is above the mark, and has none of the last three.
    world.crash(NodeId(1));
    assert_eq!(read(&mut world, &history, 3, "read"), Some(1));
    write(&mut world, &history, 3, "written/1", 1);
    write(&mut world, &history, 2, "written/2", 1);
    write(&mut world, &history, 3, "read", 1);
    assert!(world.marks.contains_key("rmw.write.missed_by_full"));
    // A register that nobody has is refused, and not only when the time is up.
    let began = world.now;
    assert!(!fill(&mut world, &history, 2, "new", 10));
    assert!(world.now.since(began) < Duration::from_secs(1));
    assert_eq!(read(&mut world, &history, 3, "new"), Some(0));
    sound(&mut world, &history);
}

#[test]
fn a_lost_disk_is_replaced_although_two_groups_exceed_the_capacity_and_one_member_lags() {
    let mut world = World::new(9, 3, &[1, 2, 3]);
    world.capacity_bytes = 10_000;
    world.options.hand_over_deadline = Duration::from_secs(2);
    world.start_all();
    let history = Shared::default();
    for n in 0..30 {
        assert!(fill(&mut world, &history, 1, &format!("log/{n:02}"), 20));
    }
    // Node 2 does not hear of the last register. A mover moves 16 at the same time, so some of the others are installed before this one.
    world.cut.insert((NodeId(1), NodeId(2)));
    assert!(fill(&mut world, &history, 1, "log/z", 20));
    world.cut.clear();
    world.wipe(NodeId(3));
    world.start(NodeId(3));
    let fresh = Member { node: NodeId(3), storage: storage_of(3, 1) };
    // Node 2 has written nothing, so it must prepare every register.
    let now = hand_over(&mut world, 2, vec![member(1), member(2), fresh]).unwrap();
    assert_eq!(now.epoch, 2);
    world.crash(NodeId(1));
    for name in ["log/00", "log/29", "log/z"] {
        assert_eq!(read(&mut world, &history, 2, name), Some(1), "{name}");
        write(&mut world, &history, 3, name, 1);
    }
    sound(&mut world, &history);
}

#[test]
fn the_same_members_again_change_nothing() {
    let mut world = World::new(2, 3, &[1, 2, 3]);
    world.start_all();
    assert_eq!(hand_over(&mut world, 1, members(&[3, 2, 1])).unwrap().epoch, 1);
    assert!(matches!(hand_over(&mut world, 1, vec![]), Err(HandOverError::Invalid(_))));
    assert!(matches!(hand_over(&mut world, 1, members(&[1, 1])), Err(HandOverError::Invalid(_))));
}

#[test]
fn a_lost_disk_is_replaced_by_its_new_identity() {
    let mut world = World::new(3, 3, &[1, 2, 3]);
    world.start_all();
    let history = Shared::default();
    write(&mut world, &history, 1, "chain", 0);
    world.wipe(NodeId(3));
    world.start(NodeId(3));
    write(&mut world, &history, 3, "chain", 1);
    assert!(world.marks.contains_key("rmw.acceptor.wrong_identity"));
    let fresh = Member { node: NodeId(3), storage: storage_of(3, 1) };
    let now = hand_over(&mut world, 1, vec![member(1), member(2), fresh.clone()]).unwrap();
    assert!(now.members.contains(&fresh));
    world.run_for(Duration::from_secs(1));
    // With another member gone, the new one must count.
    world.crash(NodeId(1));
    assert_eq!(read(&mut world, &history, 2, "chain"), Some(2));
    write(&mut world, &history, 3, "chain", 2);
    sound(&mut world, &history);
}

#[test]
fn a_hand_over_to_a_lost_disk_is_refused_and_changes_nothing() {
    let mut world = World::new(5, 4, &[1, 2, 3]);
    world.start_all();
    let history = Shared::default();
    write(&mut world, &history, 1, "chain", 0);
    world.wipe(NodeId(2));
    world.start(NodeId(2));
    // The node that decides does not know yet that the disk is lost. In a group of two, both members must take part, so with one of them
    // lost it could never serve.
    let refused = hand_over(&mut world, 1, members(&[2, 3]));
    assert!(matches!(refused, Err(HandOverError::NotThere { there: 1, lost: 1, .. })), "{refused:?}");
    // A group whose members do not answer is not chosen either.
    world.crash(NodeId(4));
    let refused = hand_over(&mut world, 1, members(&[4]));
    assert!(matches!(refused, Err(HandOverError::NotThere { there: 0, lost: 0, .. })), "{refused:?}");
    write(&mut world, &history, 3, "chain", 1);
    let fresh = Member { node: NodeId(2), storage: storage_of(2, 1) };
    assert_eq!(hand_over(&mut world, 1, vec![fresh, member(3)]).unwrap().epoch, 2);
    assert_eq!(read(&mut world, &history, 1, "chain"), Some(2));
    sound(&mut world, &history);
}

#[test]
fn a_closed_journal_does_not_keep_a_lost_disk_in_the_group() {
    let mut world = World::new(11, 5, &[1, 2, 3, 4, 5]);
    world.start_all();
    let history = Shared::default();
    write(&mut world, &history, 1, "chain", 0);
    world.close_journal(NodeId(1));
    world.wipe(NodeId(3));
    world.start(NodeId(3));
    // A member with a closed journal does not count as present, and is not lost.
    let refused = hand_over(&mut world, 2, members(&[1, 2]));
    assert!(matches!(refused, Err(HandOverError::NotThere { there: 1, lost: 0, .. })), "{refused:?}");
    let refused = hand_over(&mut world, 2, members(&[1, 2, 3]));
    assert!(matches!(refused, Err(HandOverError::NotThere { there: 1, lost: 1, .. })), "{refused:?}");
    // Node 1 is the first in line, so it is the one that hands over.
    let fresh = Member { node: NodeId(3), storage: storage_of(3, 1) };
    let wanted = vec![member(1), member(2), fresh, member(4), member(5)];
    let now = hand_over(&mut world, 1, wanted.clone()).unwrap();
    assert_eq!(now, GroupConfig::new(2, wanted).unwrap());
    // Without nodes 1 and 4, the new disk must count.
    world.crash(NodeId(4));
    write(&mut world, &history, 2, "chain", 1);
    assert_eq!(read(&mut world, &history, 5, "chain"), Some(2));
    // After a restart, node 1 counts again.
    world.crash(NodeId(1));
    world.start(NodeId(1));
    world.crash(NodeId(5));
    assert_eq!(read(&mut world, &history, 1, "chain"), Some(2));
    write(&mut world, &history, 1, "chain", 2);
    sound(&mut world, &history);
}

const STEPS: [&str; 6] = [
    "rmw.move.chosen",
    "rmw.move.fenced",
    "rmw.move.listed",
    "rmw.move.final",
    "rmw.move.installed",
    "rmw.move.opened",
];

#[test]
fn whoever_meets_the_work_of_a_dead_mover_finishes_it() {
    for (i, step) in STEPS.into_iter().enumerate() {
        let mut world = World::new(10 + i as u64, 5, &[1, 2, 3]);
        world.start_all();
        let history = Shared::default();
        for n in 0..20 {
            write(&mut world, &history, 1 + n % 5, &format!("log/{n:02}"), 0);
        }
        world.kill_at = Some((NodeId(4), step));
        let ticket = world.registers(4).hand_over(members(&[3, 4, 5]));
        let _ = world.run_on(4, ticket);
        assert!(!world.running(NodeId(4)), "the mover should have died at {step}");
        // Write new and old registers through a node that does not know of the hand-over, then read through others that do not know
        // either.
        write(&mut world, &history, 2, "log/new", 0);
        for n in 0..20 {
            write(&mut world, &history, 2, &format!("log/{n:02}"), 1);
        }
        for n in 0..20 {
            assert_eq!(
                read(&mut world, &history, [1, 3, 5][n % 3], &format!("log/{n:02}")),
                Some(2),
                "{step}"
            );
        }
        let ticket = world.registers(2).finish_hand_over();
        let now = world.run_on(2, ticket).unwrap().unwrap().unwrap();
        assert_eq!(now, GroupConfig::new(2, members(&[3, 4, 5])).unwrap(), "{step}");
        assert_eq!(list(&mut world, 1, "log/").len(), 21, "{step}");
        sound(&mut world, &history);
    }
}

#[test]
fn of_rival_movers_one_wins_and_the_other_is_told() {
    for seed in 0..20 {
        let mut world = World::new(100 + seed, 5, &[1, 2, 3]);
        world.start_all();
        let history = Shared::default();
        for n in 0..10 {
            write(&mut world, &history, 1 + n % 5, &format!("log/{n:02}"), 0);
        }
        let goals = [members(&[1, 2, 4]), members(&[2, 3, 5])];
        let told = Arc::new(Mutex::new(Vec::new()));
        for (node, goal) in [1, 3].into_iter().zip(goals.clone()) {
            let (ticket, told) = (world.registers(node).hand_over(goal), told.clone());
            world.env(node).spawn(
                "mover",
                Box::pin(async move {
                    let result = ticket.await.unwrap();
                    told.lock().unwrap().push((node, result));
                }),
            );
        }
        world.run_for(Duration::from_secs(5));
        let told = told.lock().unwrap().clone();
        assert_eq!(told.len(), 2, "seed {seed}: {told:?}");
        let group = world.registers(1).group();
        for (node, result) in told {
            match result {
                Ok(now) => assert!(goals.contains(&now.members) && now.epoch == group.epoch, "node {node}"),
                Err(HandOverError::Overtaken { now }) => assert_eq!(now, group, "node {node}"),
                other => panic!("seed {seed}, node {node}: {other:?}"),
            }
        }
        for n in 0..10 {
            assert_eq!(read(&mut world, &history, 5, &format!("log/{n:02}")), Some(1));
        }
        sound(&mut world, &history);
    }
}

/// Runs random faults, with hand-overs to random groups by random nodes, while registers are created all the time.
fn chaos(seed: u64) -> (usize, u64, BTreeMap<&'static str, u64>) {
    let mut world = World::new(1_000 + seed, 5, &[1, 2, 3]);
    world.options.reply_timeout = Duration::from_millis(40);
    world.options.deadline = Duration::from_millis(600);
    world.options.roll_forward_after = Duration::from_millis(60);
    // Short, so that movers give up and continue.
    world.options.hand_over_deadline = Duration::from_millis(200);
    let history = Shared::default();
    let names: Vec<String> = (0..60).map(|n| format!("r{}", n * n / 60)).collect();
    let mut memories: BTreeMap<NodeId, Arc<Mutex<Memory>>> = BTreeMap::new();
    let started = history.clone();
    world.on_start = Some(Box::new(move |env, registers| {
        let memory = memories.entry(env.node()).or_default().clone();
        let (e, r, h) = (env.clone(), registers.clone(), started.clone());
        let client = clients::busy(e, r, h, memory, names.clone(), Duration::from_millis(4));
        env.spawn("client", Box::pin(client));
    }));
    world.faults = Faults { drop: 3, duplicate: 4, ..Faults::CHAOS };
    world.start_all();
    for _ in 0..25 {
        let d = Duration::from_millis(10 + world.rng.below(80));
        world.run_for(d);
        world.faults.delay_us = if world.rng.chance(20) { 40_000 } else { Faults::CHAOS.delay_us };
        let node = NodeId(1 + world.rng.below(5) as u32);
        match world.rng.below(10) {
            0..2 if world.running(node) => world.crash(node),
            0..5 if !world.running(node) => world.start(node),
            5..9 if world.running(node) => {
                let mut goal: Vec<u32> = (1..=5).filter(|_| world.rng.chance(60)).collect();
                goal.truncate(3);
                if !goal.is_empty() {
                    drop(world.registers(node.0).hand_over(members(&goal)));
                }
            }
            9 => {
                let other = NodeId(1 + world.rng.below(5) as u32);
                world.cut.insert((node, other));
            }
            _ => world.cut.clear(),
        }
    }
    world.cut.clear();
    world.faults = Faults::NONE;
    for n in 1..=5 {
        if !world.running(NodeId(n)) {
            world.start(NodeId(n));
        }
    }
    world.run_for(Duration::from_secs(2));
    for n in 1..=5 {
        assert!(read(&mut world, &history, n, "r0").is_some(), "seed {seed}: no progress on node {n}");
    }
    world.oracle.check();
    let mut violations = std::mem::take(&mut world.oracle.violations);
    let history = history.lock().unwrap();
    violations.extend(history.check());
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    let epoch = (1..=5).map(|n| world.registers(n).group().epoch).max().unwrap();
    (history.done(), epoch, world.marks.clone())
}

#[test]
fn registers_survive_hand_overs_under_chaos() {
    set_mutant(Mutant::NONE);
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut done, mut epochs) = (0, 0);
    // For a longer run, set SEEDS, for example to 5000.
    let seeds: u64 = std::env::var("SEEDS").map_or(80, |s| s.parse().unwrap());
    for seed in 0..seeds {
        let (d, e, m) = chaos(seed);
        done += d;
        epochs += e - 1;
        m.into_iter().for_each(|(m, n)| *marks.entry(m).or_default() += n);
    }
    println!("{done} operations, {epochs} hand-overs, {marks:#?}");
    assert!(done as u64 > seeds * 60 && epochs > seeds * 2, "only {done} operations and {epochs} hand-overs");
    for mark in [
        "rmw.acceptor.late_install",
        "rmw.acceptor.moved",
        "rmw.acceptor.shut_out",
        "rmw.move.continued",
        "rmw.move.rolled_forward",
        "rmw.proposer.adopts",
        "rmw.proposer.follows",
        "rmw.proposer.new_group",
        "rmw.proposer.opens_laggard",
    ] {
        assert!(marks.contains_key(mark), "{mark} was never reached: {marks:?}");
    }
}

#[test]
#[ignore = "to look at one seed"]
fn one_seed() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    chaos(seed);
}

//! The protocol on a network that loses, reorders and duplicates messages, with crashes that lose unsynced cells. The oracle and the check
//! of what clients saw must also find known bugs that are switched on (rmwpaxos §11).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::clients::{self, Memory, Shared};
use crate::common::history::{Ask, Model};
use crate::common::world::{Faults, World};
use atoll_contract::keyspace::{Attempt, Durability, Unavailability};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_in_place::{CommandError, mutants};

struct Run {
    violations: Vec<String>,
    done: usize,
    marks: BTreeMap<&'static str, u64>,
}

/// Runs faults, then a calm phase, after which every node must read.
fn run(seed: u64, nodes: u32) -> Run {
    let mut world = World::new(seed, nodes, nodes, Durability::Disk);
    world.options.reply_timeout = Duration::from_millis(40);
    world.options.patience = Duration::from_millis(600);
    world.options.forget_after = Duration::from_millis(30);
    // With half of the seeds, proposers are dropped as soon as nobody uses them.
    world.options.open_keys = if seed.is_multiple_of(2) { 1 } else { 512 };
    let history = Shared::default();
    let started = history.clone();
    let mut memories: BTreeMap<(NodeId, u64), Arc<Mutex<Memory>>> = BTreeMap::new();
    let keys = 1 + seed % 4;
    world.on_start = Some(Box::new(move |env, space| {
        // Three proposers, whatever the number of acceptors; two clients each.
        if env.node().0 <= 3 {
            for client in 0..2 {
                let memory = memories.entry((env.node(), client)).or_default().clone();
                let id = u64::from(env.node().0) * 10 + client;
                let client = clients::busy(env.clone(), space.clone(), started.clone(), memory, id, keys);
                env.spawn("client", Box::pin(client));
            }
        }
    }));
    world.faults = Faults::CHAOS;
    world.start_all();
    for _ in 0..16 {
        let d = Duration::from_millis(10 + world.rng.below(50));
        world.run_for(d);
        world.faults.delay_us = if world.rng.chance(25) { 40_000 } else { Faults::CHAOS.delay_us };
        let victim = NodeId(1 + world.rng.below(u64::from(nodes)) as u32);
        match world.rng.below(10) {
            0..2 if world.running(victim) => world.crash(victim),
            // Restart at once, while messages of the life before are still under way (rmw-T5).
            2..4 if world.running(victim) => {
                world.crash(victim);
                let d = Duration::from_micros(world.rng.below(3_000));
                world.run_for(d);
                world.start(victim);
            }
            0..7 if !world.running(victim) => world.start(victim),
            7 => {
                let other = NodeId(1 + world.rng.below(u64::from(nodes)) as u32);
                world.cut.insert((victim, other));
            }
            8 => world.cut.clear(),
            _ => {}
        }
    }
    finish(world, &history, nodes)
}

fn finish(mut world: World, history: &Shared, nodes: u32) -> Run {
    world.cut.clear();
    world.faults = Faults::NONE;
    for n in 1..=nodes {
        if !world.running(NodeId(n)) {
            world.start(NodeId(n));
        }
    }
    world.run_for(Duration::from_millis(100));
    for n in 1..=3 {
        for key in ["value0", "count0", "lock0"] {
            let read = clients::read(world.space(n), history.clone(), key.into());
            if !matches!(world.run_on(n, read), Some(Some(_))) {
                world.verdict.fail(format!("no progress on node {n} after the network healed"));
            }
        }
    }
    let mut violations = std::mem::take(&mut world.verdict.failures);
    let history = history.lock().unwrap();
    violations.extend(history.check());
    Run { violations, done: history.done(), marks: world.marks.clone() }
}

fn all_hold(nodes: u32, seeds: std::ops::Range<u64>) {
    set_mutant(Mutant::NONE);
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut done, n) = (0, seeds.end - seeds.start);
    for seed in seeds {
        let run = run(seed, nodes);
        assert!(run.violations.is_empty(), "seed {seed}, {nodes} acceptors: {:#?}", run.violations);
        done += run.done;
        run.marks.into_iter().for_each(|(m, k)| *marks.entry(m).or_default() += k);
    }
    assert!(done as u64 > 60 * n, "only {done} operations succeeded in {n} runs");
    let marks_of_all = mutants::COVERAGE.iter().flat_map(|listed| listed.marks);
    // The clients of this model run no transactions; transactions.rs does.
    for mark in marks_of_all.filter(|mark| !mark.starts_with("in-place.txn.")) {
        assert!(marks.contains_key(mark), "{mark} was never reached: {marks:?}");
    }
}

#[test]
fn three_acceptors_hold_under_chaos() {
    all_hold(3, 0..60);
}

#[test]
fn five_acceptors_hold_under_chaos() {
    all_hold(5, 0..40);
}

/// Returns the first seed with which an oracle finds the mutant, and what it reports.
fn seeds_to_find(mutant: Mutant) -> Option<(u64, String)> {
    set_mutant(mutant);
    let found = (0..400).find_map(|seed| {
        let violation = run(seed, 3).violations.into_iter().find(|v| !v.starts_with("HARNESS"));
        violation.map(|v| (seed, v))
    });
    set_mutant(Mutant::NONE);
    found
}

#[test]
fn the_oracles_find_every_known_bug() {
    let bugs = [
        atoll_core::mutants::X1,
        mutants::IN_PLACE_T2,
        mutants::IN_PLACE_T3,
        mutants::IN_PLACE_T4,
        mutants::IN_PLACE_T7,
        mutants::IN_PLACE_T8,
        mutants::IN_PLACE_T11,
    ];
    let mut missed = Vec::new();
    for bug in bugs {
        match seeds_to_find(bug) {
            Some((seed, what)) => println!("{bug:?}: seed {seed}: {}", what.lines().next().unwrap()),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

fn op(seq: u64) -> OpId {
    OpId { client: ClientId(99), seq }
}

/// Executes one command on a node, without repeats.
fn execute(world: &mut World, history: &Shared, node: u32, key: &str, ask: Ask, seq: u64) -> bool {
    let (space, history, key) = (world.space(node), history.clone(), key.to_owned());
    let run = async move {
        let pending = clients::begin(&space, &history, &key, ask, op(seq));
        clients::attempt(&space, &history, &pending, Attempt::First).await.is_ok()
    };
    world.run_on(node, run).unwrap()
}

#[test]
fn a_settled_key_costs_one_round_trip() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(1, 3, 3, Durability::Disk);
    world.start_all();
    let history = Shared::default();
    let put = |world: &mut World, seq| {
        assert!(execute(world, &history, 1, "k", Ask::Put("v".into()), seq));
        world.run_for(Duration::from_millis(50));
    };
    put(&mut world, 1);
    // With the token, a write takes two requests to other nodes, their answers, and one cell for each acceptor.
    let (frames, cells) = (world.frames, world.cells_written);
    put(&mut world, 2);
    assert_eq!((world.frames - frames, world.cells_written - cells), (4, 3));
    // A read through a node that knows nothing yet takes as many messages, and writes nothing.
    let (frames, cells) = (world.frames, world.cells_written);
    let read = clients::read(world.space(2), history.clone(), "k".into());
    assert_eq!(world.run_on(2, read), Some(Some(Model::Value("v".into()))));
    world.run_for(Duration::from_millis(50));
    assert_eq!((world.frames - frames, world.cells_written - cells), (4, 0));
    assert_eq!(world.verdict.failures, Vec::<String>::new());
}

#[test]
fn commands_of_one_moment_share_messages() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(1, 3, 3, Durability::Disk);
    world.start_all();
    let history = Shared::default();
    assert!(execute(&mut world, &history, 1, "warm", Ask::Add(1), 1));
    world.run_for(Duration::from_millis(50));
    let frames = world.frames;
    // Ten adds to one counter, and one to each of ten others.
    let told = Arc::new(Mutex::new(0));
    for n in 0..20u64 {
        let (space, h, told) = (world.space(1), history.clone(), told.clone());
        let key = if n < 10 { "warm".to_owned() } else { format!("k{n}") };
        world.env(1).spawn(
            "add",
            Box::pin(async move {
                let pending = clients::begin(&space, &h, &key, Ask::Add(1), op(100 + n));
                clients::attempt(&space, &h, &pending, Attempt::First).await.unwrap();
                *told.lock().unwrap() += 1;
            }),
        );
    }
    world.run_for(Duration::from_millis(50));
    assert_eq!(*told.lock().unwrap(), 20);
    let used = world.frames - frames;
    assert!(used <= 20, "{used} frames for 20 commands, which need four round trips to two nodes at most");
    assert_eq!(history.lock().unwrap().check(), Vec::<String>::new());
}

#[test]
fn a_deleted_key_is_forgotten_and_begins_above_its_old_clock() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(3, 3, 3, Durability::Disk);
    world.start_all();
    let history = Shared::default();
    for seq in 1..=3 {
        assert!(execute(&mut world, &history, 1, "k", Ask::Put(seq.to_string()), seq));
    }
    assert!(execute(&mut world, &history, 1, "k", Ask::Delete, 4));
    let cells = |world: &World| world.nodes.values().map(|node| node.disk.cells.len()).sum::<usize>();
    world.run_for(Duration::from_secs(1));
    assert_eq!(cells(&world), 6, "a group and a tombstone on each node");
    // A tombstone stays as long as an acceptor may have missed it.
    world.crash(NodeId(3));
    world.run_for(Duration::from_secs(12));
    assert_eq!(cells(&world), 6);
    world.start(NodeId(3));
    world.run_for(Duration::from_secs(30));
    assert_eq!(cells(&world), 3, "the groups are left");
    for n in 1..=3 {
        world.crash(NodeId(n));
        world.start(NodeId(n));
    }
    let space = world.space(2);
    let read = async move { space.read("k".into()).await.unwrap() };
    assert_eq!(world.run_on(2, read).unwrap().held, None);
    let space = world.space(2);
    let put = async move {
        let guard = atoll_in_place::WireGuard::Absent {};
        let put = atoll_in_place::Command::Put { guard, value: "new".into() };
        space.execute(op(5), Attempt::First, "k".into(), put).await.unwrap()
    };
    let version = world.run_on(2, put).unwrap().held.unwrap().version;
    assert!(version.0 > 4, "version {version} was used before");
    assert_eq!(world.verdict.failures, Vec::<String>::new());
}

/// Restarts two of three acceptors of a keyspace in memory. Returns what a read is told then, and what the oracle says.
fn restart_a_majority_in_memory(bug: Mutant) -> (Result<Model, Unavailability>, Vec<String>) {
    set_mutant(bug);
    let mut world = World::new(5, 4, 3, Durability::Memory);
    world.options.patience = Duration::from_millis(500);
    world.start_all();
    let history = Shared::default();
    assert!(execute(&mut world, &history, 4, "k", Ask::Put("a".into()), 1));
    let restart = |world: &mut World, n| {
        world.crash(NodeId(n));
        world.start(NodeId(n));
        world.run_for(Duration::from_millis(50));
    };
    restart(&mut world, 1);
    // The two others still serve.
    assert!(execute(&mut world, &history, 4, "k", Ask::Put("b".into()), 2));
    restart(&mut world, 2);
    let (space, h) = (world.space(4), history.clone());
    let read = async move {
        match clients::read(space.clone(), h, "k".into()).await {
            Some(model) => Ok(model),
            None => match space.read("k".into()).await {
                Err(CommandError::NotDone(why)) => Err(why),
                other => panic!("{other:?}"),
            },
        }
    };
    let told = world.run_on(4, read).unwrap();
    let mut violations = std::mem::take(&mut world.verdict.failures);
    violations.extend(history.lock().unwrap().check());
    set_mutant(Mutant::NONE);
    (told, violations)
}

#[test]
fn a_keyspace_in_memory_that_lost_its_majority_says_so() {
    let (told, violations) = restart_a_majority_in_memory(Mutant::NONE);
    assert_eq!(told, Err(Unavailability::LostMajority));
    assert!(violations.is_empty(), "{violations:#?}");
    let (_, violations) = restart_a_majority_in_memory(mutants::IN_PLACE_T9);
    assert!(!violations.is_empty(), "nobody noticed an acceptor that has forgotten everything");
}

/// Lets a put with a condition reach one acceptor only. It is tried again through the others, where somebody has changed the key, so that
/// its condition fails. Returns whether it was refused, and what the check of the history says once the vote of the first acceptor has had
/// its chance to win.
fn deny_what_an_acceptor_has_voted_for(bug: Mutant) -> (bool, Vec<String>, bool) {
    set_mutant(bug);
    let (mut refused, mut found, mut exposed) = (false, Vec::new(), false);
    for seed in 0..40 {
        let mut world = World::new(seed, 4, 3, Durability::Disk);
        world.options.reply_timeout = Duration::from_millis(40);
        world.options.patience = Duration::from_millis(300);
        world.start_all();
        let history = Shared::default();
        assert!(execute(&mut world, &history, 4, "value0", Ask::Put("a".into()), 1));
        world.run_for(Duration::from_millis(50));
        // Two commands share a proposal that only node 3 gets. The first one gives up; without it, the condition of the second fails.
        let only = |world: &mut World, reached: &[u32]| {
            world.cut.clear();
            for n in (1..=3).filter(|n| !reached.contains(n)) {
                world.cut.extend([(NodeId(4), NodeId(n)), (NodeId(n), NodeId(4))]);
            }
        };
        only(&mut world, &[3]);
        let told = Arc::new(Mutex::new(None));
        for (seq, ask) in [(2, Ask::Put("b".into())), (3, Ask::Swap(Some("b".into()), "c".into()))] {
            let (space, h, told) = (world.space(4), history.clone(), told.clone());
            world.env(4).spawn(
                "put",
                Box::pin(async move {
                    let pending = clients::begin(&space, &h, "value0", ask, op(seq));
                    let mut got = clients::attempt(&space, &h, &pending, Attempt::First).await;
                    // Only the second one is tried again.
                    while let Err(CommandError::Unknown { floor, .. }) = &got
                        && seq == 3
                    {
                        got = clients::attempt(&space, &h, &pending, Attempt::Again(*floor)).await;
                    }
                    if seq == 3 {
                        *told.lock().unwrap() = Some(got);
                    }
                }),
            );
        }
        world.run_for(Duration::from_millis(450));
        only(&mut world, &[1, 2]);
        world.run_for(Duration::from_millis(1500));
        refused |= matches!(&*told.lock().unwrap(), Some(Ok(r)) if matches!(r.outcome, atoll_in_place::Outcome::Refused(_)));
        exposed |= world.marks.contains_key("in-place.write.timed_out");
        // The vote of node 3 meets a majority.
        world.cut.clear();
        world.cut.extend([(NodeId(1), NodeId(2)), (NodeId(2), NodeId(1))]);
        let read = clients::read(world.space(1), history.clone(), "value0".into());
        world.run_on(1, read);
        found.extend(std::mem::take(&mut world.verdict.failures));
        found.extend(history.lock().unwrap().check());
    }
    set_mutant(Mutant::NONE);
    (refused, found, exposed)
}

#[test]
fn a_command_is_not_denied_and_done_later() {
    let (refused, violations, exposed) = deny_what_an_acceptor_has_voted_for(Mutant::NONE);
    assert!(refused && exposed, "refused: {refused}, exposed: {exposed}");
    assert!(violations.is_empty(), "{violations:#?}");
    let (_, violations, _) = deny_what_an_acceptor_has_voted_for(mutants::IN_PLACE_DENIES);
    assert!(!violations.is_empty(), "nobody noticed that a denied command happened");
}

/// Lets two acceptors hold the same value in different ballots, of which the newer one is not chosen, and reads through both (rmw-T1). Then
/// reads through the older one and the acceptor that holds what was chosen. Returns what is wrong with that.
fn read_equal_values_in_two_ballots(bug: Mutant) -> Vec<String> {
    set_mutant(bug);
    let mut world = World::new(1, 5, 3, Durability::Disk);
    world.start_all();
    let history = Shared::default();
    let reach = |world: &mut World, node: u32, reached: &[u32]| {
        world.cut.retain(|(a, b)| *a != NodeId(node) && *b != NodeId(node));
        for n in (1..=3).filter(|n| !reached.contains(n)) {
            world.cut.extend([(NodeId(node), NodeId(n)), (NodeId(n), NodeId(node))]);
        }
    };
    assert!(execute(&mut world, &history, 4, "k", Ask::Put("v".into()), 1));
    world.run_for(Duration::from_millis(50));
    reach(&mut world, 4, &[2, 3]);
    assert!(execute(&mut world, &history, 4, "k", Ask::Put("w".into()), 2));
    world.run_for(Duration::from_millis(50));
    reach(&mut world, 4, &[2]);
    let (space, h) = (world.space(4), history.clone());
    let pending = clients::begin(&space, &h, "k", Ask::Put("v".into()), op(3));
    let run = async move { drop(clients::attempt(&space, &h, &pending, Attempt::First).await) };
    world.env(4).spawn("put", Box::pin(run));
    world.run_for(Duration::from_millis(20));
    reach(&mut world, 4, &[]);
    for reached in [[1, 2], [1, 3]] {
        reach(&mut world, 5, &reached);
        let read = clients::read(world.space(5), history.clone(), "k".into());
        assert!(matches!(world.run_on(5, read), Some(Some(Model::Value(_)))));
    }
    let mut found = std::mem::take(&mut world.verdict.failures);
    found.extend(history.lock().unwrap().check());
    set_mutant(Mutant::NONE);
    found
}

#[test]
fn equal_values_are_no_consistent_quorum() {
    let violations = read_equal_values_in_two_ballots(Mutant::NONE);
    assert!(violations.is_empty(), "{violations:#?}");
    let violations = read_equal_values_in_two_ballots(mutants::IN_PLACE_T1);
    assert!(!violations.is_empty(), "nobody noticed that a value was read and then undone");
}

/// Kills a proposer whose writes are under way, and starts it again. Returns what the oracle says about the next write of the key.
fn restart_a_proposer_with_writes_under_way(bug: Mutant) -> Vec<String> {
    set_mutant(bug);
    let mut found = Vec::new();
    for seed in 0..10 {
        let mut world = World::new(seed, 4, 3, Durability::Disk);
        world.start_all();
        let history = Shared::default();
        assert!(execute(&mut world, &history, 4, "other", Ask::Put("a".into()), 1));
        world.run_for(Duration::from_millis(50));
        let put = |world: &mut World, value: &str, seq| {
            let (space, h, ask) = (world.space(4), history.clone(), Ask::Put(value.into()));
            let pending = clients::begin(&space, &h, "k", ask, op(seq));
            let run = async move { drop(clients::attempt(&space, &h, &pending, Attempt::First).await) };
            world.env(4).spawn("put", Box::pin(run));
        };
        let before = world.frames;
        put(&mut world, "first", 2);
        // Three prepares; two promises are a majority. The writes that follow are slow.
        for frames in [5, 9] {
            while world.frames < before + frames {
                assert!(world.step());
            }
            world.faults.delay_us = 400_000;
        }
        world.crash(NodeId(4));
        world.faults = Faults::NONE;
        world.start(NodeId(4));
        put(&mut world, "second", 3);
        world.run_for(Duration::from_secs(4));
        found.extend(std::mem::take(&mut world.verdict.failures));
        found.extend(history.lock().unwrap().check());
    }
    set_mutant(Mutant::NONE);
    found
}

#[test]
fn a_proposer_that_starts_again_is_another_one() {
    let violations = restart_a_proposer_with_writes_under_way(Mutant::NONE);
    assert!(violations.is_empty(), "{violations:#?}");
    let violations = restart_a_proposer_with_writes_under_way(mutants::IN_PLACE_T5);
    assert!(violations.iter().any(|v| v.starts_with("rmw-I2")), "{violations:#?}");
}

#[test]
fn a_seed_replays_exactly() {
    set_mutant(Mutant::NONE);
    let (a, b) = (run(7, 3), run(7, 3));
    assert_eq!((a.done, a.marks), (b.done, b.marks));
}

#[test]
#[ignore = "takes minutes; SEEDS says how many"]
fn many_seeds() {
    let seeds = std::env::var("SEEDS").unwrap().parse().unwrap();
    all_hold(3, 0..seeds);
    all_hold(5, 0..seeds / 2);
}

#[test]
#[ignore = "to look at one seed"]
fn one_seed() {
    let seed: u64 = std::env::var("SEED").unwrap().parse().unwrap();
    let name = std::env::var("MUTANT").unwrap_or_default();
    set_mutant(mutants::ALL.iter().copied().find(|m| m.name() == name).unwrap_or(Mutant::NONE));
    println!("{:#?}", run(seed, 3).violations);
}

//! Many clients write one key through several nodes at the same time, and nothing fails.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::world::World;
use atoll_contract::keyspace::{Attempt, Durability, Floor};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_in_place::{Command, CommandError, Content, Outcome, REMEMBERED, WireGuard, mutants};
use bytes::Bytes;

/// Every client waits for the outcome of a command before it sends the next one.
const CLIENTS_PER_NODE: u64 = 22;
const COMMANDS_PER_CLIENT: u64 = 30;

#[derive(Debug, Default)]
struct Told {
    done: u64,
    /// Failures by their words.
    failed: BTreeMap<String, u64>,
}

/// Lets the clients of three nodes add to one counter. Returns what they were told, and the sum.
fn crowd(seed: u64) -> (Told, u64, Vec<String>) {
    let mut world = World::new(seed, 3, 3, Durability::Disk);
    world.start_all();
    let told = Arc::new(Mutex::new(Told::default()));
    for node in 1..=3 {
        for client in 0..CLIENTS_PER_NODE {
            let (space, told) = (world.space(node), told.clone());
            let client = ClientId(u64::from(node) * 1000 + client);
            let run = async move {
                for seq in 1..=COMMANDS_PER_CLIENT {
                    let (key, add) = (Bytes::from_static(b"hot"), Command::Add { amount: 1 });
                    let got = space.execute(OpId { client, seq }, Attempt::First, key, add).await;
                    let mut told = told.lock().unwrap();
                    match got {
                        Ok(reply) if matches!(reply.outcome, Outcome::Done { .. }) => told.done += 1,
                        Ok(reply) => panic!("{reply:?}"),
                        Err(CommandError::Unknown { why, .. }) => {
                            *told.failed.entry(format!("unknown: {why}")).or_default() += 1;
                        }
                        Err(error) => *told.failed.entry(error.to_string()).or_default() += 1,
                    }
                }
            };
            world.env(node).spawn("crowd", Box::pin(run));
        }
    }
    let all = 3 * CLIENTS_PER_NODE * COMMANDS_PER_CLIENT;
    assert!(all > 3 * REMEMBERED as u64);
    let began = world.now;
    for _ in 0..600 {
        let so_far = {
            let told = told.lock().unwrap();
            told.done + told.failed.values().sum::<u64>()
        };
        if so_far == all {
            break;
        }
        world.run_for(Duration::from_millis(100));
    }
    println!("seed {seed}: {:?} after {:?}", told.lock().unwrap(), world.now.since(began));
    let space = world.space(1);
    let read = async move { space.read(Bytes::from_static(b"hot")).await.unwrap().content };
    let Content::Counter { value } = world.run_on(1, read).unwrap() else { panic!("no counter") };
    let told = std::mem::take(&mut *told.lock().unwrap());
    (told, value, std::mem::take(&mut world.verdict.failures))
}

#[test]
fn a_crowd_that_writes_one_key_through_several_nodes_is_served() {
    set_mutant(Mutant::NONE);
    for seed in 0..5 {
        let (told, sum, violations) = crowd(seed);
        assert_eq!(violations, Vec::<String>::new());
        assert!(told.failed.is_empty(), "seed {seed}: {told:?}");
        assert_eq!((told.done, sum), (3 * CLIENTS_PER_NODE * COMMANDS_PER_CLIENT, told.done));
    }
}

fn op(seq: u64) -> OpId {
    OpId { client: ClientId(99), seq }
}

type Got = Result<Outcome, CommandError>;

/// Adds to a counter through node 4, which learns nothing of the votes for its proposal. Node 5 does `meanwhile`. Returns the answer
/// that the caller at node 4 gets once the network has healed, and the violations.
fn overtake(bug: Mutant, meanwhile: impl FnOnce(&mut World)) -> (Got, Vec<String>) {
    set_mutant(bug);
    let mut world = World::new(1, 5, 3, Durability::Disk);
    world.options.reply_timeout = Duration::from_millis(40);
    world.options.patience = Duration::from_secs(20);
    world.options.forget_after = Duration::from_millis(30);
    world.start_all();
    assert!(execute(&mut world, 4, 1, Command::Add { amount: 1 }).is_ok());
    world.run_for(Duration::from_millis(20));
    for acceptor in 1..=3 {
        world.cut.insert((NodeId(acceptor), NodeId(4)));
    }
    let told: Arc<Mutex<Option<Got>>> = Arc::default();
    let (space, tell) = (world.space(4), told.clone());
    let run = async move {
        let got = space.execute(op(2), Attempt::First, "k".into(), Command::Add { amount: 10 }).await;
        *tell.lock().unwrap() = Some(got.map(|reply| reply.outcome));
    };
    world.env(4).spawn("add", Box::pin(run));
    world.run_for(Duration::from_millis(10));
    for acceptor in 1..=3 {
        world.cut.insert((NodeId(4), NodeId(acceptor)));
    }
    meanwhile(&mut world);
    world.cut.clear();
    world.run_for(Duration::from_secs(2));
    set_mutant(Mutant::NONE);
    let told = told.lock().unwrap().take().expect("an outcome");
    (told, std::mem::take(&mut world.verdict.failures))
}

fn execute(world: &mut World, node: u32, seq: u64, command: Command) -> Got {
    let space = world.space(node);
    let run = async move { space.execute(op(seq), Attempt::First, "k".into(), command).await };
    world.run_on(node, run).unwrap().map(|reply| reply.outcome)
}

#[test]
fn a_proposal_is_known_to_be_chosen_after_more_commands_than_a_key_remembers() {
    let (told, violations) = overtake(Mutant::NONE, |world| {
        for seq in 0..3 * REMEMBERED as u64 {
            let added = execute(world, 5, 100 + seq, Command::Add { amount: 1 });
            assert!(matches!(added, Ok(Outcome::Done { number, .. }) if number == 12 + seq), "{added:?}");
        }
    });
    assert_eq!((told, violations), (Ok(Outcome::Done { version: 2, number: 11 }), Vec::new()));
}

/// A key that was deleted and forgotten has lost who proposed what. A proposal from before then is not known to be anything.
#[test]
fn a_proposal_that_a_key_has_lost_is_not_made_again() {
    let delete_and_make_again = |world: &mut World| {
        let deleted = execute(world, 5, 100, Command::Delete { guard: WireGuard::Always {} });
        assert!(matches!(deleted, Ok(Outcome::Done { .. })), "{deleted:?}");
        world.run_for(Duration::from_millis(300));
        assert!(world.marks.contains_key("in-place.acceptor.forgets"));
        // Node 5 would build on the tombstone, which it still knows.
        assert!(execute(world, 3, 101, Command::Add { amount: 1 }).is_ok());
    };
    let (told, violations) = overtake(Mutant::NONE, delete_and_make_again);
    assert_eq!((told, violations), (Err(CommandError::Forgotten), Vec::new()));
    let (_, violations) = overtake(mutants::IN_PLACE_MISSES, delete_and_make_again);
    assert!(violations.iter().any(|v| v.starts_with("rmw-I5")), "{violations:#?}");
}

/// The proposer of a chosen proposal learns of it while it makes the next one, whose votes it does not learn of either. The key remembers
/// only the last proposal of a node, so nothing shows the first one later.
#[test]
fn a_command_that_is_known_to_be_done_is_not_done_again() {
    let propose_another = |world: &mut World| {
        let space = world.space(4);
        let run = async move {
            let _ = space.execute(op(3), Attempt::First, "k".into(), Command::Add { amount: 100 }).await;
        };
        world.env(4).spawn("add", Box::pin(run));
        world.cut.clear();
        let before = world.frames;
        // Three prepares, at least two promises, three writes.
        while world.frames < before + 8 {
            assert!(world.step());
        }
        for acceptor in 1..=3 {
            world.cut.insert((NodeId(acceptor), NodeId(4)));
        }
        world.run_for(Duration::from_millis(10));
        for acceptor in 1..=3 {
            world.cut.insert((NodeId(4), NodeId(acceptor)));
        }
        for seq in 0..3 * REMEMBERED as u64 {
            let added = execute(world, 5, 100 + seq, Command::Add { amount: 1 });
            assert!(matches!(added, Ok(Outcome::Done { number, .. }) if number == 112 + seq), "{added:?}");
        }
    };
    let (told, violations) = overtake(Mutant::NONE, propose_another);
    assert_eq!((told, violations), (Ok(Outcome::Done { version: 2, number: 11 }), Vec::new()));
    let (_, violations) = overtake(mutants::IN_PLACE_LATER, propose_another);
    assert!(violations.iter().any(|v| v.starts_with("rmw-I5")), "{violations:#?}");
}

/// A first attempt at node 4 reaches no acceptor. Its repeat is done through node 5, and more commands follow than a key remembers. Then
/// the first attempt gets through. Returns what it was told, the sum, and the violations.
fn hold_back(bug: Mutant) -> (Got, Content, Vec<String>) {
    set_mutant(bug);
    let mut world = World::new(3, 5, 3, Durability::Disk);
    world.options.patience = Duration::from_secs(20);
    world.start_all();
    assert!(execute(&mut world, 5, 1, Command::Add { amount: 1 }).is_ok());
    for acceptor in 1..=3 {
        world.cut.extend([(NodeId(acceptor), NodeId(4)), (NodeId(4), NodeId(acceptor))]);
    }
    let told: Arc<Mutex<Option<Got>>> = Arc::default();
    let (space, tell) = (world.space(4), told.clone());
    let first = async move {
        let got = space.execute(op(2), Attempt::First, "k".into(), Command::Add { amount: 10 }).await;
        *tell.lock().unwrap() = Some(got.map(|reply| reply.outcome));
    };
    world.env(4).spawn("add", Box::pin(first));
    world.run_for(Duration::from_millis(10));
    let space = world.space(5);
    let repeat = async move {
        let again = Attempt::Again(Floor(1));
        space.execute(op(2), again, "k".into(), Command::Add { amount: 10 }).await.map(|reply| reply.outcome)
    };
    assert_eq!(world.run_on(5, repeat).unwrap(), Ok(Outcome::Done { version: 2, number: 11 }));
    for seq in 0..3 * REMEMBERED as u64 {
        assert!(execute(&mut world, 5, 100 + seq, Command::Add { amount: 1 }).is_ok());
    }
    world.cut.clear();
    world.run_for(Duration::from_secs(2));
    let told = told.lock().unwrap().take().expect("an outcome");
    let space = world.space(1);
    let content = world.run_on(1, async move { space.read("k".into()).await.unwrap().content }).unwrap();
    set_mutant(Mutant::NONE);
    (told, content, std::mem::take(&mut world.verdict.failures))
}

#[test]
fn a_first_attempt_that_comes_long_after_its_repeat_is_not_done_again() {
    let value = 11 + 3 * REMEMBERED as u64;
    let (told, content, violations) = hold_back(Mutant::NONE);
    assert_eq!((told, content), (Ok(Outcome::Done { version: 2, number: 11 }), Content::Counter { value }));
    assert_eq!(violations, Vec::<String>::new());
    let (_, content, violations) = hold_back(mutants::IN_PLACE_FORGETS_REPEATS);
    assert_eq!(content, Content::Counter { value: value + 10 }, "the bug shows");
    assert!(violations.iter().any(|v| v.starts_with("rmw-I5")), "{violations:#?}");
}

/// Two commands share a proposal that only acceptor 3 gets. The first one gives up. Without it, the condition of the second fails, as the
/// others see it. Then the vote of acceptor 3 meets a majority. Returns whether the second was refused, and whether it is done in the end.
fn refuse_what_an_acceptor_has_voted_for(bug: Mutant) -> (bool, bool) {
    set_mutant(bug);
    let mut world = World::new(2, 5, 3, Durability::Disk);
    world.options.reply_timeout = Duration::from_millis(40);
    world.options.patience = Duration::from_millis(600);
    world.start_all();
    let put =
        |guard, value: &'static str| Command::Put { guard, value: Bytes::from_static(value.as_bytes()) };
    assert!(execute(&mut world, 1, 1, put(WireGuard::Always {}, "a")).is_ok());
    let only = |world: &mut World, reached: &[u32]| {
        world.cut.clear();
        for n in (1..=3).filter(|n| !reached.contains(n)) {
            world.cut.extend([(NodeId(4), NodeId(n)), (NodeId(n), NodeId(4))]);
        }
    };
    only(&mut world, &[]);
    let told: Arc<Mutex<Vec<Got>>> = Arc::default();
    let after_b = WireGuard::Value { value: Bytes::from_static(b"b") };
    for (seq, command, wait_ms) in [(2, put(WireGuard::Always {}, "b"), 300), (3, put(after_b, "c"), 60)] {
        let (space, told) = (world.space(4), told.clone());
        let run = async move {
            let got = space.execute(op(seq), Attempt::First, "k".into(), command).await;
            told.lock().unwrap().push(got.map(|reply| reply.outcome));
        };
        world.env(4).spawn("put", Box::pin(run));
        world.run_for(Duration::from_millis(wait_ms));
    }
    // All get the next prepare. Acceptor 3 alone gets the write that follows.
    only(&mut world, &[1, 2, 3]);
    let before = world.frames;
    while world.frames < before + 3 {
        assert!(world.step());
    }
    world.cut.extend([(NodeId(4), NodeId(1)), (NodeId(4), NodeId(2))]);
    world.run_for(Duration::from_millis(5));
    only(&mut world, &[]);
    while told.lock().unwrap().is_empty() {
        assert!(world.step());
    }
    only(&mut world, &[1, 2]);
    world.run_for(Duration::from_secs(1));
    let told = std::mem::take(&mut *told.lock().unwrap());
    assert!(matches!(told[0], Err(CommandError::Unknown { .. })), "{told:?}");
    world.cut.clear();
    world.cut.extend([(NodeId(1), NodeId(2)), (NodeId(2), NodeId(1))]);
    let space = world.space(1);
    let held = world.run_on(1, async move { space.read("k".into()).await.unwrap().held }).unwrap();
    assert_eq!(world.verdict.failures, Vec::<String>::new());
    set_mutant(Mutant::NONE);
    (matches!(told[1], Ok(Outcome::Refused(_))), held.is_some_and(|held| held.value == "c"))
}

#[test]
fn a_command_is_not_refused_while_a_vote_for_it_can_win() {
    assert_eq!(refuse_what_an_acceptor_has_voted_for(Mutant::NONE), (true, false));
    assert_eq!(
        refuse_what_an_acceptor_has_voted_for(mutants::IN_PLACE_SETTLES),
        (true, true),
        "the bug shows"
    );
}

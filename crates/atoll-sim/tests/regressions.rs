//! Seeds that once failed, each with what it found, and a few seeds of every scenario, so that `cargo test` notices breakage early. Also
//! compares traces between processes. A program of its own: it replaces the panic hook of its process, so another test that failed here
//! would not say why.

use std::process::Command;
use std::time::Duration;

use atoll_contract::testing::Group;
use atoll_core::NodeId;
use atoll_core::testing::Mutant;
use atoll_node::assembly::Options;
use atoll_rmwpaxos::message::Status;
use atoll_sim::runner::{catch_panics, run_one};
use atoll_sim::scenario::node::{NodeHandles, Nodes};
use atoll_sim::scenario::phases::{Flag, Stage, stage};
use atoll_sim::scenario::{self, Outcome};
use atoll_sim::world::clients::Life;
use atoll_sim::world::fault::{Death, Fault};
use atoll_sim::world::{Weather, World};

/// Scenario, seed, and what the seed once found. A seed shows its bug only while the run before it draws the same random numbers, so each
/// bug also has its own test near its fix. All seeds here must keep passing.
const ONCE_FAILED: &[(&str, u64, &str)] = &[
    (
        "all",
        201,
        "a group of acceptors was handed over to two members, one of whose disks had just been lost: no hand-over after it could \
         end (rmwpaxos §9a; `a_hand_over_to_a_lost_disk_is_refused_and_changes_nothing`)",
    ),
    ("disks", 16, "the simulator asked a journal that was short of space again only after minutes"),
    ("all", 73, "a full disk stayed full for minutes, and the seed got nowhere"),
    ("native", 5, "the newest loglet was deleted, and nobody made another"),
    (
        "zookeeper",
        1,
        "the answer to a write told an older zxid than the reply in front of it, and a client keeps that of the last one",
    ),
    ("zookeeper", 108, "an event of a watch came after the reply that the watch was removed"),
    (
        "zookeeper",
        750,
        "a write of a connection came behind the client's return by another one to the same node",
    ),
    (
        "zookeeper",
        1783,
        "the same: what guarded a write was who holds the session, and not by which of its moves",
    ),
    ("zookeeper", 3259, "the same, once more"),
    (
        "tables",
        878,
        "no write of a client was done before its 33rd, which was taken for one of a client that is forgotten",
    ),
    ("vlog-retries", 8, "a record and its retry, in one batch, got two positions (vlog-V22)"),
    (
        "vlog-retries",
        5,
        "the floor of a client was forgotten with its last span, and a first attempt that came late was taken for new (X16)",
    ),
    (
        "scalog",
        8_778_787,
        "a loglet was deleted while a read of it waited for the disk, which was then answered with a tail of 0 (native-N2)",
    ),
    (
        "keyspace-races",
        80,
        "a race point before an answer to a client also delayed the acknowledgement after it, and the oracle took it for a later one",
    ),
    (
        "in-place",
        342,
        "the answer to a write was lost with its connection, and the oracle took the repeated vote for one after a promise",
    ),
    (
        "in-place",
        347,
        "a command was done twice: its proposer knew that it was chosen, made another proposal, and looked for the first one in vain later",
    ),
    (
        "in-place-crowd",
        2,
        "a proposer named a ballot after its pause that was below those that a rival had used meanwhile, time after time, and its clients \
         waited until they gave up",
    ),
    (
        "in-place-crowd",
        64,
        "the round of a named prepare ended with one refusal, which was taken for too few answers, and the next prepare named its ballot, \
         too",
    ),
    (
        "in-place-crowd",
        135,
        "three proposers near the acceptors took the key from one that was far away before its votes arrived, each time",
    ),
    (
        "in-place-crowd",
        718974,
        "a proposer that got nothing done paused longer each time, and its rivals, which had short pauses, took the key from each other",
    ),
    (
        "policy",
        15983673,
        "the pause before the next rare fault lasted longer than the phase under faults, so the load never ended",
    ),
    (
        "in-place-moves",
        500377,
        "the oracle had not seen the making of a group to which nothing was copied: its acceptors heard of it with the clock of its shard",
    ),
    (
        "in-place-moves",
        9084253,
        "a transaction came to its first read only after its repeat through another node and 32 more commands of the key, which had \
         forgotten the repeat, and it was done again",
    ),
    (
        "in-place",
        558,
        "a node that was to die after some frames died when the keyspace in memory was new, beside the minority that stayed dead",
    ),
    (
        "database",
        16348454,
        "the disks of two of three nodes were slow for nearly all of the load, and the run counted as too small",
    ),
    ("registers", 66, "the disk of the only acceptor stayed so slow that the run never became full"),
    (
        "lasting",
        18,
        "a node whose link to one server was cut waited a whole round for that server before it read the last entries of a sealed \
         segment from the next one, and its clients waited more than a second",
    ),
    (
        "lasting",
        71072,
        "a log moved to a sequencer that reached no majority of its servers stayed there for the least life of a segment",
    ),
    (
        "vlog-retries",
        20931,
        "a lane counted records as looked for that were settled since, formed empty batches forever, and never yielded the node's thread",
    ),
    (
        "lost-files",
        1094,
        "a step of a copy had more bytes than a segment of the simulated journals: each server closed its journal, again after each restart",
    ),
    (
        "put-back",
        71519,
        "an older copy brought a segment back beside the spare that was made of it, and the journal counted that spare twice",
    ),
    (
        "zookeeper-stores",
        70559,
        "a store began to fail at the end of the load, and the replica had halted over it when all nodes were asked for their state",
    ),
    (
        "upgrade",
        70151,
        "the only node of a cluster stayed with a program that was rightly refused, and too little was written",
    ),
    (
        "slow-links",
        71352,
        "a packet of the only connection that carried appends to the sequencer was lost six times in a row, and they waited for it for 12 s",
    ),
    (
        "slow-links",
        9,
        "a node whose links were slow blamed the sequencer for it, wherever that was, and the log went back and forth between the others",
    ),
    (
        "slow-links",
        44,
        "one of five that was slow blamed two nodes in turn, each time after it had forgotten about the other",
    ),
    (
        "slow-links",
        0,
        "heartbeats that were sent again came late, time after time, and their sender was taken for gone each time",
    ),
    (
        "many-logs",
        7690064,
        "a node that returned and lacked one record of each of a thousand logs got four of them a second",
    ),
    (
        "database-stores",
        70460,
        "a store kept failing while the database was judged: its replica was taken for one that is halted for good",
    ),
    (
        "database-stores",
        70916,
        "answers were demanded of a database whose clients had stopped asking, since the last store failed for longer than they asked",
    ),
    (
        "striped",
        9084257,
        "a node that did not know the cluster's level yet could not say which offsets its pads were for, and appended eight too many \
         (`handles_that_cannot_say_which_offsets_they_fill_ask_for_the_tail_first`); with the draws of a later program, one too many, \
         because a record came between (`who_opens_one_knows_that_the_cluster_has_its_level`)",
    ),
];

fn passes(name: &str, seed: u64, why: &str) -> Outcome {
    let scenario = scenario::find(name).expect("a scenario of the list");
    let outcome = run_one(&scenario, seed, Mutant::NONE, None);
    assert!(outcome.failures.is_empty(), "{name} seed {seed} ({why}): {:?}", outcome.failures);
    outcome
}

#[test]
fn what_once_failed_passes() {
    catch_panics();
    for (name, seed, why) in ONCE_FAILED {
        passes(name, *seed, why);
    }
}

/// A seed of every scenario but three passes, and has the same trace in another process. `atoll-sim run` plays more seeds, of all.
#[test]
fn a_seed_of_a_scenario_passes_and_is_one_trace_in_every_process() {
    catch_panics();
    let replay = |name: &str, seed: u64| {
        let done = Command::new(env!("CARGO_BIN_EXE_atoll-sim"))
            .args(["replay", "--scenario", name, "--seed", &seed.to_string()])
            .output()
            .expect("the simulator runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    // A seed of these takes as long as ten to twenty others, and what they run is in others, too.
    let long = ["many-logs", "scalog-clocks", "scalog-full"];
    for scenario in scenario::all().into_iter().filter(|s| !long.contains(&s.name)) {
        let here = passes(scenario.name, 7, scenario.about).trace;
        let there = replay(scenario.name, 7);
        assert!(there.contains(&format!("trace {:016x} over {} events", here.0, here.1)), "{there}");
    }
    // Nothing that a run leaves behind in its process changes the next one.
    let again = || passes("all", 7, "two runs in one process").trace;
    assert_eq!(again(), again());
    assert_ne!(replay("all", 7), replay("all", 8));
}

/// The node that is removed.
const FOUR: NodeId = NodeId(4);

async fn up(stage: &Stage<NodeHandles>, host: usize) -> Life<NodeHandles> {
    loop {
        if let Some(life) = stage.cluster.host(host) {
            return life;
        }
        stage.pause(Duration::from_millis(10)).await;
    }
}

async fn until(stage: &Stage<NodeHandles>, what: &str, holds: impl Fn() -> bool) {
    stage.waits_for(what.to_owned());
    while !holds() {
        stage.pause(Duration::from_millis(10)).await;
    }
}

/// Returns the open group, if all its data directories are in use.
fn whole_group(stage: &Stage<NodeHandles>) -> Option<Group> {
    let wire = stage.oracles.wire.lock();
    let group = wire.plugins.newest_group()?;
    let there = |n: NodeId, storage| stage.cluster.storage(n.0 as usize - 1) == Some(storage);
    group.members.iter().all(|m| there(m.node, m.storage)).then_some(group)
}

/// Returns the group epoch that the registers of a host use.
fn epoch_at(stage: &Stage<NodeHandles>, host: usize) -> Option<u64> {
    Some(stage.cluster.host(host)?.handles.0.registers.holders()?.epoch)
}

/// Returns the group epoch that the acceptor of a host keeps.
async fn kept_at(stage: &Stage<NodeHandles>, host: usize) -> Option<u64> {
    let life = stage.cluster.host(host)?;
    let asked = life.env.call(life.node, Status {});
    let answer = life.env.launch("asks.itself", asked);
    Some(stage.cluster.ask(&life, answer).await?.ok()?.ok()?.serving?.epoch)
}

/// Removes node 4 and stops it. Then replaces the disks of all acceptors that it knows, and restarts it.
async fn removed_and_back(stage: Stage<NodeHandles>) {
    let table = |host: usize| stage.cluster.host(host).map(|l| l.handles.0.members.table());
    until(&stage, "all to join", || {
        (0..4).all(|host| table(host).is_some_and(|t| t.nodes.values().all(|row| row.has_joined())))
    })
    .await;
    for step in ["drain", "remove"] {
        let life = up(&stage, 0).await;
        let changes = life.handles.0.changes.clone();
        let done = life.env.launch("operator", async move {
            match step {
                "drain" => changes.drain(FOUR).await.is_ok(),
                _ => changes.remove(FOUR, None).await.is_ok(),
            }
        });
        if stage.cluster.ask(&life, done).await != Some(Ok(true)) {
            return until(&stage, &format!("{step}, which was refused"), || false).await;
        }
    }
    stage.cluster.inject(Fault::Crash { host: 3, death: Death::Kill, back_after: None });
    for host in 0..3 {
        let lost = up(&stage, host).await.handles.0.identity().storage;
        stage.cluster.inject(Fault::Wipe { host, back_after: 10_000_000 });
        until(&stage, "the group without the lost disk", || {
            whole_group(&stage).is_some_and(|g| g.members.iter().all(|m| m.storage != lost))
        })
        .await;
    }
    let Some(newest) = whole_group(&stage).map(|g| g.epoch) else { return };
    stage.cluster.inject(Fault::Boot { host: 3 });
    until(&stage, "node 4 to hear of the group", || epoch_at(&stage, 3) == Some(newest)).await;

    stage.waits_for("node 4 to keep the group".to_owned());
    while kept_at(&stage, 3).await != Some(newest) {
        stage.pause(Duration::from_millis(10)).await;
    }
    for host in 0..4 {
        stage.cluster.inject(Fault::Crash { host, death: Death::PowerCut, back_after: None });
    }
    stage.cluster.inject(Fault::Boot { host: 3 });
    until(&stage, "node 4 to remember that group, all alone", || epoch_at(&stage, 3) == Some(newest)).await;
}

/// No member announces itself to a removed node, and all acceptors that the node knows have other disks by now. It used to ask these
/// forever (`all`, seeds 1317, 1901, 3325 and 6307 at that time).
#[test]
fn a_removed_node_finds_the_group_though_all_acceptors_that_it_knew_lost_their_disks() {
    catch_panics();
    for seed in 0..4 {
        let nodes = Nodes {
            members: 4,
            founders: 3,
            options: Options::default(),
            programs: Default::default(),
            starts: 0,
        };
        let mut world = World::new(seed, 4, Weather::default(), nodes, None);
        let stage = stage(&mut world);
        let done = Flag::default();
        let (people, over) = (stage.clone(), done.clone());
        stage.spawn("people", async move {
            removed_and_back(people).await;
            over.raise();
        });
        let in_time = world.run(120_000_000_000, &mut || done.is_up());
        let waiting_for = stage.waiting_for.lock().expect("a lock").clone();
        assert!(in_time, "seed {seed}: still waiting for {waiting_for}; {}", world.stuck());
        world.finish();
        assert_eq!(world.verdict.failures, Vec::<String>::new(), "seed {seed}");
    }
}

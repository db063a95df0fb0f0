//! Directed: something stays dead, and what it held must be replaced although something else stands in the way: the last words of a node
//! that was removed before, or a segment that nobody can rebuild yet.

use std::time::Duration;

use atoll_contract::{ClientId, LogletSpec};
use atoll_core::testing::hit;
use atoll_core::{NodeId, StorageId};
use atoll_node::assembly::Options;
use atoll_protocols::duties;

use crate::rng::Rng;
use crate::scenario::nemesis;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Stage, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, membership};
use crate::world::fault::{Death, Fault};
use crate::world::{Weather, World};

/// A node is removed, and later another one dies and stays dead.
pub const REMOVED: Scenario = Scenario {
    name: "removed",
    about: "directed: one of five nodes is drained and removed; later a server dies permanently, and must be replaced",
    run: run_removed,
    marks: &[&["sim.removed.replaced"]],
    full: false,
};

/// A disk is lost while some of its segments cannot be read.
pub const BROKEN_SEGMENTS: Scenario = Scenario {
    name: "broken-segments",
    about: "directed: a disk is lost, and some segments have their last copy on a node that is down; the others are rebuilt",
    run: run_broken,
    marks: &[&["sim.broken.rebuilt", "sim.broken.waits", "sim.broken.in_pages"]],
    full: false,
};

const LOG: &str = "log0";
const HOSTS: usize = 5;
/// How soon a server that stays dead must be replaced. The product waits 5 s.
const REPLACED_WITHIN: Duration = Duration::from_secs(15);
/// How soon all segments that can be read must be rebuilt. Each attempt at one that cannot takes some seconds.
const REBUILT_WITHIN: Duration = Duration::from_secs(90);
/// The longest time that a script takes.
const MOST: Duration = Duration::from_secs(300);
/// In `broken-segments`: the host whose disk is lost, and the one that is down meanwhile.
const LOST: usize = 2;
const AWAY: usize = 1;

/// Plays a script with five nodes, all of which hold registers.
fn on_five<S>(seed: u64, out: TraceOut, salt: u64, script: impl FnOnce(Stage<NodeHandles>) -> S) -> Outcome
where
    S: Future<Output = ()> + Send + 'static,
{
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt);
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        ..Weather::default()
    };
    let mut options = Options::default();
    // Even seeds move old segments to index pages.
    if seed.is_multiple_of(2) {
        options.log.page_items = 2;
    }
    let assembly =
        Nodes { members: HOSTS, founders: HOSTS, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), HOSTS, weather, assembly, out);
    let stage = stage(&mut world);
    let script = script(stage.clone());
    play_script(&mut world, &stage, script, MOST)
}

fn node_of(host: usize) -> NodeId {
    NodeId(host as u32 + 1)
}

/// Waits until `holds`, for at most `within`. Returns whether it holds.
async fn within(stage: &Stage<NodeHandles>, within: Duration, holds: impl Fn() -> bool) -> bool {
    let until = stage.env.now().after(within);
    while !holds() {
        if stage.env.now() >= until {
            return false;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
    true
}

/// Waits until every node that runs knows all members, and all of them have joined.
async fn all_joined(stage: &Stage<NodeHandles>) {
    let joined = |host| {
        let table = stage.cluster.host(host).map(|life| life.handles.0.members.table());
        table.is_some_and(|t| t.nodes.len() == HOSTS && t.nodes.values().all(|row| row.has_joined()))
    };
    while !(0..HOSTS).all(joined) {
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Heals everything, and demands progress.
async fn end(stage: Stage<NodeHandles>) {
    nemesis::heal(&stage.cluster, HOSTS);
    stage.over.raise();
    load::demand(stage, vec![LOG.to_owned()]).await;
}

fn run_removed(seed: u64, out: TraceOut) -> Outcome {
    on_five(seed, out, 0x7265_6d6f_7665, |stage| async move {
        load::create(&stage, LOG).await;
        stage.spawn("appender", load::appender(stage.clone(), LOG.to_owned(), Duration::from_millis(50)));
        all_joined(&stage).await;
        let leaver = stage.below(HOSTS as u64) as usize;
        while load::members(&stage).contains(&leaver) {
            membership::remove(&stage, leaver).await;
            stage.pause(Duration::from_millis(20)).await;
        }
        let forgot = |host: usize| {
            let life = stage.cluster.host(host);
            life.is_some_and(|l| !l.handles.0.members.table().nodes.contains_key(&node_of(leaver)))
        };
        let others: Vec<usize> = (0..HOSTS).filter(|h| *h != leaver).collect();
        while !others.iter().all(|h| forgot(*h)) {
            stage.pause(Duration::from_millis(20)).await;
        }
        // It may run on for a while, and its heartbeats still arrive.
        stage.pause(Duration::from_millis([1, 1_500][stage.below(2) as usize])).await;
        stage.cluster.inject(Fault::Crash { host: leaver, death: Death::Kill, back_after: None });
        stage.pause(Duration::from_millis(2_000)).await;
        die_and_be_replaced(&stage, &others).await;
        end(stage).await;
    })
}

/// Kills a server of the active segment that is not its sequencer, and checks that the others take it for gone and replace it.
async fn die_and_be_replaced(stage: &Stage<NodeHandles>, others: &[usize]) {
    let serving = || stage.oracles.wire.lock().chain.serving(LOG);
    let Some((servers, sequencer)) = serving() else { return };
    let fit: Vec<NodeId> = servers.iter().copied().filter(|n| *n != sequencer).collect();
    let dead = fit[stage.below(fit.len() as u64) as usize];
    let host = dead.0 as usize - 1;
    stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    let replaced = within(stage, REPLACED_WITHIN, || serving().is_some_and(|(now, _)| !now.contains(&dead)));
    if replaced.await {
        hit("sim.removed.replaced");
    } else {
        stage.cluster.fail(format!(
            "PLACE: after {REPLACED_WITHIN:?} node {dead}, which is dead, still serves the log"
        ));
    }
    for other in others.iter().filter(|other| **other != host) {
        let Some(life) = stage.cluster.host(*other) else { continue };
        if life.handles.0.members.is_up(dead) {
            stage.cluster.fail(format!("GONE: node {dead} is dead, and host {other} takes it for up"));
        }
    }
}

fn run_broken(seed: u64, out: TraceOut) -> Outcome {
    on_five(seed, out, 0x6272_6f6b_656e, |stage| async move {
        all_joined(&stage).await;
        // The registers must survive that two nodes are down and one has lost its disk, one after the other.
        stage.waits_for("a group of five acceptors".to_owned());
        while !is_group_whole(&stage) {
            stage.pause(Duration::from_millis(50)).await;
        }
        create_or_extend(&stage, [3, 4, 5]).await;
        append(&stage).await;
        // Nodes 2 and 3 hold the records of this segment alone, because node 1 is down.
        create_or_extend(&stage, [1, 2, 3]).await;
        stage.cluster.inject(Fault::Crash { host: 0, death: Death::Kill, back_after: None });
        append(&stage).await;
        for _ in 0..6 {
            create_or_extend(&stage, [3, 4, 5]).await;
            append(&stage).await;
        }
        create_or_extend(&stage, [2, 4, 5]).await;
        append(&stage).await;
        let Some(lost) = stage.cluster.storage(LOST) else { return };
        stage.cluster.inject(Fault::Crash { host: AWAY, death: Death::Kill, back_after: None });
        stage.cluster.inject(Fault::Wipe { host: LOST, back_after: 100_000_000 });
        stage.cluster.inject(Fault::Boot { host: 0 });
        stage.pause(Duration::from_millis(100)).await;
        if stage.oracles.wire.lock().chain.paged() > 0 {
            hit("sim.broken.in_pages");
        }
        let can_be_read = |nodes: &[NodeId]| !nodes.contains(&node_of(AWAY));
        let left = || broken(&stage, lost).into_iter().filter(|nodes| can_be_read(nodes)).count();
        if within(&stage, REBUILT_WITHIN, || left() == 0).await {
            hit("sim.broken.rebuilt");
        } else {
            let left = left();
            stage.cluster.fail(format!(
                "BROKEN: after {REBUILT_WITHIN:?}, {left} segments that can be read name a lost disk"
            ));
        }
        if !broken(&stage, lost).is_empty() {
            hit("sim.broken.waits");
        }
        end(stage).await;
    })
}

/// Returns whether all five nodes are acceptors.
fn is_group_whole(stage: &Stage<NodeHandles>) -> bool {
    let wire = stage.oracles.wire.lock();
    let group = wire.plugins.newest_group();
    !wire.plugins.may_be_handing_over() && group.is_some_and(|g| g.members.len() == HOSTS)
}

/// Returns the servers of each sealed segment that names a lost disk.
fn broken(stage: &Stage<NodeHandles>, lost: StorageId) -> Vec<Vec<NodeId>> {
    let wire = stage.oracles.wire.lock();
    let sealed = wire.chain.newest(LOG).into_iter().flat_map(|c| c.segments()).filter(|s| s.stop.is_some());
    let holders = sealed.map(|s| duties(&s.kind, &s.config).holders().collect::<Vec<_>>());
    let of_lost = holders.filter(|all| all.iter().any(|(_, storage)| *storage == lost));
    of_lost.map(|all| all.into_iter().map(|(node, _)| node).collect()).collect()
}

/// Creates the log, or extends it, with these servers, and with the sequencer on a node that stays up.
async fn create_or_extend(stage: &Stage<NodeHandles>, servers: [u32; 3]) {
    let spec = LogletSpec::of("native").place("server", servers.map(NodeId)).place("sequencer", [NodeId(4)]);
    stage.waits_for(format!("the log to be on {servers:?}"));
    loop {
        if let Some(life) = stage.cluster.host(3)
            && let Some(log) = life.handles.log(LOG)
        {
            let there = stage.oracles.wire.lock().chain.newest(LOG).is_some();
            let done = match there {
                true => stage.cluster.ask(&life, log.extend(spec.clone())).await,
                false => stage.cluster.ask(&life, log.create(spec.clone())).await,
            };
            if matches!(done, Some(Ok(Ok(_)))) {
                return;
            }
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Appends some records.
async fn append(stage: &Stage<NodeHandles>) {
    let client = ClientId(stage.env.random() | 1);
    let mut pending: Vec<_> = (1..=5).map(|seq| load::record(stage, client, seq)).collect();
    let mut at = 3;
    while !load::round(stage, LOG, &mut at, &mut pending).await {
        stage.pause(Duration::from_millis(50)).await;
    }
    stage.report();
}

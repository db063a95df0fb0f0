//! Directed: something stays dead, and what it held must be replaced although something else stands in the way: the last words of a node
//! that was removed before, or a segment that nobody can rebuild yet.

use std::time::Duration;

use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_node::assembly::Options;

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
    about: "directed: one of five nodes is drained and removed; later a server dies for good, and must be replaced",
    run: run_removed,
    marks: &[&["sim.removed.replaced"]],
    full: false,
};

const LOG: &str = "log0";
const HOSTS: usize = 5;
/// How soon a server that stays dead must be replaced. The product waits 5 s.
const REPLACED_WITHIN: Duration = Duration::from_secs(15);
/// The longest time that a script takes.
const MOST: Duration = Duration::from_secs(300);

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

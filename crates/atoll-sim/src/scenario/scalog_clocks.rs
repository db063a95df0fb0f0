//! Directed: the clocks of nodes run at different speeds and jump ahead, and nodes that only order are stopped for a while (SIGSTOP). All
//! storage servers serve all the time. So no shard may end, whatever the timers of an orderer say when it continues, and appends go on.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_protocols::duties;

use crate::rng::Rng;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Stage, play_script, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, shards};
use crate::world::World;
use crate::world::fault::Fault;

/// Clocks that differ and jump, and orderers that are stopped.
pub const SCENARIO: Scenario = Scenario {
    name: "scalog-clocks",
    about: "directed: clocks run at different speeds and jump ahead, and orderers are stopped; no shard whose servers serve may end",
    run,
    marks: &[&["sim.scalog.jumped", "sim.scalog.stopped", "scalog.orderer.was_stopped"]],
    full: false,
};

const LOG: &str = "log0";
const HOSTS: usize = 7;
/// The nodes with a role in the Loglets of this scenario. Those that order keep nothing else, except for registers.
const STORAGE: [u32; 4] = [1, 2, 3, 4];
const ORDERERS: [u32; 2] = [5, 6];
const ORDERING: [u32; 3] = [7, 1, 3];
/// How many clocks jump, or nodes are stopped, in one run.
const ROUNDS: u32 = 6;
const MS: u64 = 1_000_000;

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7363_636c_6f63);
    let (mut weather, assembly) = nodes(&mut rng, HOSTS);
    weather.skew_permille = 20 + rng.below(150);
    let mut world = World::new(rng.bits(), HOSTS, weather, assembly, out);
    let stage = stage(&mut world);
    let script = script(stage.clone());
    play_script(&mut world, &stage, script, Duration::from_secs(900))
}

fn spec() -> LogletSpec {
    let mut spec = LogletSpec::of("scalog");
    for (name, value) in [("shards", "2"), ("replicas", "2")] {
        spec.options.insert(name.to_owned(), value.to_owned());
    }
    let place = |spec: LogletSpec, role: &str, on: &[u32]| spec.place(role, on.iter().copied().map(NodeId));
    let spec = place(place(spec, "storage", &STORAGE), "orderer", &ORDERERS);
    place(place(spec, "ordering/server", &ORDERING), "ordering/sequencer", &ORDERING[..1])
}

/// Returns whether the roles of the active segment are where this scenario wants them. A node whose clock has jumped takes the others for
/// dead for a moment, and may move the log.
fn is_placed(stage: &Stage<NodeHandles>) -> bool {
    let wire = stage.oracles.wire.lock();
    let active = wire.chain.newest(LOG).and_then(|chain| chain.segments().last());
    let Some(duties) = active.map(|active| duties(&active.kind, &active.config)) else { return false };
    let on = |role: &str| {
        let mut on: Vec<u32> = duties.0.iter().filter(|d| d.role == role).map(|d| d.node.0).collect();
        on.sort_unstable();
        on
    };
    on("storage") == STORAGE && on("orderer") == ORDERERS
}

async fn script(stage: Stage<NodeHandles>) {
    load::create_spec(&stage, LOG, spec()).await;
    for _ in 0..4 {
        let think = Duration::from_millis(10);
        stage.spawn("appender", load::appender(stage.clone(), LOG.to_owned(), think));
    }
    stage.spawn("checker", load::checker(stage.clone(), LOG.to_owned(), Duration::from_millis(150)));
    stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(200)));
    for _ in 0..ROUNDS {
        stage.pause(Duration::from_millis(800)).await;
        place(&stage).await;
        if stage.below(3) == 0 {
            jump(&stage).await;
        } else {
            stop(&stage).await;
        }
        load::goes_on(&stage, LOG, stage.below(HOSTS as u64) as usize).await;
        no_shard_has_ended(&stage).await;
        stage.report();
    }
    stage.over.raise();
    stage.pause(Duration::from_secs(1)).await;
    load::demand(stage, vec![LOG.to_owned()]).await;
}

/// Moves the log until its roles are where they should be.
async fn place(stage: &Stage<NodeHandles>) {
    while !is_placed(stage) {
        stage.waits_for(format!("{LOG} to be on the nodes that the scenario names"));
        if let Some(life) = load::live(stage, stage.below(HOSTS as u64) as usize)
            && let Some(log) = life.handles.log(LOG)
        {
            // Whether it is there, the chain says.
            let _ = stage.cluster.ask(&life, log.extend(spec())).await;
        }
        stage.pause(Duration::from_millis(200)).await;
    }
}

/// Stops the node of an orderer for longer than a shard may be stuck, usually.
async fn stop(stage: &Stage<NodeHandles>) {
    hit("sim.scalog.stopped");
    let host = ORDERERS[stage.below(3) as usize % ORDERERS.len()] as usize - 1;
    let nanos = [300, 600, 1_000, 3_000][stage.below(4) as usize] * MS + stage.below(400 * MS);
    stage.cluster.inject(Fault::Pause { host, nanos });
    stage.env.sleep(Duration::from_nanos(nanos)).await;
    stage.pause(Duration::from_millis(800)).await;
}

/// Sets the clock of some node ahead.
async fn jump(stage: &Stage<NodeHandles>) {
    hit("sim.scalog.jumped");
    let host = stage.below(HOSTS as u64) as usize;
    let nanos = [100, 700, 5_000, 3_600_000][stage.below(4) as usize] * MS;
    stage.cluster.inject(Fault::JumpClock { host, nanos });
    stage.pause(Duration::from_millis(1_500)).await;
}

/// Checks that each shard of the active segment takes records.
async fn no_shard_has_ended(stage: &Stage<NodeHandles>) {
    loop {
        stage.waits_for(format!("the shards of {LOG}"));
        if let Some(life) = load::live(stage, stage.below(HOSTS as u64) as usize)
            && let Some(active) = shards::shards(stage, &life, LOG).await
        {
            if let Some(shard) = active.shards.shards.iter().find(|shard| !shard.is_live()) {
                let number = shard.number;
                stage.cluster.fail(format!("scalog-S17 ended: all servers of shard {number} serve"));
            }
            return;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

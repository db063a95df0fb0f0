//! Scalog Loglets on whole nodes: swapped in and out under load and faults; with shards that come and go; and, directed, with nodes that
//! stay dead.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::testing::hit;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, SAFETY, Stage, play, play_script, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, shards, striped};
use crate::world::World;
use crate::world::fault::{Death, Fault};

/// Logs that are swapped between Scalog and native Loglets.
pub const SCALOG: Scenario = Scenario {
    name: "scalog",
    about: "a log that is swapped native, Scalog, native while it is written, read and trimmed; nodes die and lose links",
    run,
    marks: &[
        &[
            "sim.scalog.several_shards",
            "sim.scalog.tree",
            "scalog.append.finalized",
            "scalog.orderer.ends_stuck",
        ],
        &["scalog.server.duplicate", "scalog.server.rewind", "scalog.server.out_of_order"],
        &[
            "scalog.server.read_waits",
            "scalog.server.ended",
            "scalog.handle.ended",
            "scalog.seal.ordering_log",
        ],
    ],
    full: true,
};

/// Shards that are added and ended while clients append.
pub const SHARDS: Scenario = Scenario {
    name: "scalog-shards",
    about: "shards are added and ended while clients append to them and read from them; the log is extended at times, and nodes die",
    run: run_shards,
    marks: &[
        &["sim.shards.added", "sim.shards.ended", "sim.shards.refused", "sim.shards.next_shard"],
        &["sim.shards.appended", "sim.shards.appended_again", "sim.shards.read", "sim.shards.read_elsewhere"],
        &["vlog.shards.named", "vlog.shards.again", "vlog.shards.found", "vlog.shards.sealed"],
    ],
    full: false,
};

/// Nodes that are killed and stay dead while the others must continue.
pub const DEAD: Scenario = Scenario {
    name: "scalog-dead",
    about: "directed: a node with a server, an orderer or the ordering log dies and stays dead; the others append, and read everything",
    run: run_dead,
    marks: &[&["sim.scalog.went_on_without", "sim.scalog.several_shards"]],
    full: false,
};

const LOG: &str = "log0";
/// How long shards come and go under faults.
const SHARDS_FOR: Duration = Duration::from_secs(30);
/// After how many entries of an ordering log a snapshot follows. Few, so that ordering logs are trimmed, and nodes resume with snapshots.
const SNAPSHOT_ENTRIES: u64 = 50;
/// How many nodes die in one directed run, one after the other.
const DEATHS: u32 = 4;

/// Returns a specification of Scalog Loglets for the members that there are.
fn spec(stage: &Stage<NodeHandles>) -> LogletSpec {
    let members = load::members(stage).len();
    let mut spec = LogletSpec::of("scalog");
    let mut option = |name: &str, value: &str| spec.options.insert(name.to_owned(), value.to_owned());
    match stage.below(4) {
        0 if members >= 6 => {
            hit("sim.scalog.several_shards");
            option("shards", "3");
            option("replicas", "2");
            // More shards than an aggregator takes.
            hit("sim.scalog.tree");
            option("fan_in", "2");
        }
        0 | 1 if members >= 4 => {
            hit("sim.scalog.several_shards");
            option("shards", "2");
            option("replicas", "2");
        }
        2 if members >= 3 => {
            option("shards", "1");
            option("replicas", "3");
        }
        _ => {
            option("shards", "1");
            option("replicas", "2");
        }
    }
    option("interval_us", &[300, 500, 2_000][stage.below(3) as usize].to_string());
    spec
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7363_616c_6f67);
    let hosts = [3, 4, 5, 6, 6][rng.below(5) as usize];
    let (weather, mut assembly) = nodes(&mut rng, hosts);
    assembly.options.protocols.set("snapshot_entries", SNAPSHOT_ENTRIES);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    striped::people(&stage, &mut rng, LOG, ("scalog", 4), spec);
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(500 + rng.below(1_500)),
        during: SAFETY,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = load::demand(stage.clone(), vec![LOG.to_owned()]);
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Extends the log to new Scalog Loglets from time to time.
async fn extender(stage: Stage<NodeHandles>, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = load::live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(LOG) else { continue };
        // Whatever became of it, the clients see.
        let _ = stage.cluster.ask(&life, log.extend(few(&stage))).await;
    }
}

/// Returns a specification that leaves some nodes without a shard.
fn few(stage: &Stage<NodeHandles>) -> LogletSpec {
    let mut spec = LogletSpec::of("scalog");
    let shards = if load::members(stage).len() >= 6 { 1 + stage.below(2) } else { 1 };
    let interval = [300, 500, 2_000][stage.below(3) as usize];
    for (name, value) in [("shards", shards), ("replicas", 2), ("interval_us", interval)] {
        spec.options.insert(name.to_owned(), value.to_string());
    }
    spec
}

fn run_shards(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7368_6172_6473);
    let hosts = [4, 5, 6, 7][rng.below(4) as usize];
    let (weather, mut assembly) = nodes(&mut rng, hosts);
    assembly.options.protocols.set("snapshot_entries", SNAPSHOT_ENTRIES);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let judge = shards::Judge::default();
    let change = Duration::from_millis(200 + rng.below(1_500));
    let (clients, judged) = (stage.clone(), judge.clone());
    stage.spawn("people", async move {
        let stage = clients;
        load::create_spec(&stage, LOG, few(&stage)).await;
        let name = || LOG.to_owned();
        let often = Duration::from_millis(60);
        for _ in 0..2 {
            stage.spawn("appender", load::appender(stage.clone(), name(), often));
            stage.spawn("chooser", shards::appender(stage.clone(), name(), judged.clone(), often));
        }
        stage.spawn("checker", load::checker(stage.clone(), name(), often * 4));
        stage.spawn("reader", load::reader(stage.clone(), name(), often * 4));
        stage.spawn("looker", shards::reader(stage.clone(), name(), judged.clone(), often));
        stage.spawn("operator", shards::operator(stage.clone(), name(), change));
        stage.spawn("extender", extender(stage.clone(), Duration::from_secs(12)));
        // Often, because the ordering log is trimmed only up to a snapshot whose records are all given up.
        stage.spawn("trimmer", load::trimmer(stage.clone(), name(), Duration::from_secs(1)));
    });
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(500 + rng.below(1_500)),
        during: SHARDS_FOR,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let all = stage.clone();
    let demand = async move {
        load::demand(all.clone(), vec![LOG.to_owned()]).await;
        shards::demand(all, LOG.to_owned(), judge).await;
    };
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn run_dead(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6465_6164_7363);
    let hosts = [3, 4, 5, 6][rng.below(4) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let script = die_in_turn(stage.clone(), hosts);
    play_script(&mut world, &stage, script, Duration::from_secs(600))
}

async fn die_in_turn(stage: Stage<NodeHandles>, hosts: usize) {
    load::create_kind(&stage, LOG, "scalog").await;
    if hosts >= 4 {
        hit("sim.scalog.several_shards");
    }
    for _ in 0..2 {
        let think = Duration::from_millis(100);
        stage.spawn("appender", load::appender(stage.clone(), LOG.to_owned(), think));
    }
    stage.spawn("checker", load::checker(stage.clone(), LOG.to_owned(), Duration::from_millis(150)));
    stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(200)));
    for _ in 0..DEATHS {
        stage.pause(Duration::from_millis(1_500)).await;
        let victim = stage.below(hosts as u64) as usize;
        stage.cluster.inject(Fault::Crash { host: victim, death: Death::Kill, back_after: None });
        stage.pause(Duration::from_secs(2)).await;
        // All others append and read the whole log while the node stays dead.
        for host in (0..hosts).filter(|host| *host != victim) {
            load::goes_on(&stage, LOG, host).await;
        }
        hit("sim.scalog.went_on_without");
        stage.cluster.inject(Fault::Boot { host: victim });
        stage.report();
        load::filled(&stage, LOG).await;
        stage.report();
    }
    stage.over.raise();
    stage.pause(Duration::from_secs(1)).await;
    load::demand(stage, vec![LOG.to_owned()]).await;
}

//! CORFU Loglets on whole nodes: swapped in and out under load and faults; and, directed, with nodes that stay dead.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::testing::hit;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, SAFETY, Stage, play, play_script, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, positions, striped};
use crate::world::World;
use crate::world::fault::{Death, Fault};

/// Logs that are swapped between CORFU and native Loglets.
pub const CORFU: Scenario = Scenario {
    name: "corfu",
    about: "a log that is swapped native, CORFU, native while it is written, read and trimmed; nodes die and lose links",
    run,
    marks: &[
        &["sim.corfu.two_chains", "corfu.append.lost", "corfu.append.retry", "corfu.append.mine"],
        &["corfu.check.fills", "corfu.read.hole", "corfu.read.junk", "corfu.back_fill"],
        &["corfu.seal.copies", "corfu.seal.holes", "corfu.seal.unit_lost", "corfu.unit.sealed"],
    ],
    full: true,
};

/// Single positions, which clients look at, fill and trim while units are replaced.
pub const POSITIONS: Scenario = Scenario {
    name: "corfu-positions",
    about: "single positions of a log are appended to, looked at, filled and trimmed, while units are replaced and nodes die",
    run: run_positions,
    marks: &[
        &[
            "sim.positions.abandoned",
            "sim.positions.filled",
            "sim.positions.trimmed",
            "sim.positions.replaced",
        ],
        &["corfu.positions.fill", "corfu.positions.trim", "corfu.read.erased", "vlog.position.sealed"],
    ],
    full: false,
};

/// Nodes that are killed and stay dead while the others must go on.
pub const DEAD: Scenario = Scenario {
    name: "corfu-dead",
    about: "directed: a node with a unit, the sequencer or both dies and stays dead; the others append, and read everything",
    run: run_dead,
    marks: &[&["sim.corfu.went_on_without"]],
    full: false,
};

const LOG: &str = "log0";
/// How long single positions are used under faults.
const POSITIONS_FOR: Duration = Duration::from_secs(30);
/// How many nodes die in one directed run, one after the other.
const DEATHS: u32 = 4;

/// Returns a specification of CORFU Loglets for the members that there are.
fn spec(stage: &Stage<NodeHandles>) -> LogletSpec {
    let members = load::members(stage).len();
    let mut spec = LogletSpec::of("corfu");
    let mut option = |name: &str, value: &str| spec.options.insert(name.to_owned(), value.to_owned());
    match stage.below(4) {
        0 if members >= 4 => {
            hit("sim.corfu.two_chains");
            option("chains", "2");
            option("replicas", "2");
            option("stripe", &(1 + stage.below(4)).to_string());
        }
        1 if members >= 3 => {
            option("chains", "1");
            option("replicas", "3");
        }
        _ => {
            option("chains", "1");
            option("replicas", "2");
        }
    }
    spec
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x636f_7266_7500);
    let hosts = [3, 3, 4, 5, 6][rng.below(5) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    striped::people(&stage, &mut rng, LOG, ("corfu", 3), spec);
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

/// Extends the log to chains of another shape from time to time.
async fn extender(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(life) = load::live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let _ = stage.cluster.ask(&life, log.extend(spec(&stage))).await;
    }
}

fn run_positions(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x706f_7369_7469);
    let hosts = [3, 4, 5, 6][rng.below(4) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let judge = positions::Judge::default();
    let replace = Duration::from_millis(800 + rng.below(3_000));
    let (all, judged) = (stage.clone(), judge.clone());
    let clients = stage.clone();
    all.spawn("people", async move {
        let stage = clients;
        load::create_kind(&stage, LOG, "corfu").await;
        let name = || LOG.to_owned();
        let often = Duration::from_millis(40);
        for _ in 0..2 {
            stage.spawn("appender", positions::appender(stage.clone(), name(), judged.clone(), often));
            stage.spawn("prober", positions::prober(stage.clone(), name(), judged.clone(), often));
        }
        stage.spawn("quitter", positions::quitter(stage.clone(), name(), often * 4));
        stage.spawn("replacer", positions::replacer(stage.clone(), name(), replace));
        stage.spawn("operator", extender(stage.clone(), name(), replace * 2));
    });
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(500 + rng.below(1_500)),
        during: POSITIONS_FOR,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = positions::demand(stage.clone(), LOG.to_owned(), judge);
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn run_dead(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6465_6164_6366);
    let hosts = [3, 4, 5][rng.below(3) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let script = die_in_turn(stage.clone(), hosts);
    play_script(&mut world, &stage, script, Duration::from_secs(600))
}

async fn die_in_turn(stage: Stage<NodeHandles>, hosts: usize) {
    load::create_kind(&stage, LOG, "corfu").await;
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
        hit("sim.corfu.went_on_without");
        stage.cluster.inject(Fault::Boot { host: victim });
        stage.report();
        // Before that, some entry may have no copy but that of a unit that was up. A chain of two units loses one at a time.
        load::filled(&stage, LOG).await;
        stage.report();
    }
    stage.over.raise();
    stage.pause(Duration::from_secs(1)).await;
    load::demand(stage, vec![LOG.to_owned()]).await;
}

//! Striped Loglets on whole nodes: swapped in and out under load and faults; and, directed, with stripes to which nobody appends.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::testing::hit;
use atoll_node::assembly::Options;

use crate::rng::Rng;
use crate::scenario::nemesis::{self, Menu};
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Faults, SAFETY, Stage, play, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, striped};
use crate::world::fault::{Death, Fault};
use crate::world::{Weather, World};

/// Logs that are swapped between striped and native Loglets.
pub const STRIPED: Scenario = Scenario {
    name: "striped",
    about: "a log that is swapped native, striped, native while it is written, read and trimmed; nodes die and lose links",
    run,
    marks: &[
        &["sim.striped.rotating", "sim.striped.sharded"],
        &["striped.append.blocked", "striped.pads", "striped.check_tail.some_sealed"],
    ],
    full: true,
};

/// Stripes to which nobody appends, and nodes that stay dead.
pub const IDLE: Scenario = Scenario {
    name: "striped-idle",
    about: "directed: one record at a time over striped Loglets; nodes die and stay dead, and appends must still succeed",
    run: run_idle,
    marks: &[&["sim.striped.minority_dead", "striped.append.blocked", "striped.pads"]],
    full: false,
};

const LOG: &str = "log0";
/// How many times a minority dies in one directed run.
const ROUNDS: u32 = 3;
/// How long a minority stays dead.
const STAYS_DEAD: Duration = Duration::from_secs(8);
/// Within this time, some append must succeed with a minority dead.
const WORKS_WITHIN: Duration = Duration::from_secs(4);

pub(super) fn nodes(rng: &mut Rng, hosts: usize) -> (Weather, Nodes) {
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let mut options = Options::default();
    options.log.page_items = 2;
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let founders = if hosts >= 5 { 5 } else { 3 };
    (weather, Nodes { members: hosts, founders, options, programs: Default::default(), starts: 0 })
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0073_7472_6970_6564);
    let hosts = [3, 3, 4, 5, 6][rng.below(5) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    people(&stage, &mut rng);
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

/// Starts the clients and the operator.
fn people(stage: &Stage<NodeHandles>, rng: &mut Rng) {
    let appenders = 1 + rng.below(3);
    let reconfigure = Duration::from_millis(2_000 + rng.below(3_000));
    let trims = rng.below(2) == 0;
    let first = if rng.below(3) == 0 { "native" } else { "striped" };
    let all = stage.clone();
    let stage = stage.clone();
    all.spawn("people", async move {
        load::create_kind(&stage, LOG, first).await;
        let name = || LOG.to_owned();
        for _ in 0..appenders {
            let think = Duration::from_millis(150 * appenders);
            stage.spawn("appender", load::appender(stage.clone(), name(), think));
        }
        stage.spawn("loner", striped::loner(stage.clone(), name(), Duration::from_millis(150)));
        stage.spawn("checker", load::checker(stage.clone(), name(), Duration::from_millis(300)));
        stage.spawn("reader", load::reader(stage.clone(), name(), Duration::from_millis(100)));
        stage.spawn("operator", striped::swapper(stage.clone(), name(), reconfigure, striped::spec));
        if trims {
            stage.spawn("trimmer", load::trimmer(stage.clone(), name(), Duration::from_secs(4)));
        }
    });
}

fn run_idle(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6964_6c65);
    let hosts = [3, 5][rng.below(2) as usize];
    let (weather, mut assembly) = nodes(&mut rng, hosts);
    if hosts == 5 && rng.below(2) == 0 {
        assembly.options.protocols.set("replicas", 5);
    }
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let script = script(stage.clone(), hosts, 2 + rng.below(2));
    play_script(&mut world, &stage, script, (STAYS_DEAD + WORKS_WITHIN) * 4 * ROUNDS)
}

async fn script(stage: Stage<NodeHandles>, hosts: usize, stripes: u64) {
    load::create(&stage, LOG).await;
    let mut spec = LogletSpec::of("striped");
    spec.options.insert("stripes".to_owned(), stripes.to_string());
    loop {
        stage.pause(Duration::from_millis(50)).await;
        let Some(life) = load::live(&stage, stage.below(64) as usize) else { continue };
        let Some(log) = life.handles.log(LOG) else { continue };
        if let Some(Ok(Ok(_))) = stage.cluster.ask(&life, log.extend(spec.clone())).await {
            break;
        }
    }
    stage.spawn("loner", striped::loner(stage.clone(), LOG.to_owned(), Duration::from_millis(60)));
    stage.spawn("checker", load::checker(stage.clone(), LOG.to_owned(), Duration::from_millis(200)));
    stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(100)));
    works(&stage, "all nodes are up").await;
    for _ in 0..ROUNDS {
        let dead = stage.below(hosts as u64) as usize;
        stage.cluster.inject(Fault::Crash { host: dead, death: Death::Kill, back_after: None });
        hit("sim.striped.minority_dead");
        works(&stage, &format!("host {dead} is dead")).await;
        stage.env.sleep(STAYS_DEAD).await;
        nemesis::heal(&stage.cluster, hosts);
        stage.pause(Duration::from_secs(2)).await;
        stage.report();
    }
    stage.over.raise();
    stage.pause(Duration::from_secs(1)).await;
    load::demand(stage, vec![LOG.to_owned()]).await;
}

/// Demands that some append succeeds soon.
async fn works(stage: &Stage<NodeHandles>, when: &str) {
    // Appends that were acknowledged before do not count.
    stage.env.sleep(WORKS_WITHIN).await;
    let before = stage.oracles.log.acknowledged(LOG);
    stage.env.sleep(WORKS_WITHIN).await;
    if stage.oracles.log.acknowledged(LOG) == before {
        stage.cluster.fail(format!(
            "striped-I6 behind an idle stripe: {LOG}: no append in {WORKS_WITHIN:?} while {when}"
        ));
    }
}

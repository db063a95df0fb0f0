//! Directed: the node that reconfigures a log dies after a random number of frames and stays dead; sometimes a second one dies, too. The
//! other nodes must complete the reconfiguration (vlog-VL8) and accept appends. No links are cut, because the oracle does not see links.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::testing::hit;
use atoll_node::assembly::Options;

use crate::oracle::completion::CompletionOracle;
use crate::rng::Rng;
use crate::scenario::nemesis;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Stage, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log as load;
use crate::world::fault::{Death, Fault};
use crate::world::{Weather, World};

/// See the module documentation.
pub const MOVERS: Scenario = Scenario {
    name: "vlog-movers",
    about: "directed: every reconfigurer dies somewhere in its work and stays dead; the others complete what it began",
    run,
    marks: &[&[
        "native.seal.died_with_a_minority",
        "sim.vl8.completed",
        "sim.vl8.two_died",
        "vlog.extend.died_after_seal",
        "vlog.extend.died_before_install",
        "vlog.roll_forward",
    ]],
    full: false,
};

const LOG: &str = "log0";
/// How many times reconfigurers die in one run.
const ROUNDS: u32 = 6;
/// The most frames that a reconfigurer sends before it dies. An extend under this load takes about half as many.
const MOST_FRAMES: u64 = 70;
/// A reconfigurer that is still up after this time is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// How long a reconfigurer stays dead: longer than the oracle waits.
const STAYS_DEAD: Duration = Duration::from_secs(12);
/// A restart time that is never reached. [`Fault::Boot`] restarts the node long before.
const NEVER: u64 = 1 << 50;

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d6f_7665_7273);
    let hosts = [3, 4, 5][rng.below(3) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        ..Weather::default()
    };
    let mut options = Options::default();
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    if hosts == 5 {
        options.protocols.set("replicas", 5);
    }
    let founders = hosts - usize::from(hosts == 4);
    let assembly = Nodes { members: hosts, founders, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    world.observe(Box::new(CompletionOracle::new(stage.oracles.wire.clone())));
    let script = script(stage.clone(), hosts);
    play_script(&mut world, &stage, script, (STAYS_DEAD + ENDS_WITHIN) * 3 * ROUNDS)
}

async fn script(stage: Stage<NodeHandles>, hosts: usize) {
    load::create(&stage, LOG).await;
    for _ in 0..2 {
        let think = Duration::from_millis(40);
        stage.spawn("appender", load::appender(stage.clone(), LOG.to_owned(), think));
    }
    stage.spawn("checker", load::checker(stage.clone(), LOG.to_owned(), Duration::from_millis(100)));
    stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(50)));
    for _ in 0..ROUNDS {
        stage.pause(Duration::from_secs(3)).await;
        round(&stage, hosts).await;
        nemesis::heal(&stage.cluster, hosts);
        stage.report();
    }
    stage.over.raise();
    stage.pause(Duration::from_secs(1)).await;
    load::demand(stage, vec![LOG.to_owned()]).await;
}

/// Lets one or two reconfigurers die, and gives the other nodes time to complete their work.
async fn round(stage: &Stage<NodeHandles>, hosts: usize) {
    let first = stage.below(hosts as u64) as usize;
    let mut movers = vec![first];
    // A cluster with five servers and acceptors tolerates two dead nodes.
    if hosts == 5 && stage.below(2) == 0 {
        movers.push((first + 1 + stage.below(4) as usize) % hosts);
        hit("sim.vl8.two_died");
    }
    for mover in &movers {
        let Some(life) = stage.cluster.host(*mover) else { continue };
        let frames = stage.below(MOST_FRAMES);
        stage.cluster.inject(Fault::CrashAfterFrames { host: *mover, frames, back_after: NEVER });
        let stage = stage.clone();
        stage.clone().spawn("mover", async move {
            if let Some(log) = life.handles.log(LOG) {
                let _ = stage.cluster.ask(&life, log.extend(LogletSpec::default())).await;
            }
        });
    }
    stage.env.sleep(ENDS_WITHIN).await;
    for host in movers.into_iter().filter(|host| stage.cluster.health(*host).up) {
        stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    }
    stage.env.sleep(STAYS_DEAD).await;
    let before = stage.oracles.log.acknowledged(LOG);
    stage.env.sleep(ENDS_WITHIN).await;
    if stage.oracles.log.acknowledged(LOG) == before {
        stage.cluster.fail(format!(
            "vlog-VL8 not completed: {LOG}: no append in {ENDS_WITHIN:?}, {STAYS_DEAD:?} after reconfigurers died"
        ));
    }
}

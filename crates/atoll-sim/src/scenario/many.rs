//! Directed: a thousand logs at once. They are created, written, and moved when a node dies. Each of them must soon accept appends again
//! and may change only a few times. Then all are deleted, and every node must report that.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use atoll_contract::{ClientId, LogletId};
use atoll_core::testing::hit;
use atoll_log::virtual_log::LogError;
use atoll_node::assembly::Options;

use crate::rng::Rng;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Flag, Stage, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log as load;
use crate::world::fault::{Death, Fault};
use crate::world::{Weather, World};

/// See the module documentation.
pub const MANY_LOGS: Scenario = Scenario {
    name: "many-logs",
    about: "directed: a thousand logs are created, written, moved when a node dies, and deleted",
    run,
    marks: &[&["sim.many.moved", "sim.many.appended_without_the_dead", "sim.many.deleted", "sim.fault.kill"]],
    full: false,
};

const LOGS: usize = 1_000;
/// The number of workers, which share the logs.
const WORKERS: usize = 8;
/// How many logs are written while a node is dead. Some of them are read completely at the end.
const SAMPLE: usize = 100;
/// How soon all logs of a dead node must be moved. A node moves sixteen at a time, each in some round trips and syncs.
const MOVED_WITHIN: Duration = Duration::from_secs(30);
/// How long the node stays dead at least: longer than any node needs to notice.
const STAYS_DEAD: Duration = Duration::from_secs(12);
/// How often one log may change because of one death.
const MOVES: usize = 3;
const MOST: Duration = Duration::from_secs(200);

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d61_6e79);
    let hosts = [3, 4, 5][rng.below(3) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000][rng.below(2) as usize],
        sync_ns: [50_000, 200_000][rng.below(2) as usize],
        segment_bytes: 1 << 20,
        ..Weather::default()
    };
    let options = Options::default();
    let assembly = Nodes { members: hosts, founders: 3, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let script = script(stage.clone(), hosts);
    play_script(&mut world, &stage, script, MOST)
}

fn name(n: usize) -> String {
    format!("log{n}")
}

/// Runs `work` for each of the first `logs` logs, on several workers.
async fn each<F>(stage: &Stage<NodeHandles>, logs: usize, work: fn(Stage<NodeHandles>, String) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let done: Vec<Flag> = (0..WORKERS).map(|_| Flag::default()).collect();
    for (worker, done) in done.iter().enumerate() {
        let (stage, done) = (stage.clone(), done.clone());
        stage.clone().spawn("worker", async move {
            for n in (worker..logs).step_by(WORKERS) {
                work(stage.clone(), name(n)).await;
                stage.report();
            }
            done.raise();
        });
    }
    for done in done {
        while !done.is_up() {
            stage.env.sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn create(stage: Stage<NodeHandles>, name: String) {
    load::create(&stage, &name).await;
}

/// Appends one record through any node and retries until it is acknowledged.
async fn append(stage: Stage<NodeHandles>, name: String) {
    let client = ClientId(stage.env.random() | 1);
    let mut pending = vec![load::record(&stage, client, 1)];
    let mut at = stage.below(64) as usize;
    while !load::round(&stage, &name, &mut at, &mut pending).await {
        stage.waits_for(format!("an append to {name}"));
        at = stage.below(64) as usize;
        stage.pause(Duration::from_millis(20)).await;
    }
}

async fn delete(stage: Stage<NodeHandles>, name: String) {
    stage.oracles.log.trim_begins(&name, u64::MAX);
    loop {
        let life = load::live(&stage, stage.below(64) as usize);
        if let Some(life) = life
            && let Some(log) = life.handles.log(&name)
            && matches!(stage.cluster.ask(&life, log.delete()).await, Some(Ok(Ok(_))))
        {
            hit("sim.many.deleted");
            return;
        }
        stage.waits_for(format!("{name} to be deleted"));
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Returns the active Loglet of every log.
fn active(stage: &Stage<NodeHandles>) -> BTreeMap<String, LogletId> {
    let wire = stage.oracles.wire.lock();
    let all = wire.chain.newest_of_all();
    all.filter_map(|(name, chain)| Some((name.to_owned(), chain.segments().last()?.loglet))).collect()
}

/// Returns the logs whose sequencer is on this host.
fn ordered_by(stage: &Stage<NodeHandles>, host: usize) -> Vec<String> {
    let wire = stage.oracles.wire.lock();
    let is_here = |name: &String| {
        wire.chain.serving(name).is_some_and(|(_, sequencer)| sequencer.0 as usize - 1 == host)
    };
    (0..LOGS).map(name).filter(is_here).collect()
}

/// Kills a node. Its logs must be moved, the sample must accept appends, and no log may change too often.
async fn one_dies(stage: &Stage<NodeHandles>, hosts: usize) {
    let Some(host) = (0..hosts).max_by_key(|host| ordered_by(stage, *host).len()) else { return };
    let before = active(stage);
    stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    let died = stage.env.now();
    loop {
        let left = ordered_by(stage, host);
        let took = stage.env.now().since(died);
        if left.is_empty() {
            hit("sim.many.moved");
            break;
        }
        if took > MOVED_WITHIN {
            let why = format!("MANY: host {host} died {took:?} ago and still orders {} logs", left.len());
            stage.cluster.fail(why);
            return stage.cluster.inject(Fault::Boot { host });
        }
        stage.env.sleep(Duration::from_millis(200)).await;
    }
    // The node is still dead, so each of these logs must accept a record without it.
    each(stage, SAMPLE, append).await;
    hit("sim.many.appended_without_the_dead");
    stage.env.sleep(STAYS_DEAD).await;
    stage.cluster.inject(Fault::Boot { host });
    stage.env.sleep(STAYS_DEAD).await;
    let wire = stage.oracles.wire.lock();
    let moves = before.iter().map(|(name, old)| (wire.chain.later_than(name, *old), name));
    if let Some((times, name)) = moves.max()
        && times > MOVES
    {
        stage.cluster.fail(format!("MANY: {name} was changed {times} times because host {host} died"));
    }
}

async fn script(stage: Stage<NodeHandles>, hosts: usize) {
    each(&stage, LOGS, create).await;
    each(&stage, LOGS, append).await;
    one_dies(&stage, hosts).await;
    stage.over.raise();
    load::demand(stage.clone(), (0..SAMPLE).step_by(SAMPLE / 5).map(name).collect()).await;
    each(&stage, LOGS, delete).await;
    for host in 0..hosts {
        for n in (0..LOGS).step_by(LOGS / 20) {
            let Some(life) = stage.cluster.host(host) else { continue };
            let Some(log) = life.handles.log(&name(n)) else { continue };
            let told = stage.cluster.ask(&life, log.check_tail()).await;
            if let Some(Ok(Ok(tail))) = told {
                stage
                    .cluster
                    .fail(format!("V24: host {host} gives the tail {tail} of a log that was deleted"));
            }
            if matches!(told, Some(Ok(Err(LogError::Deleted)))) {
                hit("sim.deleted.told");
            }
        }
    }
}

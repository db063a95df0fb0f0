//! Directed: clients fill the shards of a log, and the policy of the nodes adds others, one at a time, while nodes die and lose links.
//!
//! Its judge sees each shard in the chain at the moment at which it is named there. Then every other shard that takes records must be
//! full, and some time must have passed since the last change of the segment.

use std::time::Duration;

use atoll_contract::{LogletId, LogletSpec};
use atoll_core::Tick;
use atoll_core::testing::hit;
use atoll_log::virtual_log::ActiveShards;
use atoll_node::policy::shard_adder::CALM;
use atoll_protocols::duties;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{log as load, shards};
use crate::world::World;

/// A policy that adds shards.
pub const SCENARIO: Scenario = Scenario {
    name: "scalog-full",
    about: "directed: clients fill the shards of a log, and the nodes add others, one at a time, while nodes die and lose links",
    run,
    marks: &[&["policy.shards.added", "policy.shards.not_added", "sim.full.judged"]],
    full: false,
};

const LOG: &str = "log0";
/// A shard with this many records is full.
const FULL: u64 = 40;
/// The servers of a shard.
const REPLICAS: usize = 2;
/// How long the phase under faults lasts.
const DURING: Duration = Duration::from_secs(55);
/// Clocks of nodes are fast by a twentieth at most.
const CALM_AT_LEAST: Duration = Duration::from_millis(CALM.as_millis() as u64 * 9 / 10);
/// How often the judge looks at the chain.
const LOOK: Duration = Duration::from_millis(10);

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6675_6c6c_7368);
    let hosts = [4, 6, 6, 7][rng.below(4) as usize];
    let (weather, mut assembly) = nodes(&mut rng, hosts);
    assembly.options.full_shard_records = FULL;
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let judge = shards::Judge::default();
    let (clients, judged) = (stage.clone(), judge.clone());
    stage.spawn("people", async move {
        let stage = clients;
        load::create_spec(&stage, LOG, one_shard()).await;
        let (name, often) = (|| LOG.to_owned(), Duration::from_millis(40));
        for _ in 0..3 {
            stage.spawn("chooser", shards::appender(stage.clone(), name(), judged.clone(), often));
        }
        stage.spawn("appender", load::appender(stage.clone(), name(), often * 4));
        stage.spawn("checker", load::checker(stage.clone(), name(), often * 8));
        stage.spawn("reader", load::reader(stage.clone(), name(), often * 8));
        stage.spawn("looker", shards::reader(stage.clone(), name(), judged, often * 4));
        stage.spawn("judge", watch(stage.clone()));
    });
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(3_000 + rng.below(9_000)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let all = stage.clone();
    let demand = async move {
        load::demand(all.clone(), vec![LOG.to_owned()]).await;
        shards::demand(all.clone(), LOG.to_owned(), judge).await;
        has_room(&all, hosts).await;
    };
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn one_shard() -> LogletSpec {
    let mut spec = LogletSpec::of("scalog");
    for (name, value) in [("shards", "1".to_owned()), ("replicas", REPLICAS.to_string())] {
        spec.options.insert(name.to_owned(), value);
    }
    spec
}

/// Returns the active Loglet, and how many storage servers the chain names for it, each as often as a shard has it.
fn named(stage: &Stage<NodeHandles>) -> Option<(LogletId, usize)> {
    let wire = stage.oracles.wire.lock();
    let active = wire.chain.newest(LOG)?.segments().last()?;
    let servers = duties(&active.kind, &active.config).0.iter().filter(|duty| duty.role == "storage").count();
    Some((active.loglet, servers))
}

/// Watches the chain until the load is over.
async fn watch(stage: Stage<NodeHandles>) {
    let mut last: Option<(LogletId, usize, Tick)> = None;
    while !stage.over.is_up() {
        stage.env.sleep(LOOK).await;
        let (Some((loglet, servers)), now) = (named(&stage), stage.env.now()) else { continue };
        match last {
            Some((before, count, _)) if before == loglet && count == servers => continue,
            Some((before, _, since)) if before == loglet => was_added(&stage, loglet, now.since(since)).await,
            _ => {}
        }
        last = Some((loglet, servers, now));
    }
}

/// Checks that a shard was added for a reason, and not too early.
async fn was_added(stage: &Stage<NodeHandles>, loglet: LogletId, after: Duration) {
    if after < CALM_AT_LEAST {
        let least = CALM_AT_LEAST;
        stage.cluster.fail(format!("FULL: a shard was added {after:?} after the last change, not {least:?}"));
    }
    let Some(active) = ask(stage).await.filter(|active| active.loglet == loglet) else { return };
    let newest = active.shards.shards.iter().map(|shard| shard.number).max();
    let stays = active.shards.shards.iter().filter(|shard| shard.is_live() && shard.leaving.is_none());
    for shard in stays.filter(|shard| Some(shard.number) != newest || active.shards.shards.len() == 1) {
        if shard.records < FULL {
            let (number, records) = (shard.number, shard.records);
            stage.cluster.fail(format!(
                "FULL: a shard was added although shard {number} has {records} of {FULL} records"
            ));
        }
    }
    hit("sim.full.judged");
}

/// Returns the shards, as some node says, or None if no node answers for a while.
async fn ask(stage: &Stage<NodeHandles>) -> Option<ActiveShards> {
    for _ in 0..20 {
        if let Some(life) = load::live(stage, stage.below(64) as usize)
            && let Some(active) = shards::shards(stage, &life, LOG).await
        {
            return Some(active);
        }
        stage.pause(Duration::from_millis(100)).await;
    }
    None
}

/// Demands that the log gets another shard if all are full and enough nodes keep none.
async fn has_room(stage: &Stage<NodeHandles>, hosts: usize) {
    loop {
        let Some(active) = ask(stage).await else { continue };
        let live: Vec<_> = active.shards.shards.iter().filter(|shard| shard.is_live()).collect();
        let free = hosts - live.iter().map(|shard| shard.nodes.len()).sum::<usize>().min(hosts);
        let is_full = live.iter().all(|shard| shard.records >= FULL || shard.leaving.is_some());
        if !is_full || free < REPLICAS {
            return;
        }
        stage.waits_for(format!("another shard of {LOG}: its {} shards are full", live.len()));
        stage.pause(Duration::from_millis(200)).await;
    }
}

//! ZooKeeper clients at the doors of whole nodes: the real connections, sessions, watches and tree over a virtual log that is reconfigured
//! repeatedly. Nodes die, are paused, are cut off, and lose state that was not persisted.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::NodeId;
use atoll_core::testing::{hit, watch_applied};
use atoll_db::Engine;
use atoll_node::database::LOG;
use atoll_zookeeper::ZooKeeper;
use atoll_zookeeper::server::options::Options;

use crate::oracle::zookeeper::ZooKeeperOracle;
use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, Tenant, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log;
use crate::workload::zookeeper::client::Client;
use crate::workload::zookeeper::host::Doors;
use crate::world::World;
use crate::world::observer::Who;

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "zookeeper",
    about: "ZooKeeper clients with sessions, watches and transactions at doors whose nodes die, stop and are cut off",
    run,
    marks: &[&[
        "db.refilled",
        "sim.zookeeper.audited",
        "sim.zookeeper.came_back",
        "sim.zookeeper.closed",
        "sim.zookeeper.container_went",
        "sim.zookeeper.ended_in_steps",
        "sim.zookeeper.event",
        "sim.zookeeper.expired",
        "sim.zookeeper.expiry_refused",
        "sim.zookeeper.quota_exceeded",
        "sim.zookeeper.reap_came_too_late",
        "sim.zookeeper.refilled",
        "sim.zookeeper.taken_over",
        "sim.zookeeper.told_late",
        "sim.zookeeper.ttl_ended",
        "zk.read.elsewhere",
    ]],
    full: true,
};

/// Runs ZooKeeper on every node, with its door.
pub(super) struct WithDoors {
    pub(super) doors: Arc<OnceLock<Doors>>,
    pub(super) rng: Rng,
    pub(super) skew_permille: u64,
}

impl Tenant for WithDoors {
    type App = ZooKeeper;

    fn app(&mut self, _who: &Who) -> ZooKeeper {
        ZooKeeper
    }

    fn opened(&mut self, who: &Who, handles: &NodeHandles, engine: Engine<ZooKeeper>) {
        let speed = 1000 - self.skew_permille + self.rng.below(2 * self.skew_permille + 1);
        if let Some(doors) = self.doors.get() {
            doors.open(who.node, engine, handles.0.members.clone(), speed);
        }
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    watch_applied(true);
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7a6f_6f6b);
    let (members, weather) = place(&mut rng);
    let oracle = ZooKeeperOracle::default();
    let doors_there = Arc::new(OnceLock::new());
    let tenant =
        WithDoors { doors: doors_there.clone(), rng: rng.fork(), skew_permille: weather.skew_permille };
    let mut assembly = Replicas::new(members, tenant);
    // In half of the runs, some reads wait for a disk, and the door makes them beside everything else.
    assembly.on_disk = seed & 2 == 0;
    // In a third of the runs, most writes of clients are in several parts.
    assembly.cut = seed.is_multiple_of(3).then_some((64, 40));
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    // Timeouts are short, so that sessions expire within a run.
    let options = Options {
        min_session_timeout_ms: 1_000,
        // ZooKeeper checks once a minute. Here the checks are frequent, so that clients still use znodes that are due for deletion.
        reap_every: Duration::from_millis([200, 1_000, 3_000][rng.below(3) as usize]),
        enforce_quota: rng.below(2) == 0,
        // The sessions have few ephemerals. One per step makes some of them end in several steps.
        ephemerals_at_once: if seed.is_multiple_of(2) { 1 } else { Options::default().ephemerals_at_once },
        ..Options::default()
    };
    let doors = Doors::new(world.clients(), world.cluster(), oracle.clone(), options);
    // This must happen before the nodes start.
    let _ = doors_there.set(doors.clone());
    let stage: Stage<NodeHandles> = stage(&mut world);
    for id in 0..3 + rng.below(3) as usize {
        let think = Duration::from_millis(60 + rng.below(120));
        let timeout_ms = [1_500, 2_500, 4_000, 6_000][rng.below(4) as usize];
        let client = Client::new(stage.clone(), doors.clone(), oracle.clone(), id, think, timeout_ms);
        stage.spawn("zookeeper.client", client.run());
    }
    stage.spawn("zookeeper.auditor", auditor(stage.clone(), doors.clone(), oracle.clone()));
    let every = Duration::from_millis(1_500 + rng.below(4_000));
    stage.spawn("operator", log::operator(stage.clone(), LOG.to_owned(), every, 1));
    let menu = Menu::USUAL.some(&mut rng);
    let faults = Faults::usual(menu, Duration::from_millis(300 + rng.below(1500)));
    let demand = demand(stage.clone(), doors.clone(), oracle.clone());
    let outcome = play(&mut world, &stage, &mut rng, faults, demand);
    doors.close_all();
    watch_applied(false);
    outcome
}

fn compare(stage: &Stage<NodeHandles>, doors: &Doors, oracle: &ZooKeeperOracle) {
    oracle.follow(stage.env.now().0);
    for host in 0..stage.cluster.hosts() {
        let node = NodeId(host as u32 + 1);
        if let Some(engine) = doors.engine(node) {
            oracle.audit(&format!("node {node}"), &engine.view_for_door());
        }
    }
    oracle.take_failures().into_iter().for_each(|f| stage.cluster.fail(f));
}

/// Compares all nodes with the oracle's tree from time to time.
async fn auditor(stage: Stage<NodeHandles>, doors: Doors, oracle: ZooKeeperOracle) {
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(1_500)).await;
        compare(&stage, &doors, &oracle);
    }
}

/// Demands that every node makes progress, that all sessions without clients expire, that znodes that are due are deleted, and that all
/// nodes have the same state.
pub(super) async fn demand(stage: Stage<NodeHandles>, doors: Doors, oracle: ZooKeeperOracle) {
    for host in 0..stage.cluster.hosts() {
        stage.waits_for(format!("a barrier at host {host}"));
        loop {
            let life = stage.cluster.host(host);
            let engine = doors.engine(NodeId(host as u32 + 1));
            if let (Some(life), Some(engine)) = (life, engine)
                && matches!(stage.cluster.ask(&life, engine.barrier()).await, Some(Ok(Ok(_))))
            {
                let health = engine.health();
                if health.halted.is_some() || health.divergence.is_some() {
                    stage.cluster.fail(format!("DATABASE: host {host} ended as {health:?}"));
                }
                break;
            }
            stage.pause(Duration::from_millis(50)).await;
        }
    }
    stage.waits_for("the end of sessions without clients".to_owned());
    while oracle.sessions() > 0 {
        stage.pause(Duration::from_millis(100)).await;
        compare(&stage, &doors, &oracle);
    }
    hit("sim.zookeeper.all_gone");
    while let Some(path) = oracle.transients().into_iter().next() {
        stage.waits_for(format!("the end of {path}"));
        stage.pause(Duration::from_millis(100)).await;
        compare(&stage, &doors, &oracle);
    }
}

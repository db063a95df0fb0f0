//! The database on whole nodes: engines over a virtual log that is reconfigured repeatedly. Nodes die and lose what their stores did not
//! persist, or lose their stores. The log is trimmed once the stores have applied it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use atoll_core::{Incarnation, NodeId};
use atoll_db::{Application, Engine};
use atoll_node::database::LOG;

use crate::oracle::database::DatabaseOracle;
use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, Tenant, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::database::{self as load, Cells};
use crate::workload::log;
use crate::world::World;
use crate::world::clients::Cluster;
use crate::world::observer::Who;

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(20);

/// The database under faults that cost no journal.
pub const SCENARIO: Scenario = Scenario {
    name: "database",
    about: "engines over a log that is reconfigured and trimmed; kills, partitions, lost stores; reads behind barriers",
    run,
    marks: &[&[
        "db.refilled",
        "db.upkeep.trim",
        "db.tailer.trimmed",
        "db.parts.whole",
        "db.parts.abandoned",
        "sim.database.hashes_compared",
    ]],
    full: false,
};

/// One life of one node.
type LifeId = (NodeId, Incarnation);

/// The engines of the running nodes, by life. Clones share their state.
#[derive(Debug)]
pub struct Engines<A: Application>(Arc<Mutex<BTreeMap<LifeId, Engine<A>>>>);

impl<A: Application> Clone for Engines<A> {
    fn clone(&self) -> Self {
        Engines(self.0.clone())
    }
}

impl<A: Application> Default for Engines<A> {
    fn default() -> Self {
        Engines(Arc::default())
    }
}

impl<A: Application> Engines<A> {
    /// Returns the engine of a life, once it is open.
    pub fn get(&self, node: NodeId, life: Incarnation) -> Option<Engine<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(node, life)).cloned()
    }

    /// Adds the engine of a node's new life, and closes the doors of its earlier lives.
    pub fn put(&self, node: NodeId, life: Incarnation, engine: Engine<A>) {
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|(n, _), old| {
            if *n == node {
                load::close_door(old);
            }
            *n != node
        });
        engines.insert((node, life), engine);
    }

    /// Closes all doors and removes all engines.
    pub fn close(&self) {
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.values().for_each(load::close_door);
        engines.clear();
    }
}

/// Runs cells on every node, with a door that reports to the oracle.
pub struct Cellular {
    /// Where clients find the engines.
    pub engines: Engines<Cells>,
    /// The oracle that the doors report to.
    pub oracle: DatabaseOracle,
    /// Where doors report violations. Set before the nodes start.
    pub cluster: Arc<OnceLock<Cluster<NodeHandles>>>,
}

impl Tenant for Cellular {
    type App = Cells;

    fn app(&mut self, _who: &Who) -> Cells {
        Cells
    }

    fn opened(&mut self, who: &Who, _handles: &NodeHandles, engine: Engine<Cells>) {
        if let Some(cluster) = self.cluster.get() {
            load::open_door(engine.clone(), self.oracle.clone(), cluster.clone());
        }
        self.engines.put(who.node, who.incarnation, engine);
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6461_7461_6261_7365);
    let (members, weather) = place(&mut rng);
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let cells = Cellular { engines: engines.clone(), oracle: oracle.clone(), cluster: cluster.clone() };
    let mut assembly = Replicas::new(members, cells);
    // In a third of the runs, every command is in three parts.
    assembly.cut = seed.is_multiple_of(3).then_some((6, 6));
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    // This must happen before the nodes start, because their doors report violations there.
    let _ = cluster.set(world.cluster());
    let stage: Stage<NodeHandles> = stage(&mut world);
    for _ in 0..2 + rng.below(3) {
        let think = Duration::from_millis(30 + rng.below(60));
        stage.spawn("writer", load::writer(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    for _ in 0..2 {
        let think = Duration::from_millis(100);
        stage.spawn("reader", load::reader(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    let every = Duration::from_millis(1_500 + rng.below(3_000));
    stage.spawn("operator", log::operator(stage.clone(), LOG.to_owned(), every, 1));
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(300 + rng.below(1500)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = load::demand(stage.clone(), engines.clone(), oracle.clone());
    let mut outcome = play(&mut world, &stage, &mut rng, faults, demand);
    engines.close();
    outcome.size.answered += oracle.answered();
    outcome
}

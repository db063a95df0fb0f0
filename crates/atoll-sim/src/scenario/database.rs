//! The database on whole nodes: engines over a virtual log that is reconfigured all the time; nodes die and forget what their
//! stores did not persist, or lose them; the log is trimmed behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use atoll_core::{Frame, Incarnation, NodeCore, NodeId, StorageId};
use atoll_db::{
    Applications, Cluster as Replicas, Database, Engine, Ground, MemoryStore, Options as DatabaseOptions,
    Store, Threads,
};
use atoll_node::assembly::Options;
use atoll_node::database::LOG;

use crate::oracle::database::DatabaseOracle;
use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::database::{self as load, Cells};
use crate::workload::log;
use crate::world::observer::Who;
use crate::world::{Assembly, Weather, World};

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(20);
/// One start in so many finds its store empty.
const LOSES_STORE_EVERY: u64 = 6;

/// The database under everything that does not cost a journal.
pub const SCENARIO: Scenario = Scenario {
    name: "database",
    about: "engines over a log that is reconfigured and trimmed; kills, partitions, lost stores; reads behind barriers",
    run,
    marks: &["db.refilled", "db.patrol.trim", "db.learn.trimmed", "sim.database.hashes_compared"],
    full: false,
};

/// One life of one node.
type LifeId = (NodeId, Incarnation);

/// The engines of the nodes that are up, by life. Clones are one.
#[derive(Clone, Debug, Default)]
pub struct Engines(Arc<Mutex<BTreeMap<LifeId, Engine<Cells>>>>);

impl Engines {
    /// That of a life, once it is open.
    pub fn get(&self, node: NodeId, life: Incarnation) -> Option<Engine<Cells>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(node, life)).cloned()
    }

    fn put(&self, node: NodeId, life: Incarnation, engine: Engine<Cells>) {
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.retain(|(n, _), old| {
            if *n == node {
                load::close_door(old);
            }
            *n != node
        });
        engines.insert((node, life), engine);
    }

    fn close(&self) {
        let mut engines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        engines.values().for_each(load::close_door);
        engines.clear();
    }
}

/// Nodes with a database.
struct Databases {
    nodes: Nodes,
    engines: Engines,
    oracle: DatabaseOracle,
    /// Clients' side of the world, once it is there.
    cluster: Arc<OnceLock<crate::world::clients::Cluster<NodeHandles>>>,
    stores: BTreeMap<StorageId, MemoryStore>,
    starts: u64,
}

impl Databases {
    /// The store of a data directory: what it persisted in the life before, or nothing.
    fn store(&mut self, of: StorageId) -> MemoryStore {
        self.starts += 1;
        // What all have lost nobody can give back: the log is trimmed behind the stores.
        let others = self.stores.iter().filter(|(id, _)| **id != of);
        let mut others = others.map(|(_, store)| store.size_bytes() > 0).peekable();
        let may_lose = others.peek().is_some() && others.all(|full| full);
        let store = self.stores.entry(of).or_default();
        if may_lose && self.starts.is_multiple_of(LOSES_STORE_EVERY) {
            *store = MemoryStore::new();
        }
        store.crash();
        store.clone()
    }
}

impl Assembly for Databases {
    type Handles = NodeHandles;

    fn describe(&self, frame: &Frame) -> String {
        self.nodes.describe(frame)
    }

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, NodeHandles) {
        self.nodes.assemble(who, seed)
    }

    fn start(&mut self, core: &mut NodeCore, who: &Who, handles: &NodeHandles) {
        self.nodes.start(core, who, handles);
        let parts = &handles.0;
        let mut apps = Applications::new();
        let slot = apps.add(Cells);
        let env = parts.env.clone();
        let Ok(log) = parts.logs.open(LOG) else { return };
        let ground = Ground {
            env: parts.env.clone(),
            log,
            store: Box::new(self.store(who.storage)),
            // Clocks of nodes differ, and start anew with each life.
            clock: Arc::new(move || env.now().0 / 1_000_000),
            cluster: Some(Replicas {
                directory: Arc::new(parts.members.clone()),
                shelf: parts.database.shelf.clone(),
            }),
            threads: Threads::None,
            options: DatabaseOptions {
                max_entry_commands: 8,
                commit_above_bytes: 20_000,
                idle_after: Duration::from_millis(300),
                patrol_every: Duration::from_millis(700),
                keep_entries: 150,
                ..DatabaseOptions::default()
            },
        };
        // A store in memory can be read.
        let Ok(database) = Database::open(apps, ground) else { return };
        let engine = database.engine(&slot);
        if let Some(cluster) = self.cluster.get() {
            load::open_door(engine.clone(), self.oracle.clone(), cluster.clone());
        }
        self.engines.put(who.node, who.incarnation, engine);
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6461_7461_6261_7365);
    let members = [1, 3, 3, 3, 5][rng.below(5) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let mut options = Options::default();
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let assembly = Databases {
        nodes: Nodes { members, founders: members.min(3), options, starts: 0 },
        engines: engines.clone(),
        oracle: oracle.clone(),
        cluster: cluster.clone(),
        stores: BTreeMap::new(),
        starts: 0,
    };
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    // Before the nodes start: their doors report there.
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
    outcome.size.operations += oracle.counts().0;
    outcome
}

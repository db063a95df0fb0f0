//! Whole nodes with a database. A store may lose what it did not persist, or everything. The limits are small, so that every run reaches
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::{Frame, NodeCore, StorageId};
use atoll_db::{
    Application, Applications, Cluster, Database, Engine, MemoryStore, Options as DatabaseOptions,
    Persistence, ReplicaParts, Store, Threads,
};
use atoll_node::assembly::Options;
use atoll_node::database::{LOG, hear_clocks, read_replicas, report_to_members};
use atoll_object::testing::Memory;

use crate::rng::Rng;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::upgrade::Programs;
use crate::scenario::walls::Walls;
use crate::world::observer::Who;
use crate::world::{Assembly, Weather};

/// Out of this many starts, one finds its store empty, if all other stores have the state.
const LOSES_STORE_EVERY: u64 = 6;

/// How many entries a trim keeps below the position that all replicas have applied.
pub const KEEP_ENTRIES: u64 = 150;

/// The name of the cluster, in its backup.
pub const CLUSTER: &str = "reef";

/// An application on every node, with whatever uses it.
pub trait Tenant: Send {
    /// The application.
    type App: Application;

    /// Creates an instance of the application for a life of a node.
    fn app(&mut self, who: &Who) -> Self::App;

    /// Called when the database of a node's new life is open.
    fn opened(&mut self, who: &Who, handles: &NodeHandles, engine: Engine<Self::App>);
}

/// The stores of all nodes, by data directory. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stores(Arc<Mutex<BTreeMap<StorageId, MemoryStore>>>);

impl Stores {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<StorageId, MemoryStore>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a store fail in this way while its node runs; None ends the failure.
    pub fn fail(&self, of: StorageId, how: Option<Persistence>) {
        self.lock().entry(of).or_default().fail(how);
    }
}

/// Nodes with a database.
pub struct Replicas<T> {
    nodes: Nodes,
    /// The application, with whatever uses it.
    pub tenant: T,
    /// The stores of the nodes.
    pub stores: Stores,
    /// The wall clocks of the nodes.
    pub walls: Walls,
    /// Whether the stores read from disks: some keys are not in memory.
    pub on_disk: bool,
    /// If set, commands with more bytes than the first number are cut into parts of the second, as long ones are elsewhere.
    pub cut: Option<(usize, usize)>,
    /// The object store of the backup, if the nodes may make one.
    pub backups: Option<Memory>,
    starts: u64,
}

/// Draws the number of members, the network and the disks.
pub fn place(rng: &mut Rng) -> (usize, Weather) {
    let members = [1, 3, 3, 3, 5][rng.below(5) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    (members, weather)
}

impl<T: Tenant> Replicas<T> {
    /// Creates an assembly with this many members.
    pub fn new(members: usize, tenant: T) -> Self {
        let mut options = Options::default();
        // With the usual timings, most events of a run would be heartbeats. Detection still takes less time than a fault lasts.
        options.timings.heartbeat_every = Duration::from_millis(150);
        options.timings.silent_after = Duration::from_millis(600);
        let nodes =
            Nodes { members, founders: members.min(3), options, programs: Default::default(), starts: 0 };
        Replicas {
            nodes,
            tenant,
            stores: Stores::default(),
            walls: Walls::default(),
            on_disk: false,
            cut: None,
            backups: None,
            starts: 0,
        }
    }

    /// Runs these programs on the hosts.
    #[must_use]
    pub fn with_programs(mut self, programs: Programs) -> Self {
        self.nodes.programs = programs;
        self
    }

    /// Returns the store of a data directory, with what it persisted in the life before, or nothing.
    fn store(&mut self, of: StorageId) -> MemoryStore {
        self.starts += 1;
        // If all stores lost the state, nobody could restore it, because the log is trimmed once the stores have applied its entries.
        let mut stores = self.stores.lock();
        let others = stores.iter().filter(|(id, _)| **id != of);
        let mut others = others.map(|(_, store)| store.size_bytes() > 0).peekable();
        let may_lose = others.peek().is_some() && others.all(|full| full);
        let store = stores.entry(of).or_default();
        if may_lose && self.starts.is_multiple_of(LOSES_STORE_EVERY) {
            *store = MemoryStore::new();
        }
        if self.on_disk {
            store.read_from_disk();
        }
        store.crash();
        store.clone()
    }
}

impl<T: Tenant> Assembly for Replicas<T> {
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
        let slot = apps.add(self.tenant.app(who));
        let Ok(log) = parts.logs.open(LOG) else { return };
        let wall = self.walls.of(who.node);
        parts.members.say_wall(wall.clone());
        let usual = DatabaseOptions::default();
        let replica_parts = ReplicaParts {
            env: parts.env.clone(),
            log: log.clone(),
            store: Box::new(self.store(who.storage)),
            clock: wall.clone(),
            cluster: Some(Cluster {
                directory: Arc::new(parts.members.clone()),
                shelf: parts.database.shelf.clone(),
                out_of_service: report_to_members(&parts.members),
                clocks: hear_clocks(parts),
                replicas: read_replicas(parts),
            }),
            threads: Threads::None,
            options: DatabaseOptions {
                cut_above_bytes: self.cut.map_or(usual.cut_above_bytes, |cut| cut.0),
                part_bytes: self.cut.map_or(usual.part_bytes, |cut| cut.1),
                max_entry_commands: 8,
                commit_above_bytes: 20_000,
                catch_up_commit_bytes: 50_000,
                idle_after: Duration::from_millis(300),
                upkeep_every: Duration::from_millis(700),
                keep_entries: KEEP_ENTRIES,
                stalled_after: Duration::from_millis(1_500),
                waited_for: Duration::from_millis(500),
                fenced_within: Duration::from_secs(4),
                held_at_most: Duration::from_secs(8),
                ..usual
            },
        };
        // A store in memory can always be read.
        let Ok(database) = Database::open(apps, replica_parts) else { return };
        parts.database.set(database.clone());
        if let Some(memory) = &self.backups {
            parts.backups.keep_in(memory.of(&parts.env));
            parts.backups.begin(CLUSTER.to_owned(), database.clone(), log, wall);
        }
        self.tenant.opened(who, handles, database.engine(&slot));
    }
}

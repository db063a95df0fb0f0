//! A simulated world: replicas on one virtual log, their nodes and stores, and a record of what clients observed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::conformance::Driver;
use atoll_contract::{LogletSpec, Registry};
use atoll_core::{Candidate, Directory, Level, NodeCore, NodeId};
use atoll_db::{
    Applications, Cluster, Database, LogPos, MemoryStore, Observer, Options, PeerClocks, ProposeError,
    ReplicaParts, ReplicaRole, Shelf, Store, Threads,
};
use atoll_log::VirtualLog;
use atoll_log::memory::MemoryServers;
use bytes::Bytes;

use super::{Map, MapEngine, add, fail, items};

pub const NODES: u32 = 3;

/// What clients observed.
#[derive(Default)]
pub struct Book {
    /// The outcome of each proposal: the place where it was applied, or None if the outcome is unknown. Proposals that did not
    /// happen are removed.
    pub proposals: BTreeMap<u64, Option<(LogPos, u32)>>,
    pub refused: Vec<u64>,
    /// The state at each position, as the first replica showed it.
    pub states: BTreeMap<LogPos, Vec<(String, String)>>,
    pub violations: Vec<String>,
    pub applied: u64,
    pub barriers: u64,
}

impl Book {
    pub fn saw(&mut self, at: LogPos, state: Vec<(String, String)>) {
        match self.states.get(&at) {
            Some(first) if *first != state => {
                self.violations.push(format!("two states at {at}: {first:?} and {state:?}"));
            }
            Some(_) => {}
            None => {
                self.states.insert(at, state);
            }
        }
    }
}

pub type Shared = Arc<Mutex<Book>>;

/// Checks that events arrive before the view that shows their effects (X19).
pub struct EventsFirst {
    pub engine: MapEngine,
    pub book: Shared,
}

impl Observer<String> for EventsFirst {
    fn on_events(&self, below: LogPos, _events: Vec<String>) {
        let view = self.engine.view().below();
        if view >= below {
            let what = format!("X19: events below {below} came when the view was at {view}");
            self.book.lock().unwrap().violations.push(what);
        }
    }
}

/// A directory in which all nodes are up, or, if `down` is set, none. It has one more node, which only stores entries and has no
/// replica, so no replica may wait for it.
pub struct Everybody {
    pub down: Arc<AtomicBool>,
}

impl Directory for Everybody {
    fn candidates(&self) -> Vec<Candidate> {
        let up = |n| Candidate {
            node: NodeId(n),
            log: true,
            sequencer: n <= NODES,
            meta: n <= NODES,
            draining: false,
            leaving: false,
            alive: !self.down.load(Ordering::Relaxed),
            failing: false,
        };
        (1..=NODES + 1).map(up).collect()
    }
}

pub fn with_role(core: &mut NodeCore, shelf: &Shelf) {
    core.add_role(atoll_db::roles::REPLICA, Box::new(ReplicaRole::new(core.env(), shelf.clone())));
}

pub struct Node {
    pub db: Database,
    pub engine: MapEngine,
    pub log: Arc<VirtualLog>,
    /// The proposals of the node in this life, in order.
    pub order: Arc<Mutex<Vec<u64>>>,
}

pub struct World {
    pub driver: Driver,
    pub servers: MemoryServers,
    pub stores: Vec<MemoryStore>,
    pub shelves: Vec<Shelf>,
    pub wiped: u64,
    /// If set, all nodes count as down.
    pub down: Arc<AtomicBool>,
    /// How far the clock of each node is ahead, in milliseconds.
    pub ahead_ms: Arc<[AtomicU64; NODES as usize]>,
    /// The salt of each replica. A different salt makes the replica diverge from the others.
    pub salts: [u64; NODES as usize],
    /// Longer commands are cut into parts of this many bytes.
    pub cut: (usize, usize),
    pub nodes: Vec<Node>,
    pub orders: Vec<Arc<Mutex<Vec<u64>>>>,
    pub book: Shared,
    pub next: u64,
}

pub fn spec() -> LogletSpec {
    LogletSpec::of("memory")
}

impl World {
    pub fn new(seed: u64) -> Self {
        let usual = Options::default();
        Self::cutting(seed, (usual.cut_above_bytes, usual.part_bytes))
    }

    /// Like [`World::new`]. Commands that are longer than the first number are cut into parts of the second.
    pub fn cutting(seed: u64, cut: (usize, usize)) -> Self {
        let mut driver = Driver::new(seed);
        let ids: Vec<NodeId> = (1..=NODES).map(NodeId).collect();
        let shelves: Vec<Shelf> = ids.iter().map(|_| Shelf::default()).collect();
        for (n, shelf) in ids.iter().zip(&shelves) {
            driver.add_node(*n, |core| with_role(core, shelf));
        }
        let servers = MemoryServers::new(&ids);
        let stores = ids.iter().map(|_| MemoryStore::new()).collect();
        let mut world = World {
            driver,
            servers,
            stores,
            shelves,
            wiped: 0,
            down: Arc::default(),
            ahead_ms: Arc::default(),
            salts: [0; NODES as usize],
            cut,
            nodes: Vec::new(),
            orders: Vec::new(),
            book: Shared::default(),
            next: 0,
        };
        for n in 0..NODES {
            let node = world.open(n);
            world.nodes.push(node);
        }
        world
    }

    pub fn open(&mut self, n: u32) -> Node {
        let env = self.driver.env(NodeId(n + 1));
        let _ = env.levels().learn(Level::CURRENT);
        let registry = Registry::new().with(self.servers.provider(&env, "memory", true));
        let registers = self.servers.registers(&env);
        let log = VirtualLog::open(env.clone(), "db", registers, registry, atoll_log::Options::default());
        let mut apps = Applications::new();
        let slot = apps.add(Map::salted(self.salts[n as usize]));
        let (clock_env, ahead_ms) = (env.clone(), self.ahead_ms.clone());
        let wall = move |n: u32| clock_env.now().0 / 1_000_000 + ahead_ms[n as usize].load(Ordering::Relaxed);
        let others = wall.clone();
        let hear = move || {
            let told = (0..NODES).filter(|m| *m != n).map(|m| (NodeId(m + 1), others(m)));
            PeerClocks { reported: told.collect(), ..PeerClocks::default() }
        };
        let replica_parts = ReplicaParts {
            env,
            log: log.clone(),
            store: Box::new(self.stores[n as usize].clone()),
            clock: Arc::new(move || wall(n)),
            cluster: Some(Cluster {
                directory: Arc::new(Everybody { down: self.down.clone() }),
                shelf: self.shelves[n as usize].clone(),
                out_of_service: Arc::new(|_| {}),
                clocks: Arc::new(hear),
                replicas: Arc::new(|| Box::pin(async { Ok((1..=NODES).map(NodeId).collect()) })),
            }),
            threads: Threads::None,
            options: Options {
                commit_above_bytes: 2000,
                max_entry_commands: 4,
                cut_above_bytes: self.cut.0,
                part_bytes: self.cut.1,
                idle_after: Duration::from_millis(20),
                upkeep_every: Duration::from_millis(60),
                keep_entries: 20,
                range_keys: 16,
                scrub_every: Duration::from_millis(700),
                fenced_within: Duration::from_millis(400),
                held_at_most: Duration::from_secs(2),
                ..Options::default()
            },
        };
        let db = Database::open(apps, replica_parts).unwrap();
        let engine = db.engine(&slot);
        engine.observe(Arc::new(EventsFirst { engine: engine.clone(), book: self.book.clone() }));
        let order = Arc::new(Mutex::new(Vec::new()));
        self.orders.push(order.clone());
        Node { db, engine, log, order }
    }

    /// Proposes a command at a node, and records its outcome when it ends.
    pub fn propose(&mut self, n: usize, r: u64) {
        self.next += 1;
        let (id, node) = (self.next, &self.nodes[n]);
        let command = if r.is_multiple_of(7) { fail("f", "1") } else { add(&format!("u{id:05}"), 1) };
        let Ok(ticket) = node.engine.propose(command) else { return };
        self.book.lock().unwrap().proposals.insert(id, None);
        node.order.lock().unwrap().push(id);
        let (book, engine) = (self.book.clone(), node.engine.clone());
        let work = async move {
            let Ok(done) = ticket.await else { return };
            let mut book = book.lock().unwrap();
            match done {
                Ok(applied) => {
                    book.applied += 1;
                    book.proposals.insert(id, Some((applied.position, applied.index)));
                    if engine.view().below() <= applied.position {
                        book.violations.push(format!("{id} was answered before its view was published"));
                    }
                    if applied.reply.is_err() {
                        book.proposals.remove(&id);
                    }
                }
                Err(e) if e.did_not_happen() => {
                    book.proposals.remove(&id);
                    book.refused.push(id);
                }
                Err(ProposeError::Halted(halt)) => book.violations.push(format!("halted: {halt}")),
                Err(_) => {}
            }
        };
        drop(self.driver.env(NodeId(n as u32 + 1)).launch("test.propose", work));
    }

    /// Starts a linearizable read, which must show everything that was acknowledged before it began.
    pub fn read(&self, n: usize) {
        let (book, engine) = (self.book.clone(), self.nodes[n].engine.clone());
        let before: Vec<(u64, LogPos)> = {
            let book = book.lock().unwrap();
            book.proposals.iter().filter_map(|(id, at)| Some((*id, (*at)?.0))).collect()
        };
        let work = async move {
            let Ok(Ok(_)) = engine.barrier().await else { return };
            let view = engine.view();
            let state = items(&view);
            let mut book = book.lock().unwrap();
            book.barriers += 1;
            for (id, at) in before {
                let key = format!("u{id:05}");
                if at >= view.below() || state.binary_search_by(|(k, _)| k.cmp(&key)).is_err() {
                    let what =
                        format!("{id}, answered before a read began, at {at}, is not in {}", view.below());
                    book.violations.push(what);
                }
            }
            book.saw(view.below(), state);
        };
        drop(self.driver.env(NodeId(n as u32 + 1)).launch("test.read", work));
    }

    pub fn run(&mut self, seed: u64) {
        let mut random = seed;
        while self.driver.now().0 < 1_500_000_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = random >> 20;
            self.driver.run_for(Duration::from_millis(1 + r % 9));
            let n = (r / 10 % u64::from(NODES)) as usize;
            for i in 0..r / 1000 % 12 {
                self.propose(n, r / 7 + i);
            }
            if r.is_multiple_of(3) {
                self.read((r / 40 % u64::from(NODES)) as usize);
            }
            if r.is_multiple_of(19) {
                drop(self.nodes[n].log.extend(spec()));
            }
            if r.is_multiple_of(29) {
                self.kill(n);
            }
            if r.is_multiple_of(71) && self.can_lose(n) {
                // The node loses its store.
                self.stores[n] = MemoryStore::new();
                self.kill(n);
                self.wiped += 1;
            }
            self.faults(r);
        }
        self.servers.faults(|f| *f = Default::default());
    }

    /// Returns whether the state outlives the loss of one store: another one continues where the log begins. Otherwise no replica could
    /// ever get the state again, because the log was trimmed below it.
    fn can_lose(&self, n: usize) -> bool {
        let trim = self.nodes.iter().filter_map(|node| node.log.chain()).map(|c| c.chain.trim()).max();
        let others = (0..NODES as usize).filter(|m| *m != n);
        trim.is_none_or(|trim| others.map(|m| self.nodes[m].engine.health()).any(|h| h.durable_below >= trim))
    }

    /// Kills a node. Its disk loses everything that was not persisted.
    pub fn kill(&mut self, n: usize) {
        self.stores[n].crash();
        self.kill_keeping(n);
    }

    /// Kills a node. The operating system survives, so its disk keeps everything that was committed.
    pub fn kill_keeping(&mut self, n: usize) {
        let shelf = Shelf::default();
        self.driver.restart(NodeId(n as u32 + 1), |core| with_role(core, &shelf)).unwrap();
        self.shelves[n] = shelf;
        self.nodes[n] = self.open(n as u32);
    }

    /// Returns a world with 100 commands in all stores, in which node 2 was restarted after one value on its disk was altered.
    pub fn altered(seed: u64) -> World {
        let mut world = World::new(seed);
        for n in 0..100 {
            world.propose(n % 3, 1);
            world.driver.run_for(Duration::from_millis(3));
        }
        // Wait until the last commit of an idle replica, so that no overlay hides the altered value.
        world.driver.run_for(Duration::from_millis(300));
        let key = Bytes::from_static(b"\x01u00001");
        world.stores[1].commit(vec![(key, Some(Bytes::from_static(b"7")))]).unwrap();
        world.kill_keeping(1);
        world
    }

    pub fn faults(&mut self, r: u64) {
        self.servers.faults(|f| {
            f.append_unknown = if r.is_multiple_of(3) { 150 } else { 0 };
            f.append_busy = if r.is_multiple_of(5) { 100 } else { 0 };
            f.append_forgotten = if r.is_multiple_of(7) { 300 } else { 0 };
            f.unavailable = if r.is_multiple_of(4) { 200 } else { 0 };
            f.register_unknown = if r % 4 == 1 { 400 } else { 0 };
            f.max_delay = Duration::from_micros(300 + r % 6000);
        });
    }

    /// Checks the world after the faults: every node makes progress, all states are equal, and each acknowledged command has taken
    /// effect exactly once.
    pub fn judge(&mut self, seed: u64) {
        for n in 0..NODES as usize {
            let engine = self.nodes[n].engine.clone();
            let env = self.driver.env(NodeId(n as u32 + 1));
            let pause = env.clone();
            let done = self.driver.block_on(NodeId(n as u32 + 1), async move {
                let work = async {
                    loop {
                        match engine.propose(add("end", 1)).unwrap().await {
                            Ok(Ok(_)) => return,
                            other => assert!(
                                !matches!(other, Ok(Err(ProposeError::Halted(_)))),
                                "a replica stopped: {other:?}"
                            ),
                        }
                        // A refusal arrives immediately, so pause before the next attempt.
                        pause.sleep(Duration::from_millis(1)).await;
                    }
                };
                env.within(Duration::from_secs(60), work).await
            });
            assert!(done.is_ok(), "seed {seed}: node {n} gets no command applied after the faults are over");
        }
        for n in 0..NODES as usize {
            let engine = self.nodes[n].engine.clone();
            let below = self.driver.block_on(NodeId(n as u32 + 1), async move { engine.barrier().await });
            let (below, view) = (below.unwrap().unwrap(), self.nodes[n].engine.view());
            assert!(view.below() >= below);
            self.book.lock().unwrap().saw(view.below(), items(&view));
        }
        let book = self.book.lock().unwrap();
        assert!(book.violations.is_empty(), "seed {seed}: {:#?}", book.violations);
        let (_, last) = book.states.last_key_value().unwrap();
        let last: BTreeMap<&str, &str> = last.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        for (id, place) in &book.proposals {
            match last.get(format!("u{id:05}").as_str()) {
                Some(&"1") => {}
                None if place.is_none() => {}
                other => panic!("seed {seed}: {id}, {place:?}, is {other:?} in the end"),
            }
        }
        for id in &book.refused {
            assert!(
                !last.contains_key(format!("u{id:05}").as_str()),
                "seed {seed}: {id} was said not to happen"
            );
        }
        for order in &self.orders {
            let order = order.lock().unwrap();
            let places: Vec<_> = order.iter().filter_map(|id| *book.proposals.get(id)?).collect();
            assert!(places.is_sorted(), "seed {seed}: order of one node's proposals: {places:?}");
        }
        assert!(book.applied > 20, "seed {seed}: only {} proposals were applied", book.applied);
        assert!(book.barriers > 5, "seed {seed}: only {} barriers", book.barriers);
        let health = self.nodes[0].db.health();
        assert_eq!((health.waiting_commands, health.halted), (0, None), "seed {seed}");
        for node in &self.nodes {
            assert_eq!(node.db.health().found, [], "seed {seed}: found wrong, and nobody altered anything");
        }
    }
}

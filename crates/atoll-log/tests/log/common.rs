//! Clusters in memory for this crate's tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::conformance::{Driver, LogletHarness, RegisterHarness};
use atoll_contract::{Loglet, LogletId, LogletProvider, LogletSpec, ReadFrom, Registers, Registry};
use atoll_core::Budget;
use atoll_core::{Env, Level, NodeId};
use atoll_log::memory::MemoryServers;
use atoll_log::{Options, VirtualLog, VirtualLoglet};

pub struct Cluster {
    pub driver: Driver,
    pub servers: MemoryServers,
    pub nodes: Vec<NodeId>,
    pub options: Options,
}

impl Cluster {
    pub fn new(seed: u64, nodes: u32) -> Self {
        let mut driver = Driver::new(seed);
        let nodes: Vec<NodeId> = (1..=nodes).map(NodeId).collect();
        for n in &nodes {
            driver.add_node(*n, |_| {});
            driver.env(*n).levels().learn(Level::CURRENT).unwrap();
        }
        let servers = MemoryServers::new(&nodes);
        // With an even seed, index pages are used soon.
        let usual = Options::default();
        let page_items = if seed.is_multiple_of(2) { 2 } else { usual.page_items };
        Cluster { driver, servers, nodes, options: Options { page_items, ..usual } }
    }

    /// Returns such a cluster, with members that may have been at the first feature level until now.
    pub fn at_first_level(seed: u64, nodes: u32) -> Self {
        let mut cluster = Cluster::new(seed, 0);
        cluster.nodes = (1..=nodes).map(NodeId).collect();
        for n in &cluster.nodes {
            cluster.driver.add_node(*n, |_| {});
        }
        cluster.servers = MemoryServers::new(&cluster.nodes);
        cluster
    }

    pub fn env(&self, node: u32) -> Env {
        self.driver.env(NodeId(node))
    }

    /// Returns a handle on node 1 of a log that shares its budget with other logs.
    pub fn log_within(&self, name: &str, budget: Arc<Budget>) -> Arc<VirtualLog> {
        let env = self.env(1);
        let registry = Registry::new().with(self.servers.provider(&env, "memory", true));
        let registers = self.servers.registers(&env);
        VirtualLog::open_within(env, name, registers, registry, self.options.clone(), budget)
    }

    /// Returns a handle on a node; "memory" keeps order, "shuffled" does not.
    pub fn log(&self, node: u32, name: &str) -> Arc<VirtualLog> {
        let env = self.env(node);
        let registry = Registry::new()
            .with(self.servers.provider(&env, "memory", true))
            .with(self.servers.provider(&env, "shuffled", false));
        let registers = self.servers.registers(&env);
        VirtualLog::open(env, name, registers, registry, self.options.clone())
    }

    pub fn run<T: Send + 'static>(&mut self, node: u32, f: impl Future<Output = T> + Send + 'static) -> T {
        self.driver.block_on(NodeId(node), f)
    }

    /// Creates the log on node 1 and returns the handle.
    pub fn created(&mut self, kind: &str) -> Arc<VirtualLog> {
        let log = self.log(1, "log");
        let made = log.create(spec(kind));
        self.run(1, made).unwrap().unwrap();
        log
    }

    /// Reads all records from the trim point on. Returns their clients and sequence numbers.
    pub fn names(&mut self, node: u32, log: &Arc<VirtualLog>) -> Vec<(u64, u64)> {
        let log = log.clone();
        self.run(node, async move {
            let tail = log.check_tail().await.unwrap().unwrap();
            let mut at = log.chain().unwrap().chain.trim();
            let mut ops = Vec::new();
            while at < tail {
                let read = log.read(at..tail, 1000, ReadFrom::Anywhere).await.unwrap().unwrap();
                ops.extend(read.entries.iter().map(|e| (e.op.client.0, e.op.seq)));
                at = read.next();
            }
            ops
        })
    }
}

pub fn spec(kind: &str) -> LogletSpec {
    LogletSpec::of(kind)
}

/// Changes the faults at random while a random test runs.
fn disturb(servers: &MemoryServers, random: u64) {
    servers.faults(|f| {
        let on = random.is_multiple_of(3);
        f.append_unknown = if on { random % 200 } else { 0 };
        f.append_busy = if random.is_multiple_of(5) { 100 } else { 0 };
        f.append_forgotten = if random.is_multiple_of(7) { 300 } else { 0 };
        f.unavailable = if random.is_multiple_of(4) { 200 } else { 0 };
        f.register_unknown = if random % 4 == 1 { 300 } else { 0 };
        f.register_down = if random.is_multiple_of(11) { 500 } else { 0 };
        f.max_delay = std::time::Duration::from_micros(200 + random % 5000);
    });
}

fn heal(servers: &MemoryServers) {
    servers.faults(|f| *f = Default::default());
}

/// Loglets in memory, without a virtual log.
pub struct Bare {
    pub cluster: Cluster,
    pub keeps_order: bool,
    pub faults: bool,
}

impl Bare {
    fn provider(&self, node: NodeId) -> Arc<dyn LogletProvider> {
        self.cluster.servers.provider(&self.cluster.driver.env(node), "memory", self.keeps_order)
    }
}

impl LogletHarness for Bare {
    fn driver(&mut self) -> &mut Driver {
        &mut self.cluster.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        self.cluster.nodes.clone()
    }

    fn fresh(&mut self) -> u64 {
        self.cluster.env(1).random()
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        let provider = self.provider(client);
        let config = self
            .cluster
            .driver
            .block_on(client, async move { provider.plan(&LogletSpec::default(), None).await })
            .unwrap();
        self.provider(client).open(LogletId(loglet.into()), &config).unwrap()
    }

    fn delete(&mut self, loglet: u64) -> bool {
        let provider = self.provider(NodeId(1));
        let id = LogletId(loglet.into());
        self.cluster.run(1, async move { provider.delete(id, &Default::default()).await }).unwrap();
        true
    }

    fn disturb(&mut self, random: u64) {
        if self.faults {
            disturb(&self.cluster.servers, random);
        }
    }

    fn heal(&mut self) {
        heal(&self.cluster.servers);
    }
}

impl RegisterHarness for Bare {
    fn driver(&mut self) -> &mut Driver {
        &mut self.cluster.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        self.cluster.nodes.clone()
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.cluster.servers.registers(&self.cluster.driver.env(client))
    }

    fn disturb(&mut self, random: u64) {
        disturb(&self.cluster.servers, random);
    }

    fn heal(&mut self) {
        heal(&self.cluster.servers);
    }
}

/// Virtual logs as Loglets, extended repeatedly while they are tested.
pub struct Adapted {
    pub cluster: Cluster,
    pub kinds: [&'static str; 2],
    pub extend: bool,
    pub faults: bool,
    current: Option<(u64, BTreeMap<NodeId, Arc<VirtualLog>>)>,
    made: u64,
}

impl Adapted {
    pub fn new(cluster: Cluster, kinds: [&'static str; 2], extend: bool, faults: bool) -> Self {
        Adapted { cluster, kinds, extend, faults, current: None, made: 0 }
    }
}

impl LogletHarness for Adapted {
    fn driver(&mut self) -> &mut Driver {
        &mut self.cluster.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        self.cluster.nodes.clone()
    }

    fn fresh(&mut self) -> u64 {
        self.made += 1;
        let name = format!("log/{}", self.made);
        let first = self.cluster.log(1, &name);
        let made = first.create(spec(self.kinds[0]));
        self.cluster.run(1, made).unwrap().unwrap();
        let logs = self.cluster.nodes.iter().map(|n| (*n, self.cluster.log(n.0, &name))).collect();
        self.current = Some((self.made, logs));
        self.made
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        let log = self.cluster.log(client.0, &format!("log/{loglet}"));
        Arc::new(VirtualLoglet::new(self.cluster.driver.env(client), log))
    }

    fn disturb(&mut self, random: u64) {
        if self.faults {
            disturb(&self.cluster.servers, random);
        }
        if self.extend
            && let Some((_, logs)) = &self.current
        {
            let node = self.cluster.nodes[(random / 7) as usize % self.cluster.nodes.len()];
            match random / 100 % 4 {
                0 => drop(logs[&node].extend(spec(self.kinds[(random / 1000) as usize % 2]))),
                1 => drop(logs[&node].truncate()),
                2 => {
                    if let Some(chain) = logs[&node].chain()
                        && let Some(sealed) = chain.chain.sealed().next()
                    {
                        drop(logs[&node].modify(sealed.loglet, LogletSpec::default()));
                    }
                }
                _ => {}
            }
        }
    }

    fn heal(&mut self) {
        heal(&self.cluster.servers);
    }
}

//! Nodes with the roles of native and local Loglets, and striped Loglets over them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::cluster::All;
use atoll_contract::conformance::{Driver, LogletHarness};
use atoll_contract::{Kinds, Loglet, LogletId, LogletProvider, PartLoglet, Registry};
use atoll_core::*;
use atoll_local::roles::LOCAL_STORE;
use atoll_local::{LocalConfig, LocalOptions, LocalProvider, LocalStore, LocalStoreOptions};
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use atoll_striped::{Mode, StripedConfig, StripedOptions, StripedProvider};
use bytes::Bytes;

/// What the stripes are.
#[derive(Clone, Copy)]
pub enum Of {
    Native { servers: u32 },
    Local,
}

pub struct Harness {
    pub driver: Driver,
    nodes: u32,
    of: Of,
    mode: Mode,
    stripes: usize,
    configs: BTreeMap<u64, Bytes>,
    /// Keeps the kinds of each node alive.
    registries: BTreeMap<NodeId, Registry>,
}

pub fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let (env, storage) = (core.env(), storage(core.env().node()));
    let me = Identity {
        node: env.node(),
        incarnation: env.incarnation(),
        storage,
        log: true,
        sequencer: true,
        meta: false,
        draining: false,
        failed: false,
    };
    let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
    core.add_role(LOG_SERVER, Box::new(server));
    core.add_role(SEQUENCER, Box::new(Sequencer::new(env.clone(), SequencerOptions::default())));
    core.add_role(LOCAL_STORE, Box::new(LocalStore::new(env, storage, LocalStoreOptions::default())));
    core.add_role(roles::MEMBER, Box::new(Answers(me)));
}

/// Says who the node is.
struct Answers(Identity);

impl Role for Answers {
    fn on_frame(&mut self, _: Tick, from: Caller, _: Frame, out: &mut Effects) {
        out.reply(from, self.0.clone(), Lsn::NONE);
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
}

fn registry(env: &Env, nodes: u32) -> Registry {
    let directory: Arc<dyn Directory> = Arc::new(All((1..=nodes).map(NodeId).collect()));
    let kinds = Kinds::default();
    let native = NativeProvider::new(env.clone(), directory.clone(), NativeOptions::default());
    let local = LocalProvider::new(env.clone(), directory, LocalOptions::default());
    let striped = StripedProvider::new(env.clone(), kinds.clone(), StripedOptions::default());
    let registry = Registry::new().with(Arc::new(native)).with(Arc::new(local)).with(Arc::new(striped));
    kinds.fill(&registry);
    registry
}

impl Harness {
    pub fn new(nodes: u32, of: Of, mode: Mode, stripes: usize) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        let mut registries = BTreeMap::new();
        for n in (1..=nodes).map(NodeId) {
            let env = driver.add_node(n, assemble);
            env.levels().learn(Level::CURRENT).unwrap();
            registries.insert(n, registry(&env, nodes));
        }
        Harness { driver, nodes, of, mode, stripes, configs: BTreeMap::new(), registries }
    }

    /// Adds a node that has not heard of the cluster's level yet.
    pub fn newcomer(&mut self) -> (Env, Arc<dyn LogletProvider>) {
        let node = NodeId(self.nodes + 1);
        let env = self.driver.add_node(node, assemble);
        self.registries.insert(node, registry(&env, self.nodes));
        (env, self.provider(node))
    }

    pub fn provider(&self, at: NodeId) -> Arc<dyn LogletProvider> {
        self.registries[&at].provider("striped").unwrap().clone()
    }

    pub fn part_provider(&self, at: NodeId, kind: &str) -> Arc<dyn LogletProvider> {
        self.registries[&at].provider(kind).unwrap().clone()
    }

    /// Returns the configuration of one stripe.
    fn stripe(&self, i: u32) -> PartLoglet {
        match self.of {
            Of::Native { servers } => {
                let first = if self.mode == Mode::Sharded { i * servers } else { 0 };
                let nodes = (1..=servers).map(|n| NodeId(first + n));
                let servers: Vec<_> = nodes.map(|n| (n, storage(n))).collect();
                let env = self.driver.env(servers[i as usize % servers.len()].0);
                let config = NativeConfig::new(servers, (env.node(), env.incarnation())).unwrap();
                PartLoglet { kind: "native".into(), config: config.to_bytes() }
            }
            Of::Local => {
                let node = NodeId(1 + i % self.nodes);
                PartLoglet {
                    kind: "local".into(),
                    config: LocalConfig { node, storage: storage(node) }.to_bytes(),
                }
            }
        }
    }

    pub fn config(&self, loglet: u64) -> Bytes {
        self.configs[&loglet].clone()
    }
}

impl LogletHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=self.nodes).map(NodeId).collect()
    }

    fn fresh(&mut self) -> u64 {
        let id = self.configs.len() as u64 + 1;
        let stripes = (0..self.stripes as u32).map(|i| self.stripe(i)).collect();
        self.configs.insert(id, StripedConfig { mode: self.mode, stripes }.to_bytes());
        id
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        self.provider(client).open(LogletId(loglet.into()), &self.configs[&loglet]).unwrap()
    }

    fn delete(&mut self, loglet: u64) -> bool {
        let at = NodeId(self.nodes);
        let (provider, config) = (self.provider(at), self.configs[&loglet].clone());
        self.driver
            .block_on(at, async move { provider.delete(LogletId(loglet.into()), &config).await.unwrap() });
        true
    }

    fn disturb(&mut self, random: u64) {
        let micros = [20, 70, 300, 2000][(random % 4) as usize];
        self.driver.set_latency(Duration::from_micros(micros));
    }
}

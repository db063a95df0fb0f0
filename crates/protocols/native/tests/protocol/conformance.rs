//! Runs the conformance suite of Loglets on native loglets of several shapes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::{Driver, LogletHarness, loglet};
use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::*;
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use bytes::Bytes;

struct Nobody;

impl Directory for Nobody {
    fn candidates(&self) -> Vec<Candidate> {
        Vec::new()
    }
}

/// The number of servers, and the node of the sequencer.
#[derive(Clone, Copy)]
struct Shape {
    servers: u32,
    sequencer: u32,
}

struct Harness {
    driver: Driver,
    shape: Shape,
    nodes: u32,
    configs: BTreeMap<u64, Bytes>,
    down: Option<NodeId>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let (env, storage) = (core.env(), storage(core.env().node()));
    let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
    core.add_role(LOG_SERVER, Box::new(server));
    core.add_role(SEQUENCER, Box::new(Sequencer::new(env, SequencerOptions::default())));
}

impl Harness {
    fn new(nodes: u32, shape: Shape) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        for n in 1..=nodes {
            driver.add_node(NodeId(n), assemble);
        }
        Harness { driver, shape, nodes, configs: BTreeMap::new(), down: None }
    }

    fn provider(&self, at: NodeId) -> Arc<dyn LogletProvider> {
        let env = self.driver.env(at);
        Arc::new(NativeProvider::new(env, Arc::new(Nobody), NativeOptions::default()))
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
        let Shape { servers, sequencer } = self.shape;
        let servers = (1..=servers).map(|n| (NodeId(n), storage(NodeId(n)))).collect();
        let env = self.driver.env(NodeId(sequencer));
        let config = NativeConfig::new(servers, (env.node(), env.incarnation())).unwrap().to_bytes();
        self.configs.insert(id, config);
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
        // Latencies from well below to far above the usual one. Messages stay in order on their connection.
        let micros = [20, 70, 300, 2000][(random % 4) as usize];
        self.driver.set_latency(Duration::from_micros(micros));
        self.down = None;
    }
}

#[test]
fn native_on_three() {
    loglet::all(&mut Harness::new(3, Shape { servers: 3, sequencer: 1 }), 0..60);
}

#[test]
fn native_on_five_with_the_sequencer_apart() {
    loglet::all(&mut Harness::new(6, Shape { servers: 5, sequencer: 6 }), 0..20);
}

#[test]
fn native_on_one() {
    loglet::all(&mut Harness::new(2, Shape { servers: 1, sequencer: 2 }), 0..30);
}

#[test]
fn native_on_nine() {
    loglet::all(&mut Harness::new(9, Shape { servers: 9, sequencer: 4 }), 0..5);
}

//! Runs the conformance suite of Loglets on local loglets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::cluster::All;
use atoll_contract::conformance::{Driver, LogletHarness, loglet};
use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::*;
use atoll_local::roles::LOCAL_STORE;
use atoll_local::{LocalConfig, LocalOptions, LocalProvider, LocalStore, LocalStoreOptions};
use bytes::Bytes;

struct Harness {
    driver: Driver,
    nodes: u32,
    configs: BTreeMap<u64, Bytes>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let (env, storage) = (core.env(), storage(core.env().node()));
    let local = LocalStore::new(env, storage, LocalStoreOptions::default());
    core.add_role(LOCAL_STORE, Box::new(local));
}

impl Harness {
    fn new(nodes: u32) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        for n in 1..=nodes {
            driver.add_node(NodeId(n), assemble);
        }
        Harness { driver, nodes, configs: BTreeMap::new() }
    }

    fn provider(&self, at: NodeId) -> LocalProvider {
        LocalProvider::new(self.driver.env(at), Arc::new(All(Vec::new())), LocalOptions::default())
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
        let config = LocalConfig { node: NodeId(1), storage: storage(NodeId(1)) };
        self.configs.insert(id, config.to_bytes());
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

#[test]
fn a_local_loglet_passes_the_suite() {
    loglet::all(&mut Harness::new(2), 0..60);
}

//! Runs the conformance suite of Loglets on trio loglets, with the three roles on three nodes and on one.

use crate::cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::cluster::All;
use atoll_contract::conformance::{Driver, LogletHarness, loglet};
use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::*;
use atoll_trio::{TrioConfig, TrioOptions, TrioProvider};
use bytes::Bytes;

struct Harness {
    driver: Driver,
    nodes: u32,
    /// The nodes of the clerk, the store and the mirror.
    places: [u32; 3],
    configs: BTreeMap<u64, Bytes>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

impl Harness {
    fn new(nodes: u32, places: [u32; 3]) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        for n in 1..=nodes {
            driver.add_node(NodeId(n), |core| cluster::assemble(core, storage(NodeId(n))));
        }
        Harness { driver, nodes, places, configs: BTreeMap::new() }
    }

    fn provider(&self, at: NodeId) -> TrioProvider {
        TrioProvider::new(self.driver.env(at), Arc::new(All(Vec::new())), TrioOptions::default())
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
        let [clerk, store, mirror] = self.places.map(NodeId);
        let config = TrioConfig {
            clerk: (clerk, self.driver.env(clerk).incarnation()),
            store: (store, storage(store)),
            mirror: (mirror, storage(mirror)),
        };
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
fn a_trio_loglet_on_three_nodes_passes_the_suite() {
    loglet::all(&mut Harness::new(3, [1, 2, 3]), 0..60);
}

#[test]
fn a_trio_loglet_on_one_node_passes_the_suite() {
    loglet::all(&mut Harness::new(2, [1, 1, 1]), 0..30);
}

//! Runs the conformance suite of Loglets on CORFU loglets, with one chain, with several, and on a single unit.

use crate::cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::cluster::All;
use atoll_contract::conformance::{Driver, LogletHarness, loglet};
use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::*;
use atoll_corfu::{ClientOptions, CorfuProvider, Projection};
use bytes::Bytes;

struct Harness {
    driver: Driver,
    nodes: u32,
    sequencer: u32,
    chains: &'static [&'static [u32]],
    configs: BTreeMap<u64, Bytes>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

impl Harness {
    fn new(nodes: u32, sequencer: u32, chains: &'static [&'static [u32]]) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        for n in 1..=nodes {
            driver.add_node(NodeId(n), |core| cluster::assemble(core, storage(NodeId(n))));
        }
        Harness { driver, nodes, sequencer, chains, configs: BTreeMap::new() }
    }

    fn provider(&self, at: NodeId) -> CorfuProvider {
        CorfuProvider::new(self.driver.env(at), Arc::new(All(Vec::new())), ClientOptions::default())
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
        let node = NodeId(self.sequencer);
        let unit = |n: &u32| (NodeId(*n), storage(NodeId(*n)));
        let chains = self.chains.iter().map(|chain| chain.iter().map(unit).collect()).collect();
        let config = Projection::simple(1, (node, self.driver.env(node).incarnation()), 3, chains);
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
fn a_chain_of_two_passes_the_suite() {
    loglet::all(&mut Harness::new(3, 1, &[&[1, 2]]), 0..60);
}

#[test]
fn two_chains_and_a_sequencer_of_its_own_pass_the_suite() {
    loglet::all(&mut Harness::new(5, 5, &[&[1, 2], &[3, 4]]), 0..60);
}

#[test]
fn a_single_unit_passes_the_suite() {
    loglet::all(&mut Harness::new(2, 1, &[&[1]]), 0..60);
}

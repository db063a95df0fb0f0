//! Runs the conformance suite of Loglets on Scalog Loglets: with one shard, with several, with a tree of aggregators, and on one server.

use crate::cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::cluster::All;
use atoll_contract::conformance::{Driver, LogletHarness, loglet};
use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::*;
use atoll_scalog::{ScalogOptions, ScalogProvider};
use bytes::Bytes;

type Tree = &'static [(u32, Option<u32>)];

struct Harness {
    driver: Driver,
    nodes: u32,
    shards: &'static [&'static [u32]],
    tree: Tree,
    configs: BTreeMap<u64, Bytes>,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

impl Harness {
    fn new(nodes: u32, shards: &'static [&'static [u32]], tree: Tree) -> Self {
        let mut driver = Driver::new(11);
        driver.set_latency(Duration::from_micros(70));
        for n in 1..=nodes {
            driver.add_node(NodeId(n), |core| cluster::assemble(core, storage(NodeId(n))));
        }
        Harness { driver, nodes, shards, tree, configs: BTreeMap::new() }
    }

    fn provider(&self, at: NodeId) -> ScalogProvider {
        let env = self.driver.env(at);
        let logs = Arc::new(cluster::NativeLogs::new(env.clone()));
        ScalogProvider::new(env, Arc::new(All(Vec::new())), logs, ScalogOptions::default())
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
        let ordering: Vec<u32> = (1..=self.nodes.min(3)).collect();
        let ordering = if ordering.len() == 2 { &ordering[..1] } else { &ordering[..] };
        let env = self.driver.env(NodeId(1));
        let config = cluster::config(storage, &env, ordering, self.shards, &[1, 2], self.tree);
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
fn a_shard_of_two_passes_the_suite() {
    loglet::all(&mut Harness::new(3, &[&[1, 2]], &[]), 0..25);
}

#[test]
fn two_shards_pass_the_suite() {
    loglet::all(&mut Harness::new(5, &[&[1, 2], &[3, 4]], &[]), 0..25);
}

#[test]
fn a_tree_of_aggregators_passes_the_suite() {
    let tree = &[(1, None), (2, Some(0)), (3, Some(0))];
    loglet::all(&mut Harness::new(5, &[&[1, 2], &[3, 4], &[5]], tree), 0..15);
}

#[test]
fn a_single_server_passes_the_suite() {
    loglet::all(&mut Harness::new(2, &[&[1]], &[]), 0..25);
}

//! Runs the conformance suite of keyspaces on this engine.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::Keyspace;
use atoll_contract::conformance::{Driver, KeyspaceHarness, keyspace};
use atoll_contract::keyspace::{Durability, KeyspaceId, Layout, LayoutState, Replica, ShardPlacement};
use atoll_core::testing::{Mutant, set_mutant, take_marks};
use atoll_core::{NodeCore, NodeId, StorageId};
use atoll_in_place::roles::ACCEPTOR;
use atoll_in_place::{Acceptor, AcceptorOptions, ENGINE, InPlaceSpace, Options};
use bytes::Bytes;

struct InPlace {
    driver: Driver,
    nodes: u32,
    layout: Layout,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let (env, storage) = (core.env(), storage(core.env().node()));
    core.add_role(ACCEPTOR, Box::new(Acceptor::new(env, storage, AcceptorOptions::default())));
}

impl InPlace {
    fn new(seed: u64, nodes: u32, replicas: u32, shards: u32, durability: Durability) -> Self {
        let mut driver = Driver::new(seed);
        for node in (1..=nodes).map(NodeId) {
            driver.add_node(node, assemble);
        }
        let replica = |n: u32| {
            let node = NodeId(n % nodes + 1);
            let identity = match durability {
                Durability::Disk => storage(node).0,
                Durability::Memory => u128::from(driver.env(node).incarnation().0),
            };
            Replica { node, identity }
        };
        let shard = |s: u32| ShardPlacement { replicas: (0..replicas).map(|i| replica(s + i)).collect() };
        let layout = Layout {
            engine: ENGINE.to_owned(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability,
            buckets: 1,
            shards: (0..shards).map(shard).collect(),
            options: Bytes::new(),
        };
        InPlace { driver, nodes, layout }
    }
}

impl KeyspaceHarness for InPlace {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        // The suite's clients run on the first and the last node, which are never restarted.
        if self.nodes > 3 {
            vec![NodeId(1), NodeId(self.nodes)]
        } else {
            (1..=self.nodes).map(NodeId).collect()
        }
    }

    fn keyspace(&mut self, client: NodeId) -> Arc<dyn Keyspace> {
        // Deleted keys are forgotten soon, and proposers that nobody uses are dropped.
        let forget_after = Duration::from_millis(20);
        let options = Options { forget_after, open_keys: 2, ..Options::default() };
        Arc::new(InPlaceSpace::new(self.driver.env(client), self.layout.clone(), options))
    }

    /// Restarts a node without clients, or changes the latency.
    fn disturb(&mut self, random: u64) {
        if self.nodes > 3 && random.is_multiple_of(7) && self.layout.durability == Durability::Disk {
            let node = NodeId(2 + (random / 7) as u32 % (self.nodes - 2));
            self.driver.restart(node, assemble).unwrap();
        }
        if random.is_multiple_of(11) {
            self.driver.set_latency(Duration::from_micros([20, 70, 300, 2000][(random / 11 % 4) as usize]));
        }
    }

    fn heal(&mut self) {
        self.driver.set_latency(Duration::from_micros(50));
    }
}

#[test]
fn the_engine_passes_the_suite_on_disks() {
    set_mutant(Mutant::NONE);
    let _ = take_marks();
    keyspace::all(&mut InPlace::new(1, 1, 1, 1, Durability::Disk), 0..5);
    keyspace::all(&mut InPlace::new(2, 3, 3, 1, Durability::Disk), 0..10);
    keyspace::all(&mut InPlace::new(3, 3, 3, 4, Durability::Disk), 0..10);
    keyspace::all(&mut InPlace::new(4, 5, 5, 2, Durability::Disk), 0..20);
    // Nodes without a replica can also use the keyspace.
    keyspace::all(&mut InPlace::new(5, 6, 3, 4, Durability::Disk), 0..20);
    let marks = take_marks();
    for mark in ["in-place.acceptor.forgets", "in-place.space.gives_up", "in-place.courier.batch"] {
        assert!(marks.contains_key(mark), "{mark} was never reached: {marks:?}");
    }
}

#[test]
fn the_engine_passes_the_suite_in_memory() {
    set_mutant(Mutant::NONE);
    keyspace::all(&mut InPlace::new(6, 3, 3, 2, Durability::Memory), 0..10);
}

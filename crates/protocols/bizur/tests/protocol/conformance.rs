//! Runs the conformance suite of keyspaces on Bizur.

use std::sync::Arc;
use std::time::Duration;

use atoll_bizur::roles::REPLICA;
use atoll_bizur::{BizurKeyspace, BizurNode, ClientOptions, NodeOptions};
use atoll_contract::Keyspace;
use atoll_contract::conformance::{Driver, KeyspaceHarness, keyspace};
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Guard, KeyspaceId, Layout, LayoutState, Replica, ShardPlacement,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{NodeCore, NodeId, StorageId};
use bytes::Bytes;

struct Bizur {
    driver: Driver,
    nodes: u32,
    layout: Layout,
}

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let (env, storage) = (core.env(), storage(core.env().node()));
    core.add_role(REPLICA, Box::new(BizurNode::new(env, storage, NodeOptions::default())));
}

impl Bizur {
    fn new(seed: u64, nodes: u32, replicas: u32, shards: u32, buckets: u32, durability: Durability) -> Self {
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
            engine: "bizur".into(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability,
            buckets,
            shards: (0..shards).map(shard).collect(),
            options: Bytes::new(),
        };
        Bizur { driver, nodes, layout }
    }
}

impl KeyspaceHarness for Bizur {
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
        let env = self.driver.env(client);
        Arc::new(BizurKeyspace::new(env, self.layout.clone(), ClientOptions::default()))
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
fn bizur_passes_the_suite_on_disks() {
    set_mutant(Mutant::NONE);
    keyspace::all(&mut Bizur::new(1, 1, 1, 1, 4, Durability::Disk), 0..5);
    keyspace::all(&mut Bizur::new(2, 3, 3, 1, 1, Durability::Disk), 0..10);
    keyspace::all(&mut Bizur::new(3, 3, 3, 4, 8, Durability::Disk), 0..10);
    keyspace::all(&mut Bizur::new(4, 5, 5, 2, 4, Durability::Disk), 0..20);
    // Nodes without a replica can also use the keyspace.
    keyspace::all(&mut Bizur::new(5, 6, 3, 4, 8, Durability::Disk), 0..20);
}

#[test]
fn bizur_passes_the_suite_in_memory() {
    set_mutant(Mutant::NONE);
    keyspace::all(&mut Bizur::new(6, 3, 3, 2, 4, Durability::Memory), 0..10);
}

/// More writes of one bucket than it remembers come together. None of them was sent before, so none may be taken for a forgotten repeat.
#[test]
fn a_crowd_of_first_attempts_at_one_key_is_served() {
    set_mutant(Mutant::NONE);
    let mut bizur = Bizur::new(7, 3, 3, 1, 1, Durability::Disk);
    let node = NodeId(1);
    let (keyspace, env) = (bizur.keyspace(node), bizur.driver.env(node));
    let outcomes = bizur.driver.block_on(node, async move {
        let write = |client| {
            let (keyspace, op) = (keyspace.clone(), OpId { client: ClientId(client), seq: 1 });
            env.launch("crowd", async move {
                let (key, change) = (Bytes::from_static(b"hot"), Change::Put(Bytes::from_static(b"value")));
                keyspace.write(op, Attempt::First, key, Guard::Always, change).await
            })
        };
        let mut outcomes = vec![write(1).await];
        let crowd: Vec<_> = (2..=200).map(write).collect();
        for ticket in crowd {
            outcomes.push(ticket.await);
        }
        outcomes
    });
    for outcome in outcomes {
        assert!(matches!(outcome, Ok(Ok(Changed::Done(_)))), "{outcome:?}");
    }
}

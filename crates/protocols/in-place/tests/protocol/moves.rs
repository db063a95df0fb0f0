//! Moves whose messages the oracle of the protocol sees.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::members::Nodes;
use crate::common::world::World;
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Guard, KeyspaceProvider, KeyspaceSpec, Layout,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_in_place::{ENGINE, InPlaceProvider, Options};

const NODES: u32 = 6;

/// Returns what to ask for to get the only shard onto these nodes.
fn on(nodes: std::ops::RangeInclusive<u32>) -> KeyspaceSpec {
    let nodes = nodes.map(NodeId).collect();
    KeyspaceSpec {
        engine: ENGINE.to_owned(),
        shards: Some(1),
        replicas: Some(3),
        nodes,
        ..KeyspaceSpec::default()
    }
}

fn plan_move(world: &mut World, provider: &InPlaceProvider, layout: &Layout, to: KeyspaceSpec) -> Layout {
    let (p, l) = (provider.clone(), layout.clone());
    world.run_on(1, async move { p.plan_move(&l, &to).await }).unwrap().unwrap()
}

fn step(world: &mut World, provider: &InPlaceProvider, layout: &Layout) -> Option<Layout> {
    let (p, l) = (provider.clone(), layout.clone());
    world.run_on(1, async move { p.step(&l).await }).unwrap().unwrap()
}

/// Another shard has moved, so a node opens the keyspace once more while the former handle is in use. Both have the group of the key.
#[test]
fn two_handles_of_a_node_do_not_compete_for_a_key() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(2, NODES, 3, Durability::Disk);
    world.start_all();
    let nodes = Arc::new(Nodes { count: NODES, draining: None });
    let provider = InPlaceProvider::new(world.env(1), nodes, Options::default());
    let p = provider.clone();
    let layout = world.run_on(1, async move { p.plan(&on(1..=3)).await }).unwrap().unwrap();
    let newer = Layout { epoch: layout.epoch + 1, ..layout.clone() };
    let handles = [provider.open(&layout), provider.open(&newer)];
    let done: Arc<Mutex<u64>> = Arc::default();
    for client in 0..20u64 {
        let (keyspace, done) = (handles[client as usize % 2].clone(), done.clone());
        let run = async move {
            for seq in 1..=20 {
                let (op, value) = (OpId { client: ClientId(100 + client), seq }, Change::Put("v".into()));
                let put = keyspace.write(op, Attempt::First, "k".into(), Guard::Always, value);
                assert!(matches!(put.await, Ok(Changed::Done(_))));
                *done.lock().unwrap() += 1;
            }
        };
        world.env(1).spawn("put", Box::pin(run));
    }
    world.run_for(Duration::from_secs(2));
    assert_eq!((*done.lock().unwrap(), world.verdict.failures.clone()), (400, Vec::new()));
    assert!(!world.marks.contains_key("in-place.write.nacked"), "{:?}", world.marks);
}

/// The group to which an empty shard goes is replaced by another one after the seal. Nothing is copied to that one, so its acceptors hear
/// of it first when the clock of the shard is handed over.
#[test]
fn a_group_that_is_made_by_the_hand_over_of_its_clock_serves() {
    set_mutant(Mutant::NONE);
    let mut world = World::new(1, NODES, 3, Durability::Disk);
    world.start_all();
    let nodes = Arc::new(Nodes { count: NODES, draining: None });
    let provider = InPlaceProvider::new(world.env(1), nodes, Options::default());
    let p = provider.clone();
    let layout = world.run_on(1, async move { p.plan(&on(1..=3)).await }).unwrap().unwrap();
    let planned = plan_move(&mut world, &provider, &layout, on(2..=4));
    let sealed = step(&mut world, &provider, &planned).unwrap();
    let mut layout = plan_move(&mut world, &provider, &sealed, on(4..=6));
    while let Some(next) = step(&mut world, &provider, &layout) {
        layout = next;
    }
    assert!(layout.nodes().iter().all(|node| node.0 >= 4), "{layout:?}");
    let keyspace = provider.open(&layout);
    let op = OpId { client: ClientId(1), seq: 1 };
    let put = async move {
        keyspace.write(op, Attempt::First, "k".into(), Guard::Always, Change::Put("v".into())).await
    };
    assert!(matches!(world.run_on(1, put).unwrap(), Ok(Changed::Done(_))));
    assert_eq!(world.verdict.failures, Vec::<String>::new());
}

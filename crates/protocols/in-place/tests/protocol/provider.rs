//! Plans, creates and deletes keyspaces through the plug-in's provider and the catalog.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::members::{Member, Nodes};
use atoll_contract::conformance::Driver;
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Floor, Guard, Keyspace, KeyspaceError, KeyspacePlanError,
    KeyspaceProvider, KeyspaceSpec, Layout, ListFrom, Transacted, TxnPart, Unavailability,
};
use atoll_contract::plugin::Protocols;
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{NodeCore, NodeId, StorageId, roles::MEMBER};
use atoll_in_place::roles::ACCEPTOR;
use atoll_in_place::{Acceptor, AcceptorOptions, ENGINE, InPlacePlugin, InPlaceProvider, Options};
use bytes::Bytes;

const NODES: u32 = 6;

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

fn assemble(core: &mut NodeCore) {
    let env = core.env();
    let acceptor = Acceptor::new(env.clone(), storage(env.node()), AcceptorOptions::default());
    core.add_role(ACCEPTOR, Box::new(acceptor));
    let storage = storage(env.node());
    core.add_role(MEMBER, Box::new(Member { env, storage }));
}

fn cluster() -> (Driver, InPlaceProvider) {
    set_mutant(Mutant::NONE);
    let mut driver = Driver::new(1);
    for node in (1..=NODES).map(NodeId) {
        driver.add_node(node, assemble);
    }
    let nodes = Arc::new(Nodes { count: NODES, draining: Some(NODES) });
    let provider = InPlaceProvider::new(driver.env(NodeId(1)), nodes, Options::default());
    (driver, provider)
}

fn plan(
    driver: &mut Driver,
    provider: &InPlaceProvider,
    spec: KeyspaceSpec,
) -> Result<Layout, KeyspacePlanError> {
    let provider = provider.clone();
    driver.block_on(NodeId(1), async move { provider.plan(&spec).await })
}

fn spec(options: &[(&str, &str)]) -> KeyspaceSpec {
    let options: BTreeMap<String, String> =
        options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    KeyspaceSpec { engine: ENGINE.to_owned(), options, ..KeyspaceSpec::default() }
}

fn put(keyspace: Arc<dyn Keyspace>, seq: u64) -> impl Future<Output = Result<Changed, KeyspaceError>> + Send {
    let op = OpId { client: ClientId(1), seq };
    async move { keyspace.write(op, Attempt::First, "k".into(), Guard::Always, Change::Put("v".into())).await }
}

#[test]
fn replicas_are_on_suitable_nodes_and_in_different_zones() {
    let (mut driver, provider) = cluster();
    let zones = spec(&[("zones", "1:a,2:a,3:b,4:b,5:c")]);
    let layout = plan(&mut driver, &provider, zones).unwrap();
    assert_eq!((layout.shards.len(), layout.buckets, layout.epoch), (64, 1, 1));
    for shard in &layout.shards {
        let mut zones: Vec<u32> = shard.replicas.iter().map(|r| (r.node.0 - 1) / 2).collect();
        zones.sort_unstable();
        assert_eq!(zones, [0, 1, 2], "{shard:?}");
        assert!(shard.replicas.iter().all(|r| r.identity == storage(r.node).0));
    }
    let again = plan(&mut driver, &provider, spec(&[])).unwrap();
    assert_ne!(again.id, layout.id, "no identity is used twice");
    let memory = KeyspaceSpec { durability: Durability::Memory, replicas: Some(5), ..spec(&[]) };
    let layout = plan(&mut driver, &provider, memory).unwrap();
    let life = |node| u128::from(driver.env(node).incarnation().0);
    assert!(layout.shards.iter().flat_map(|s| &s.replicas).all(|r| r.identity == life(r.node)));
}

#[test]
fn wrong_specifications_are_refused_by_name() {
    let (mut driver, provider) = cluster();
    let mut says = |spec| plan(&mut driver, &provider, spec).unwrap_err().to_string();
    let unknown = "keyspaces of the engine \"in-place\" have no option \"colour\"; they have: zones";
    assert_eq!(says(spec(&[("colour", "red")])), unknown);
    assert_eq!(says(spec(&[("zones", "1")])), "zones: a list such as 1:a,2:a,3:b, with each node once");
    let shards = KeyspaceSpec { shards: Some(2000), ..spec(&[]) };
    assert_eq!(says(shards), "shards: 1 to 1024");
    let buckets = KeyspaceSpec { buckets: Some(2), ..spec(&[]) };
    assert_eq!(says(buckets), "buckets: 1: each key is a register of its own");
    let replicas = KeyspaceSpec { replicas: Some(6), ..spec(&[]) };
    assert_eq!(says(replicas), "5 suitable nodes answer, and 6 replicas are requested (see `atoll status`)");
}

#[test]
fn a_deleted_keyspace_does_not_return() {
    let (mut driver, provider) = cluster();
    let layout = plan(&mut driver, &provider, spec(&[])).unwrap();
    let (p, l) = (provider.clone(), layout.clone());
    driver.block_on(NodeId(1), async move { p.provision(&l).await }).unwrap();
    let keyspace = provider.open(&layout);
    assert!(matches!(driver.block_on(NodeId(1), put(keyspace.clone(), 1)), Ok(Changed::Done(_))));
    let (p, l) = (provider.clone(), layout.clone());
    driver.block_on(NodeId(1), async move {
        p.delete(&l).await.unwrap();
        p.delete(&l).await.unwrap();
    });
    let gone = Err(KeyspaceError::NotDone(Unavailability::Gone));
    // This write was sent with a token, so a copy of its message may still be under way.
    let second = driver.block_on(NodeId(1), put(keyspace.clone(), 2));
    assert!(matches!(second, Err(KeyspaceError::Unknown { why: Unavailability::Gone, .. })), "{second:?}");
    // Nobody brings it back, not even after a restart of everybody.
    driver.run_for(std::time::Duration::from_secs(1));
    for node in 2..=NODES {
        driver.restart(NodeId(node), assemble).unwrap();
    }
    let (p, l) = (provider.clone(), layout.clone());
    driver.block_on(NodeId(1), async move { drop(p.provision(&l).await) });
    assert_eq!(driver.block_on(NodeId(1), put(keyspace, 3)), gone);
}

/// Does all steps of a move, as the catalog does.
fn complete(driver: &mut Driver, provider: &InPlaceProvider, mut layout: Layout) -> Layout {
    loop {
        let (p, l) = (provider.clone(), layout.clone());
        match driver.block_on(NodeId(1), async move { p.step(&l).await }).unwrap() {
            Some(next) => layout = next,
            None => return layout,
        }
    }
}

#[test]
fn shards_move_with_everything_that_was_done() {
    let (mut driver, provider) = cluster();
    let on = |nodes: std::ops::RangeInclusive<u32>, replicas| KeyspaceSpec {
        shards: Some(2),
        nodes: nodes.map(NodeId).collect(),
        replicas: Some(replicas),
        ..spec(&[])
    };
    let mut layout = plan(&mut driver, &provider, on(1..=3, 3)).unwrap();
    let mut keyspace = provider.open(&layout);
    let done = driver.block_on(NodeId(1), put(keyspace.clone(), 1)).unwrap();
    for (nodes, replicas) in [(1..=5, 5), (3..=5, 3)] {
        let (p, l, wanted) = (provider.clone(), layout.clone(), on(nodes.clone(), replicas));
        let planned = driver.block_on(NodeId(1), async move { p.plan_move(&l, &wanted).await }).unwrap();
        assert_eq!(planned.shards, layout.shards, "the old groups serve until the new ones do");
        layout = complete(&mut driver, &provider, planned);
        let old = std::mem::replace(&mut keyspace, provider.open(&layout));
        assert!(layout.shards.iter().all(|shard| shard.replicas.len() == replicas as usize));
        assert!(layout.nodes().iter().all(|node| nodes.contains(&node.0)));
        let refused = driver.block_on(NodeId(1), put(old, 100 + layout.epoch)).unwrap_err();
        assert!(
            matches!(
                refused,
                KeyspaceError::NotDone(Unavailability::Gone)
                    | KeyspaceError::Unknown { why: Unavailability::Gone, .. }
            ),
            "{refused:?}"
        );
        // The new group knows what was done in the old one.
        let (op, of) = (OpId { client: ClientId(1), seq: 1 }, keyspace.clone());
        let repeat = async move {
            let again = Attempt::Again(Floor(0));
            of.write(op, again, "k".into(), Guard::Always, Change::Put("other".into())).await
        };
        assert_eq!(driver.block_on(NodeId(1), repeat).unwrap(), done);
        let of = keyspace.clone();
        let held = driver.block_on(NodeId(1), async move { of.get("k".into()).await }).unwrap().unwrap();
        assert_eq!((held.value, Changed::Done(held.version)), ("v".into(), done.clone()));
    }
    let (p, l) = (provider.clone(), layout.clone());
    let same = driver.block_on(NodeId(1), async move { p.plan_move(&l, &on(3..=5, 3)).await }).unwrap();
    assert_eq!(same, layout, "nothing to move");
}

/// Plans a move as an operator who names no zones, or these, and does all steps. Returns the zone of each replica, shard by shard.
fn zones_after(
    driver: &mut Driver,
    provider: &InPlaceProvider,
    layout: &mut Layout,
    (nodes, options): (&[u32], &[(&str, &str)]),
) -> Vec<Vec<u32>> {
    let wanted = KeyspaceSpec { nodes: nodes.iter().copied().map(NodeId).collect(), ..spec(options) };
    let (p, l) = (provider.clone(), layout.clone());
    let planned = driver.block_on(NodeId(1), async move { p.plan_move(&l, &wanted).await }).unwrap();
    *layout = complete(driver, provider, planned);
    let zone = |node: NodeId| (node.0 - 1) / 2;
    layout.shards.iter().map(|shard| shard.replicas.iter().map(|r| zone(r.node)).collect()).collect()
}

#[test]
fn moves_keep_to_the_zones_of_the_keyspace() {
    let (mut driver, provider) = cluster();
    let zones = [("zones", "1:a,2:a,3:b,4:b,5:c")];
    let two = KeyspaceSpec { replicas: Some(2), shards: Some(16), ..spec(&zones) };
    let mut layout = plan(&mut driver, &provider, two).unwrap();
    let is_spread = |shards: &[Vec<u32>]| shards.iter().all(|zones| zones[0] != zones[1]);
    // As for a drain of node 5: nobody names zones. Without a rule, some shard would have both replicas in one of them.
    let moved = zones_after(&mut driver, &provider, &mut layout, (&[1, 2, 3, 4], &[]));
    assert!(is_spread(&moved), "{moved:?}");
    let moved = zones_after(&mut driver, &provider, &mut layout, (&[1, 2, 3, 4, 5], &[]));
    assert!(is_spread(&moved), "after another move: {moved:?}");
    let everywhere = [("zones", "1:x")];
    let moved = zones_after(&mut driver, &provider, &mut layout, (&[1, 2, 3, 4], &everywhere));
    assert!(!is_spread(&moved), "other zones can be named: {moved:?}");
    let moved = zones_after(&mut driver, &provider, &mut layout, (&[1, 2, 3, 4], &[]));
    assert!(!is_spread(&moved), "and count from then on: {moved:?}");
}

#[test]
fn records_of_transactions_are_no_keys() {
    let (mut driver, provider) = cluster();
    let layout = plan(&mut driver, &provider, spec(&[])).unwrap();
    let keyspace = provider.open(&layout);
    let test = async move {
        let put = |key: &'static str| {
            TxnPart::new(Bytes::from(key), Guard::Absent, Some(Change::Put(Bytes::from("1"))))
        };
        let op = OpId { client: ClientId(1), seq: 1 };
        let done = keyspace.transact(op, false, vec![put("b"), put("a")]).await.unwrap();
        assert!(matches!(done, Transacted::Done(_)), "{done:?}");
        let from = ListFrom { limit: 10, ..ListFrom::default() };
        let listed = keyspace.list(from).await.unwrap();
        let listed: Vec<Bytes> = listed.keys.into_iter().map(|(key, _)| key).collect();
        assert_eq!(listed, ["a", "b"]);
    };
    driver.block_on(NodeId(1), test);
}

#[test]
fn the_plug_in_claims_nothing_of_others() {
    assert!(Protocols::default().with(InPlacePlugin::default()).check().is_ok());
}

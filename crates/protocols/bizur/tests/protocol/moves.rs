//! Moves shards to other replicas under load, and replaces replicas that have lost their disks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use atoll_bizur::roles::REPLICA;
use atoll_bizur::{BizurNode, BizurProvider, ClientOptions, ENGINE, NodeOptions};
use atoll_contract::conformance::Driver;
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Durability, Floor, Guard, Keyspace, KeyspaceError, KeyspaceProvider,
    KeyspaceSpec, Layout, Unavailability,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{
    Caller, Candidate, Directory, Effects, Env, Frame, Identify, Identity, Loc, Lsn, Message, NodeCore,
    NodeId, Role, StorageId, Tick, roles::MEMBER,
};
use bytes::Bytes;

const NODES: u32 = 6;

/// Says who the node is.
struct Member(Env, StorageId);

fn storage(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) + 100)
}

impl Role for Member {
    fn on_frame(&mut self, _: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        Identify::from_frame(frame).unwrap();
        let (node, incarnation) = (self.0.node(), self.0.incarnation());
        let identity = Identity {
            node,
            incarnation,
            storage: self.1,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        };
        out.reply(from, identity, Lsn::NONE);
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
}

struct Nodes;

impl Directory for Nodes {
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |n| Candidate {
            node: NodeId(n),
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            leaving: false,
            alive: true,
            failing: false,
        };
        (1..=NODES).map(candidate).collect()
    }
}

fn assemble(core: &mut NodeCore) {
    let disk = storage(core.env().node());
    assemble_on(core, disk);
}

/// Assembles a node on this disk. It finds nothing of its own in the journal of another one.
fn assemble_on(core: &mut NodeCore, disk: StorageId) {
    let env = core.env();
    let node = BizurNode::new(env.clone(), disk, NodeOptions::default());
    core.add_role(REPLICA, Box::new(node));
    core.add_role(MEMBER, Box::new(Member(env, disk)));
}

fn cluster() -> (Driver, BizurProvider) {
    set_mutant(Mutant::NONE);
    let mut driver = Driver::new(1);
    for node in (1..=NODES).map(NodeId) {
        driver.add_node(node, assemble);
    }
    let provider = BizurProvider::new(driver.env(NodeId(1)), Arc::new(Nodes), ClientOptions::default());
    (driver, provider)
}

fn on(nodes: std::ops::RangeInclusive<u32>, replicas: u32, durability: Durability) -> KeyspaceSpec {
    KeyspaceSpec {
        engine: ENGINE.to_owned(),
        shards: Some(3),
        buckets: Some(40),
        replicas: Some(replicas),
        nodes: nodes.map(NodeId).collect(),
        durability,
        ..KeyspaceSpec::default()
    }
}

/// Creates a keyspace.
fn create(driver: &mut Driver, provider: &BizurProvider, spec: KeyspaceSpec) -> Layout {
    let provider = provider.clone();
    driver.block_on(NodeId(1), async move {
        let layout = provider.plan(&spec).await.unwrap();
        provider.provision(&layout).await.unwrap();
        layout
    })
}

/// Plans a move and does all of its steps, as the catalog does.
fn relocate(driver: &mut Driver, provider: &BizurProvider, layout: &Layout, spec: KeyspaceSpec) -> Layout {
    let (provider, layout) = (provider.clone(), layout.clone());
    driver.block_on(NodeId(1), async move {
        let mut layout = provider.plan_move(&layout, &spec).await.unwrap();
        while let Some(next) = provider.step(&layout).await.unwrap() {
            layout = next;
        }
        layout
    })
}

fn put(keyspace: Arc<dyn Keyspace>, seq: u64) -> impl Future<Output = Result<Changed, KeyspaceError>> + Send {
    let op = OpId { client: ClientId(1), seq };
    let (key, value) = (Bytes::from(format!("k{seq}")), Bytes::from(seq.to_string()));
    async move { keyspace.write(op, Attempt::First, key, Guard::Always, Change::Put(value)).await }
}

/// Writes and reads a key through a handle to the first layout until the flag is raised. Returns how many operations there were. Every
/// one must succeed at the first attempt.
async fn client(env: Env, keyspace: Arc<dyn Keyspace>, number: u64, over: Arc<AtomicBool>) -> u64 {
    let key = Bytes::from(format!("counter-{number}"));
    let mut seq = 0;
    while !over.load(Ordering::Relaxed) {
        seq += 1;
        let op = OpId { client: ClientId(number), seq };
        let guard = if seq == 1 { Guard::Absent } else { Guard::Value(Bytes::from((seq - 1).to_string())) };
        let change = Change::Put(Bytes::from(seq.to_string()));
        let written = keyspace.write(op, Attempt::First, key.clone(), guard, change).await;
        assert!(matches!(written, Ok(Changed::Done(_))), "write {seq} of client {number}: {written:?}");
        let held = keyspace.get(key.clone()).await.unwrap().unwrap();
        assert_eq!(held.value, Bytes::from(seq.to_string()));
        env.sleep(std::time::Duration::from_millis(1)).await;
    }
    seq
}

#[test]
fn shards_move_under_load_without_a_failed_operation() {
    let (mut driver, provider) = cluster();
    let mut layout = create(&mut driver, &provider, on(1..=3, 3, Durability::Disk));
    let oldest = layout.clone();
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = [(1, 11), (2, 12), (6, 13)]
        .map(|(node, number)| {
            let env = driver.env(NodeId(node));
            let keyspace: Arc<dyn Keyspace> = Arc::new(atoll_bizur::BizurKeyspace::new(
                env.clone(),
                layout.clone(),
                ClientOptions::default(),
            ));
            env.launch("client", client(env.clone(), keyspace, number, over.clone()))
        })
        .into_iter()
        .collect();
    let first = provider.open(&layout);
    let done = driver.block_on(NodeId(1), put(first.clone(), 1)).unwrap();
    for (nodes, replicas) in [(1..=5, 5), (4..=6, 3)] {
        layout = relocate(&mut driver, &provider, &layout, on(nodes.clone(), replicas, Durability::Disk));
        assert!(layout.shards.iter().all(|shard| shard.replicas.len() == replicas as usize));
        assert!(layout.nodes().iter().all(|node| nodes.contains(&node.0)));
        driver.run_for(std::time::Duration::from_millis(50));
        // The new group knows what was done in the old one.
        let (op, of) = (OpId { client: ClientId(1), seq: 1 }, provider.open(&layout));
        let repeat = async move {
            let again = Attempt::Again(Floor(0));
            of.write(op, again, "k1".into(), Guard::Always, Change::Put("other".into())).await
        };
        assert_eq!(driver.block_on(NodeId(1), repeat).unwrap(), done);
    }
    over.store(true, Ordering::Relaxed);
    for ticket in clients {
        let operations = driver.block_on(NodeId(1), async move { ticket.await.unwrap() });
        assert!(operations > 20, "{operations} operations");
    }
    let same = relocate(&mut driver, &provider, &layout, on(4..=6, 3, Durability::Disk));
    assert_eq!(same, layout, "nothing to move");
    // The former replicas send clients with an old layout on. After a restart, they only know that they have retired.
    let get = |of: Arc<dyn Keyspace>| async move { of.get("k1".into()).await };
    let held = driver.block_on(NodeId(1), get(first.clone())).unwrap().unwrap();
    assert_eq!(held.value, Bytes::from("1"));
    for node in 2..=3 {
        driver.restart(NodeId(node), assemble).unwrap();
    }
    let env = driver.env(NodeId(6));
    let late = Arc::new(atoll_bizur::BizurKeyspace::new(env, oldest, ClientOptions::default()));
    let refused = driver.block_on(NodeId(6), get(late));
    assert!(
        matches!(refused, Ok(Some(_)) | Err(KeyspaceError::NotDone(Unavailability::Gone))),
        "an empty keyspace stands in for the one that has moved: {refused:?}"
    );
}

#[test]
fn replicas_that_have_lost_their_disks_are_replaced_one_after_the_other() {
    let (mut driver, provider) = cluster();
    let anywhere = || on(1..=4, 3, Durability::Disk);
    let mut layout = create(&mut driver, &provider, on(2..=4, 3, Durability::Disk));
    let keyspace = provider.open(&layout);
    for seq in 1..=30 {
        let written = driver.block_on(NodeId(1), put(keyspace.clone(), seq));
        assert!(matches!(written, Ok(Changed::Done(_))), "{written:?}");
    }
    for node in [2, 3, 4] {
        let lost = storage(NodeId(node)).0;
        let has = |layout: &Layout, disk: u128| {
            layout.shards.iter().flat_map(|shard| &shard.replicas).any(|replica| replica.identity == disk)
        };
        assert!(has(&layout, lost), "node {node} holds nothing");
        driver.restart(NodeId(node), |core| assemble_on(core, StorageId(lost + 1000))).unwrap();
        driver.run_for(std::time::Duration::from_millis(500));
        layout = relocate(&mut driver, &provider, &layout, anywhere());
        assert!(!has(&layout, lost));
    }
    let keyspace = provider.open(&layout);
    for seq in 1..=30u64 {
        let (of, key) = (keyspace.clone(), Bytes::from(format!("k{seq}")));
        let held = driver.block_on(NodeId(1), async move { of.get(key).await }).unwrap().unwrap();
        assert_eq!(held.value, Bytes::from(seq.to_string()));
    }
}

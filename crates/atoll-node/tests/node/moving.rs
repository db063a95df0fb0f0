//! Tests what a node does with the handle to a keyspace, on virtual time: what is said of one that cannot answer because a shard is between
//! two groups of replicas, and that operations which begin together share one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_contract::conformance::Driver;
use atoll_contract::keyspace::{
    Attempt, Catalog, Change, Changed, Floor, Guard, Held, Keyspace, KeyspaceError, KeyspaceId,
    KeyspacePlanError, KeyspaceProvider, KeyspaceSpec, Layout, LayoutState, Limits, ListFrom, MemoryKeyspace,
    Page, Replica, ShardPlacement, Unavailability,
};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{BoxFuture, NodeId};
use atoll_log::memory::MemoryServers;
use atoll_node::keyspaces::{Keyspaces, KeyspacesError};
use atoll_node::mutants;
use bytes::Bytes;

const NODE: NodeId = NodeId(1);
const GONE: Unavailability = Unavailability::Gone;

/// An engine whose shards have left their group, and never arrive in the next one.
#[derive(Debug, Default)]
struct Stuck {
    /// How many handles there are.
    opened: AtomicU64,
}

fn answer<'a, T: Send + 'a>(error: KeyspaceError) -> BoxFuture<'a, Result<T, KeyspaceError>> {
    Box::pin(std::future::ready(Err(error)))
}

impl Keyspace for Stuck {
    fn engine(&self) -> &'static str {
        "stuck"
    }

    fn limits(&self) -> Limits {
        MemoryKeyspace::new().limits()
    }

    fn get(&self, _: Bytes) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        answer(KeyspaceError::NotDone(GONE))
    }

    fn get_many(&self, _: Vec<Bytes>) -> BoxFuture<'_, Result<Vec<Option<Held>>, KeyspaceError>> {
        answer(KeyspaceError::NotDone(GONE))
    }

    fn floor(&self, _: &[u8]) -> Floor {
        Floor(0)
    }

    fn write(
        &self,
        _: OpId,
        _: Attempt,
        _: Bytes,
        _: Guard,
        _: Change,
    ) -> BoxFuture<'_, Result<Changed, KeyspaceError>> {
        answer(KeyspaceError::Unknown { why: GONE, floor: Floor(7) })
    }

    fn list(&self, _: ListFrom) -> BoxFuture<'_, Result<Page, KeyspaceError>> {
        answer(KeyspaceError::NotDone(GONE))
    }
}

impl KeyspaceProvider for Stuck {
    fn engine(&self) -> &'static str {
        "stuck"
    }

    fn plan<'a>(&'a self, _: &'a KeyspaceSpec) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>> {
        let replicas = vec![Replica { node: NODE, identity: 1 }];
        Box::pin(std::future::ready(Ok(Layout {
            engine: "stuck".to_owned(),
            id: KeyspaceId(1),
            epoch: 1,
            state: LayoutState::Normal,
            durability: Default::default(),
            buckets: 1,
            shards: vec![ShardPlacement { replicas }],
            options: Bytes::new(),
        })))
    }

    fn provision<'a>(&'a self, _: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn open(&self, _: &Layout) -> Arc<dyn Keyspace> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        Arc::new(Stuck::default())
    }

    fn delete<'a>(&'a self, _: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn left_to_move(&self, _: &Layout) -> usize {
        1
    }
}

#[test]
fn a_shard_that_moves_for_long_is_not_said_to_be_gone() {
    let mut driver = Driver::new(1);
    let env = driver.add_node(NODE, |_| {});
    let servers = MemoryServers::new(&[NODE]);
    let stuck: Arc<dyn KeyspaceProvider> = Arc::new(Stuck::default());
    let catalog = Catalog::new(env.clone(), servers.registers(&env), [stuck.clone()]);
    let of = Keyspaces::new(env.clone(), servers.registers(&env), vec![stuck]);
    let test = async move {
        let spec = KeyspaceSpec { engine: "stuck".into(), ..KeyspaceSpec::default() };
        catalog.create("reef", &spec).await.unwrap();
        let moving = Unavailability::Moving;
        let read = of.get("reef", vec!["k".into()]).await;
        assert_eq!(read, Err(KeyspacesError::Keys(KeyspaceError::NotDone(moving))));
        let write = || {
            let op = OpId { client: ClientId(1), seq: 1 };
            of.write("reef", (op, Attempt::First), "k".into(), Guard::Always, Change::Delete)
        };
        let unknown = |why| Err(KeyspacesError::Keys(KeyspaceError::Unknown { why, floor: Floor(7) }));
        assert_eq!(write().await, unknown(moving));
        // While its layout cannot be read, nobody knows whether it is gone.
        servers.faults(|faults| faults.register_down = 1000);
        assert_eq!(write().await, unknown(Unavailability::NoQuorum));
        servers.faults(|faults| faults.register_down = 0);
        of.delete("reef").await.unwrap();
        let read = of.get("reef", vec!["k".into()]).await;
        assert!(matches!(read, Err(KeyspacesError::Catalog(_))), "{read:?}");
    };
    driver.block_on(NODE, test);
}

/// Lets this many reads of a keyspace begin together. Returns how many handles are opened for them.
fn open_together(reads: usize, bug: Mutant) -> u64 {
    set_mutant(bug);
    let mut driver = Driver::new(1);
    let env = driver.add_node(NODE, |_| {});
    let servers = MemoryServers::new(&[NODE]);
    let stuck = Arc::new(Stuck::default());
    let catalog =
        Catalog::new(env.clone(), servers.registers(&env), [stuck.clone() as Arc<dyn KeyspaceProvider>]);
    let of = Keyspaces::new(env.clone(), servers.registers(&env), vec![stuck.clone()]);
    let test = async move {
        let spec = KeyspaceSpec { engine: "stuck".into(), ..KeyspaceSpec::default() };
        catalog.create("reef", &spec).await.unwrap();
        let read = |_| {
            let of = of.clone();
            env.launch("read", async move { of.get("reef", vec!["k".into()]).await })
        };
        let reads: Vec<_> = (0..reads).map(read).collect();
        for read in reads {
            assert!(read.await.unwrap().is_err());
        }
    };
    driver.block_on(NODE, test);
    set_mutant(Mutant::NONE);
    stuck.opened.load(Ordering::Relaxed)
}

#[test]
fn operations_that_begin_together_share_one_handle() {
    assert_eq!(open_together(64, Mutant::NONE), 1);
    assert_eq!(open_together(64, mutants::KEYSPACES_OPENS_EACH), 64, "the bug shows");
}

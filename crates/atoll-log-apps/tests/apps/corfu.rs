//! The applications over CORFU: a cluster of nodes with storage units, some of which die while clients write.

#[path = "../../../protocols/corfu/tests/protocol/cluster.rs"]
mod cluster;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::register::*;
use atoll_contract::{ClientId, LogletId};
use atoll_core::*;
use atoll_corfu::{ClientOptions, CorfuLog, UnitId};
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::shared_log::{SharedLog, Slot};
use atoll_log_apps::store::*;
use bytes::Bytes;
use cluster::Cluster;

use crate::store::{keys, put};

/// A register in the memory of the test.
#[derive(Debug, Default)]
struct Shelf(Mutex<Versioned>);

impl Register for Shelf {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        let now = self.0.lock().unwrap().clone();
        Box::pin(async move { Ok(now) })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        let mut now = self.0.lock().unwrap();
        let written = if now.version == expected {
            *now = Versioned { version: Version(expected.0 + 1), value, nonce };
            Written::Yes(now.version)
        } else {
            Written::Conflict(now.clone())
        };
        Box::pin(async move { Ok(written) })
    }
}

struct World {
    c: Cluster,
    shelf: Arc<Shelf>,
}

impl World {
    /// Makes a cluster of seven nodes, with two chains of units, and the sequencer on node 7.
    fn new(seed: u64) -> Self {
        let c = cluster::new(7, seed);
        let projection = cluster::projection(&c, 7, &[&[1, 2], &[3, 4]]);
        let mut world = World { c, shelf: Arc::default() };
        let log = world.log(5);
        world.c.on(5, async move { log.create(projection).await.unwrap() });
        world
    }

    fn log(&self, at: u32) -> CorfuLog {
        let options = ClientOptions { round_timeout: Duration::from_millis(60), ..ClientOptions::default() };
        CorfuLog::new(self.c.env(at), LogletId(9), self.shelf.clone(), options)
    }

    fn map(&self, at: u32) -> Arc<MapReplica> {
        let map = StoreMap::new(MapLimits::default());
        Arc::new(Player::new(Arc::new(self.log(at)), map, PlayOptions::default()))
    }

    fn unit(&self, node: u32) -> UnitId {
        (NodeId(node), self.c.nodes[&NodeId(node)].storage)
    }
}

async fn put_all(store: &Store, text: &str) -> Result<u64, StoreError> {
    store.multi_put(put(&[("a", text), ("b", text), ("c", text)])).await
}

fn same(text: &str) -> Vec<Option<Bytes>> {
    vec![Some(Bytes::copy_from_slice(text.as_bytes())); 3]
}

#[test]
fn the_store_survives_its_units_its_sequencer_and_its_clients() {
    let mut w = World::new(1);
    let map = w.map(5);
    let store = Arc::new(Store::new(map.clone(), ClientId(1), StoreOptions::default()));
    let of = store.clone();
    let first = w.c.on(5, async move { put_all(&of, "one").await.unwrap() });
    assert_eq!(first, 4, "three values and a commit");
    // A client dies in the middle of a multi-put.
    let dead = Store::new(w.map(6), ClientId(2), StoreOptions::default());
    let stuck = w.c.env(6).launch("dies", async move { put_all(&dead, "dead").await });
    w.c.run_for(Duration::from_millis(1));
    w.c.kill(NodeId(6));
    drop(stuck);
    // The sequencer dies, and then a unit.
    w.c.kill(NodeId(7));
    let of = store.clone();
    w.c.on(5, async move { put_all(&of, "two").await.unwrap() });
    w.c.kill(NodeId(2));
    let (old, new, log) = (w.unit(2), w.unit(5), w.log(4));
    w.c.on(4, async move { log.replace_unit(old, new).await.unwrap() });
    let of = store.clone();
    let last = w.c.on(5, async move { put_all(&of, "three").await.unwrap() });
    let fresh = w.map(3);
    let reader = Store::new(fresh.clone(), ClientId(3), StoreOptions::default());
    let (index, values) = w.c.on(3, async move { reader.multi_get(&keys(&["a", "b", "c"])).await.unwrap() });
    assert!(index >= last);
    assert_eq!(values, same("three"));
    let of = map.clone();
    w.c.on(5, async move { of.play().await.unwrap() });
    assert_eq!(map.hash(), fresh.hash());
}

#[test]
fn a_sparse_log_is_compacted_and_a_lost_replica_replays() {
    let mut w = World::new(2);
    let map = w.map(5);
    let of = map.clone();
    w.c.on(5, async move {
        let store = Store::new(of, ClientId(1), StoreOptions::default());
        store.multi_put(put(&[("rare", "once")])).await.unwrap();
        for n in 0..20 {
            put_all(&store, &n.to_string()).await.unwrap();
        }
    });
    for moves in [false, true] {
        let options = CompactOptions { patience: 0, history: 0, moves, ..CompactOptions::default() };
        let mut compactor = Compactor::new(map.clone(), Arc::default(), ClientId(2));
        let done = w.c.on(5, async move { compactor.run(options).await.unwrap() });
        assert_eq!((done.singles > 60, done.prefix > 60), (!moves, moves), "{done:?}");
        let (fresh, log) = (w.map(6), w.log(6));
        let of = fresh.clone();
        w.c.on(6, async move {
            let first = if moves { Slot::Trimmed } else { SharedLog::read(&log, 0).await.unwrap() };
            assert_eq!(SharedLog::read(&log, 0).await.unwrap(), first);
            assert_eq!(SharedLog::read(&log, 2).await.unwrap(), Slot::Trimmed);
            let store = Store::new(of, ClientId(3), StoreOptions::default());
            let (_, values) = store.multi_get(&keys(&["rare", "a"])).await.unwrap();
            assert_eq!(values, [Some("once".into()), Some("19".into())]);
        });
        let of = map.clone();
        w.c.on(5, async move { of.play().await.unwrap() });
        assert_eq!(map.hash(), fresh.hash());
    }
}

//! Keyspaces by name: creations, deletions that die half-way, and rivals.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use atoll_contract::conformance::Driver;
use atoll_contract::keyspace::{
    Catalog, CatalogError, KeyspaceId, KeyspacePlanError, KeyspaceSpec, Layout, LayoutState, MemoryKeyspace,
    Replica, ShardPlacement, Unavailability,
};
use atoll_contract::register::Listed;
use atoll_contract::{
    Keyspace, KeyspaceError, KeyspaceProvider, Nonce, Register, RegisterError, Registers, Version, Versioned,
    Written,
};
use atoll_core::{BoxFuture, NodeId};
use bytes::Bytes;

type Values = Arc<Mutex<BTreeMap<String, Versioned>>>;

/// Registers in memory.
#[derive(Clone, Debug, Default)]
struct Memory(Values);

#[derive(Debug)]
struct One(Values, String);

impl Register for One {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async { Ok(self.0.lock().unwrap().get(&self.1).cloned().unwrap_or_default()) })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            let mut values = self.0.lock().unwrap();
            let now = values.entry(self.1.clone()).or_default();
            if now.version != expected {
                return Ok(Written::Conflict(now.clone()));
            }
            *now = Versioned { version: Version(expected.0 + 1), value, nonce };
            Ok(Written::Yes(now.version))
        })
    }
}

impl Registers for Memory {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(One(self.0.clone(), name.to_owned()))
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let values = self.0.lock().unwrap();
        let names = values.iter().filter(|(name, v)| name.starts_with(prefix) && v.version > Version(0));
        let mark = |v: &Versioned| Some(u128::from(v.version.0));
        let names = names.map(|(name, v)| Listed { name: name.clone(), mark: mark(v) }).collect();
        Box::pin(std::future::ready(Ok(names)))
    }
}

/// An engine that counts, and whose replicas can be out of reach.
#[derive(Debug, Default)]
struct Engine {
    planned: Mutex<u128>,
    deleted: Mutex<Vec<KeyspaceId>>,
    down: Mutex<bool>,
    /// Registers that somebody else writes again, with the same value, while the replicas are deleted.
    rival: Mutex<Option<Values>>,
}

impl KeyspaceProvider for Engine {
    fn engine(&self) -> &'static str {
        "reef"
    }

    fn plan<'a>(&'a self, _: &'a KeyspaceSpec) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>> {
        let mut planned = self.planned.lock().unwrap();
        *planned += 1;
        let replicas = vec![Replica { node: NodeId(1), identity: 1 }];
        Box::pin(std::future::ready(Ok(Layout {
            engine: "reef".to_owned(),
            id: KeyspaceId(*planned),
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
        Arc::new(MemoryKeyspace::new())
    }

    fn delete<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        let down = *self.down.lock().unwrap();
        if !down {
            self.deleted.lock().unwrap().push(layout.id);
        }
        if let Some(values) = self.rival.lock().unwrap().take() {
            values.lock().unwrap().values_mut().for_each(|v| v.version.0 += 1);
        }
        let unreached = Err(KeyspaceError::NotDone(Unavailability::NoQuorum));
        Box::pin(std::future::ready(if down { unreached } else { Ok(()) }))
    }
}

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Catalog, Arc<Engine>) -> F) {
    run_with(|catalog, engine, _| test(catalog, engine));
}

fn run_with<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Catalog, Arc<Engine>, Memory) -> F) {
    let mut driver = Driver::new(1);
    let env = driver.add_node(NodeId(1), |_| {});
    let engine = Arc::new(Engine::default());
    let providers: [Arc<dyn KeyspaceProvider>; 1] = [engine.clone()];
    let memory = Memory::default();
    let catalog = Catalog::new(env, Arc::new(memory.clone()), providers);
    let test = test(catalog, engine, memory);
    driver.block_on(NodeId(1), test);
}

fn spec() -> KeyspaceSpec {
    KeyspaceSpec { engine: "reef".to_owned(), ..KeyspaceSpec::default() }
}

#[test]
fn a_keyspace_is_created_once_and_its_name_can_be_used_again() {
    run(|catalog, _| async move {
        let unknown = KeyspaceSpec { engine: "sand".to_owned(), ..KeyspaceSpec::default() };
        let refused = catalog.create("a", &unknown).await.unwrap_err().to_string();
        assert_eq!(refused, "no engine \"sand\"; known engines: reef");
        assert_eq!(catalog.open("a").await.err(), Some(CatalogError::NotThere("a".to_owned())));
        for name in ["", "a\nb", &"x".repeat(201)] {
            assert!(matches!(catalog.create(name, &spec()).await, Err(CatalogError::InvalidName(_))));
        }
        let first = catalog.create("a", &spec()).await.unwrap();
        assert_eq!(catalog.create("a", &spec()).await, Err(CatalogError::Exists("a".to_owned())));
        assert_eq!(catalog.layout("a").await, Ok(first.clone()));
        assert_eq!(catalog.names().await, Ok(vec!["a".to_owned()]));
        catalog.delete("a").await.unwrap();
        assert_eq!(catalog.names().await, Ok(Vec::new()));
        assert_eq!(catalog.delete("a").await, Err(CatalogError::NotThere("a".to_owned())));
        assert_ne!(catalog.create("a", &spec()).await.unwrap().id, first.id);
    });
}

#[test]
fn a_deletion_that_died_half_way_is_completed() {
    run(|catalog, engine| async move {
        for completes in ["tend", "create", "delete"] {
            let layout = catalog.create("a", &spec()).await.unwrap();
            // The replicas are out of reach after the first step, as if the node had died.
            *engine.down.lock().unwrap() = true;
            assert!(matches!(catalog.delete("a").await, Err(CatalogError::Replicas(_))));
            assert_eq!(catalog.open("a").await.err(), Some(CatalogError::Deleting("a".to_owned())));
            assert_eq!(catalog.names().await, Ok(Vec::new()), "nobody opens it from the first step on");
            assert!(catalog.tend().await.is_err());
            *engine.down.lock().unwrap() = false;
            match completes {
                "tend" => assert_eq!(catalog.tend().await, Ok(1)),
                "delete" => catalog.delete("a").await.unwrap(),
                _ => {
                    assert_ne!(catalog.create("a", &spec()).await.unwrap().id, layout.id);
                    catalog.delete("a").await.unwrap();
                }
            }
            assert!(engine.deleted.lock().unwrap().contains(&layout.id), "{completes}");
            assert_eq!(catalog.tend().await, Ok(0));
        }
    });
}

#[test]
fn a_deletion_whose_last_write_loses_is_completed() {
    run_with(|catalog, engine, memory| async move {
        let layout = catalog.create("a", &spec()).await.unwrap();
        *engine.rival.lock().unwrap() = Some(memory.0.clone());
        catalog.delete("a").await.unwrap();
        assert_eq!(*engine.deleted.lock().unwrap(), [layout.id, layout.id], "the first mark lost");
        assert_eq!(catalog.layout("a").await, Err(CatalogError::NotThere("a".to_owned())));
        assert_eq!(catalog.tend().await, Ok(0));
    });
}

#[test]
fn a_register_with_nothing_to_complete_is_not_read_again_until_it_changes() {
    run(|catalog, engine| async move {
        let mut settled = BTreeMap::new();
        catalog.create("a", &spec()).await.unwrap();
        assert_eq!(catalog.tend_since(&mut settled).await, Ok(0));
        assert_eq!(settled.len(), 1);
        *engine.down.lock().unwrap() = true;
        assert!(catalog.delete("a").await.is_err());
        assert!(catalog.tend_since(&mut settled).await.is_err());
        *engine.down.lock().unwrap() = false;
        assert_eq!(catalog.tend_since(&mut settled).await, Ok(1));
        assert_eq!(catalog.is_known("a").await, Ok(true));
        assert_eq!(catalog.is_known("b").await, Ok(false));
    });
}

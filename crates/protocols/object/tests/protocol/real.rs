//! Registers in a real store that speaks S3, where the environment names one.

// Real time: each run has names of its own in the store.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_contract::Registers;
use atoll_contract::conformance::{Driver, RegisterHarness, register};
use atoll_core::{BoxFuture, Env, NodeId};
use atoll_object::ObjectRegisters;
use atoll_object::config::Location;
use atoll_object::store::{Put, Store, StoreError, Tag};
use atoll_object::testing::real;
use atoll_register_store::Options;
use bytes::Bytes;

/// The variable with the place in the store, `s3://BUCKET/PREFIX`. The rest is in the environment, as for a node.
const PLACE: &str = "ATOLL_TEST_S3";
const NODES: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(5);

/// A real store for nodes on virtual time: time stands still until the store has answered, and the answer takes its time afterwards. So
/// calls of several nodes overlap, although the store does them one after the other.
#[derive(Debug)]
struct Stopping {
    env: Env,
    inner: Arc<dyn Store>,
}

impl Stopping {
    fn after<T: Send + 'static>(&self, asked: BoxFuture<'static, T>) -> BoxFuture<'static, T> {
        let answer = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(asked);
        let late = self.env.sleep(self.env.jitter(Duration::from_micros(500)));
        Box::pin(async move {
            late.await;
            answer
        })
    }
}

impl Store for Stopping {
    fn put(&self, name: String, bytes: Bytes, how: Put) -> BoxFuture<'static, Result<bool, StoreError>> {
        self.after(self.inner.put(name, bytes, how))
    }

    fn get(&self, name: String, most: Option<u64>) -> BoxFuture<'static, Result<Option<Bytes>, StoreError>> {
        self.after(self.inner.get(name, most))
    }

    fn get_tagged(&self, name: String) -> BoxFuture<'static, Result<Option<(Bytes, Tag)>, StoreError>> {
        self.after(self.inner.get_tagged(name))
    }

    fn delete(&self, names: Vec<String>) -> BoxFuture<'static, Result<(), StoreError>> {
        self.after(self.inner.delete(names))
    }

    fn compute(&self, work: Box<dyn FnOnce() + Send>) {
        self.inner.compute(work);
    }
}

struct Harness {
    driver: Driver,
    registers: BTreeMap<NodeId, Arc<ObjectRegisters>>,
}

impl Harness {
    fn new(place: &Location) -> Self {
        let mut driver = Driver::new(5);
        let run = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
        let prefix = format!("{}/{run}", place.prefix);
        let mut registers = BTreeMap::new();
        for node in (1..=NODES).map(NodeId) {
            let env = driver.add_node(node, |_| {});
            let store = Arc::new(Stopping { env: env.clone(), inner: real(place, PATIENCE) });
            let options = Options { op_timeout: Duration::from_secs(20), retry: Duration::from_millis(5) };
            let all = ObjectRegisters::new(env, store, &prefix, PATIENCE, options);
            registers.insert(node, Arc::new(all));
        }
        Harness { driver, registers }
    }
}

impl RegisterHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        self.registers[&client].clone()
    }
}

#[test]
fn registers_in_a_store_that_speaks_s3() {
    let Some(place) = std::env::var(PLACE).ok().filter(|place| !place.is_empty()) else {
        eprintln!("not run: set {PLACE} to a place in a store, s3://BUCKET/PREFIX");
        return;
    };
    register::all(&mut Harness::new(&Location::parse(&place).unwrap()), 0..4);
}

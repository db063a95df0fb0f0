//! Runs the conformance suites of Loglets and registers on object stores: over memory and over files, without faults and with a store
//! that is slow, loses requests and answers, and reports conflicts that are none.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::conformance::{Driver, LogletHarness, RegisterHarness, loglet, register};
use atoll_contract::{Loglet, LogletId, LogletProvider, Registers};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::*;
use atoll_object::config::Location;
use atoll_object::store::{Inline, Put, Store, StoreError};
use atoll_object::testing::{Faults, Faulty};
use atoll_object::{ObjectConfig, ObjectOptions, ObjectProvider, ObjectRegisters};
use atoll_register_store::Options;
use bytes::Bytes;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

const NODES: u32 = 3;
const TOKEN: u64 = 5;

struct Harness {
    driver: Driver,
    store: Arc<dyn Store>,
    url: String,
    faults: Faults,
    /// Whether `disturb` may start faults.
    faulty: bool,
    configs: BTreeMap<u64, Bytes>,
}

impl Harness {
    fn new(store: Arc<dyn ObjectStore>, url: &str, faulty: bool) -> Self {
        let mut driver = Driver::new(17);
        for n in 1..=NODES {
            driver.add_node(NodeId(n), |_| {});
        }
        let (store, faults): (Arc<dyn Store>, _) = (Arc::new(Inline::new(store)), Faults::default());
        faults.set_delay(Duration::from_micros(300));
        let token = format!("{}/stores/{TOKEN:016x}", url.split_once(":///").unwrap().1);
        let put = store.put(token, Bytes::from_static(b"here"), Put::Create);
        assert_eq!(driver.block_on(NodeId(1), put), Ok(true));
        Harness { driver, store, url: url.to_owned(), faults, faulty, configs: BTreeMap::new() }
    }

    /// Every call returns a provider of its own, so that handles on one node know nothing of each other.
    fn provider(&self, at: NodeId) -> ObjectProvider {
        let env = self.driver.env(at);
        let store = Arc::new(Faulty::new(env.clone(), self.store.clone(), self.faults.clone()));
        let options = ObjectOptions {
            append_timeout: Duration::from_millis(400),
            request_timeout: Duration::from_millis(20),
            retry: Duration::from_millis(1),
            look_every: (Duration::from_millis(1), Duration::from_millis(4)),
            ..ObjectOptions::default()
        };
        ObjectProvider::with_store(env, options, store)
    }
}

impl LogletHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    fn fresh(&mut self) -> u64 {
        let id = self.configs.len() as u64 + 1;
        let mut config = ObjectConfig::at(&self.url, TOKEN);
        // Small blocks, so that trims delete some.
        (config.interval_ms, config.block_objects, config.batch_bytes) =
            ((id % 3) as u32, 1 + (id % 4) as u32, 400);
        self.configs.insert(id, config.to_bytes());
        id
    }

    fn open(&mut self, loglet: u64, client: NodeId) -> Arc<dyn Loglet> {
        self.provider(client).open(LogletId(loglet.into()), &self.configs[&loglet]).unwrap()
    }

    fn delete(&mut self, loglet: u64) -> bool {
        let (provider, config) = (self.provider(NodeId(NODES)), self.configs[&loglet].clone());
        let delete = async move { provider.delete(LogletId(loglet.into()), &config).await };
        assert_eq!(self.driver.block_on(NodeId(NODES), delete), Ok(()));
        true
    }

    fn disturb(&mut self, random: u64) {
        self.disturb_store(random);
    }

    fn heal(&mut self) {
        self.heal_store();
    }
}

impl RegisterHarness for Harness {
    fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    fn clients(&self) -> Vec<NodeId> {
        (1..=NODES).map(NodeId).collect()
    }

    /// Every call returns registers of their own, so that handles on one node know nothing of each other.
    fn registers(&mut self, client: NodeId) -> Arc<dyn Registers> {
        let env = self.driver.env(client);
        let store = Arc::new(Faulty::new(env.clone(), self.store.clone(), self.faults.clone()));
        let options = Options { op_timeout: Duration::from_secs(5), retry: Duration::from_millis(1) };
        Arc::new(ObjectRegisters::new(env, store, "a", Duration::from_millis(20), options))
    }

    fn disturb(&mut self, random: u64) {
        self.disturb_store(random);
    }

    fn heal(&mut self) {
        self.heal_store();
    }
}

impl Harness {
    fn disturb_store(&mut self, random: u64) {
        if !self.faulty {
            return;
        }
        let of = |shift: u32, values: [u32; 4]| values[(random >> shift) as usize % 4];
        self.faults.set_delay(Duration::from_micros(of(0, [20, 300, 2_000, 8_000]).into()));
        self.faults.set(
            of(2, [0, 0, 50, 300]),
            of(4, [0, 0, 50, 300]),
            of(6, [0, 0, 10, 50]),
            of(8, [0, 0, 100, 300]),
        );
    }

    fn heal_store(&mut self) {
        self.faults.heal();
        self.faults.set_delay(Duration::from_micros(300));
    }
}

#[test]
fn an_object_loglet_in_memory_passes_the_suite() {
    loglet::all(&mut Harness::new(Arc::new(InMemory::new()), "memory:///a", false), 0..20);
}

#[test]
fn an_object_loglet_passes_the_suite_over_a_store_that_fails() {
    loglet::all(&mut Harness::new(Arc::new(InMemory::new()), "memory:///a", true), 0..60);
}

#[test]
fn an_object_loglet_in_files_passes_the_suite() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display());
    loglet::all(&mut Harness::new(Arc::new(LocalFileSystem::new()), &url, false), 0..4);
}

#[test]
fn registers_in_memory_pass_the_suite() {
    register::all(&mut Harness::new(Arc::new(InMemory::new()), "memory:///a", false), 0..30);
}

#[test]
fn registers_pass_the_suite_over_a_store_that_fails() {
    register::all(&mut Harness::new(Arc::new(InMemory::new()), "memory:///a", true), 0..40);
}

#[test]
fn a_register_that_forgets_its_first_attempt_is_caught() {
    let run = || {
        let mut harness = Harness::new(Arc::new(InMemory::new()), "memory:///a", true);
        (0..40).for_each(|seed| register::random(&mut harness, seed));
    };
    run();
    set_mutant(atoll_register_store::mutants::REGISTER_FORGETS);
    let caught = catch_unwind(AssertUnwindSafe(run)).is_err();
    set_mutant(Mutant::NONE);
    assert!(caught);
}

#[test]
fn a_directory_of_files_is_refused_for_registers() {
    let mut driver = Driver::new(3);
    driver.add_node(NodeId(1), |_| {});
    let options = Options { op_timeout: Duration::from_secs(5), retry: Duration::from_millis(1) };
    let location = Location::parse("file:///var/lib/atoll").unwrap();
    let opened = ObjectRegisters::connect(driver.env(NodeId(1)), &location, Duration::from_secs(1), options);
    assert_eq!(opened.err(), Some(StoreError::Unsupported));
}

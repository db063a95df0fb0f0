//! Runs the conformance suite of registers on an etcd in memory, without faults and with all of them. `real.rs` has a real etcd.

use std::time::Duration;

use atoll_contract::conformance::{Driver, register};
use atoll_contract::register::Unavailability;
use atoll_contract::{Nonce, RegisterError, Registers, Version, Written};
use atoll_core::NodeId;
use atoll_etcd_register::testing::{Faults, MemoryEtcd};
use atoll_etcd_register::{EtcdOptions, EtcdRegisters, PlaceError};
use bytes::Bytes;

use crate::harness::Harness;

/// All faults of an etcd in memory.
const ALL: Faults = Faults { lost_requests: 4, lost_answers: 6, late: 4 };

#[test]
fn registers_in_memory() {
    register::all(&mut Harness::memory(Faults::default()), 0..30);
}

#[test]
fn registers_with_all_faults() {
    register::all(&mut Harness::memory(ALL), 0..40);
}

/// Two nodes, and what both have of the same etcd.
fn two_nodes(memory: &MemoryEtcd, prefix: &str) -> (Driver, Vec<EtcdRegisters>) {
    let mut driver = Driver::new(7);
    let envs = [1, 2].map(|n| driver.add_node(NodeId(n), |_| {}));
    let open = |env: atoll_core::Env| {
        let etcd = memory.at(env.clone(), Duration::from_micros(300));
        EtcdRegisters::new(env, etcd, prefix, &EtcdOptions::default()).unwrap()
    };
    (driver, envs.map(open).into())
}

#[test]
fn a_list_of_many_pages_is_whole() {
    let (mut driver, registers) = two_nodes(&MemoryEtcd::default(), "/many");
    let (writer, reader) = (registers[0].clone(), registers[1].clone());
    driver.block_on(NodeId(1), async move {
        for n in 0..1200 {
            let register = writer.register(&format!("log/{n:04}"));
            let written = register.write_if(Version(0), Bytes::from_static(b"chain"), Nonce(1)).await;
            assert_eq!(written, Ok(Written::Yes(Version(1))));
        }
    });
    let listed = driver.block_on(NodeId(2), async move { reader.list("log/").await }).unwrap();
    let names: Vec<String> = listed.into_iter().map(|listed| listed.name).collect();
    assert_eq!(names, (0..1200).map(|n| format!("log/{n:04}")).collect::<Vec<_>>());
}

#[test]
fn prefixes_keep_clusters_apart_and_other_keys_are_no_registers() {
    let memory = MemoryEtcd::default();
    memory.put("/a/registers/no register %", Bytes::from_static(b"of somebody else"));
    memory.put("/a/registers0", Bytes::from_static(b"behind"));
    let (mut driver, of_a) = two_nodes(&memory, "/a");
    let register = of_a[0].register("log");
    let written = driver.block_on(NodeId(1), async move {
        register.write_if(Version(0), Bytes::from_static(b"chain"), Nonce(1)).await
    });
    assert_eq!(written, Ok(Written::Yes(Version(1))));
    let all = of_a[1].clone();
    let listed = driver.block_on(NodeId(2), async move { all.list("").await }).unwrap();
    assert_eq!(listed.iter().map(|listed| listed.name.as_str()).collect::<Vec<_>>(), ["log"]);
    let (mut driver, of_b) = two_nodes(&memory, "/b");
    let (all, register) = (of_b[0].clone(), of_b[0].register("log"));
    let (listed, read) =
        driver.block_on(NodeId(1), async move { (all.list("").await, register.read().await) });
    assert_eq!((listed, read.map(|read| read.version)), (Ok(Vec::new()), Ok(Version(0))));
}

#[test]
fn a_key_that_is_no_register_is_refused_and_kept() {
    let memory = MemoryEtcd::default();
    memory.put("/a/registers/log", Bytes::from_static(b"of somebody else"));
    let (mut driver, registers) = two_nodes(&memory, "/a");
    let register = registers[0].register("log");
    let refused = Err(RegisterError::NotWritten(Unavailability::StorageFailed));
    driver.block_on(NodeId(1), async move {
        assert_eq!(register.read().await.map(|_| ()), refused.clone());
        let written = register.write_if(Version(0), Bytes::from_static(b"chain"), Nonce(1)).await;
        assert_eq!(written.map(|_| ()), refused);
    });
}

#[test]
fn a_place_that_cannot_be_is_refused() {
    let mut driver = Driver::new(3);
    let env = driver.add_node(NodeId(1), |_| {});
    let open =
        |servers, prefix| EtcdRegisters::connect(env.clone(), servers, prefix, &EtcdOptions::default()).err();
    assert_eq!(open("etcd-1:2379,etcd-2:2379", "/atoll"), None);
    assert_eq!(open("http://etcd-1:2379", "/atoll"), Some(PlaceError::Servers));
    assert_eq!(open("etcd-1:2379", "atoll"), Some(PlaceError::Prefix));
}

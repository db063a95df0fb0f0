#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::atomic::AtomicU32;

use super::plan::{FolderLock, Plan, PlanError, Wish, base_where, probe};
use crate::serve::config::Roles;

const FREE: Wish = Wish { nodes: None, apart: None, base_port: Some(0), state: None, syncs_off: false };

#[test]
fn three_nodes_that_know_each_other_and_are_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::make(dir.path(), FREE).unwrap();
    assert!(!plan.found);
    assert_eq!(plan.nodes.iter().map(|n| n.id).collect::<Vec<_>>(), [1, 2, 3]);
    let grpc: Vec<String> = plan.nodes.iter().map(|n| n.config.grpc.clone()).collect();
    for node in &plan.nodes {
        assert_eq!(node.config.peers.len(), 3);
        assert_eq!(node.config.data, node.folder.join("data"));
        for other in &plan.nodes {
            assert_eq!(node.config.peers[&other.id].address, other.config.peer);
        }
    }
    assert!(matches!(Plan::make(dir.path(), FREE), Err(PlanError::InUse { .. })));
    drop(plan);
    let again = Plan::make(dir.path(), Wish { nodes: Some(3), ..FREE }).unwrap();
    assert!(again.found);
    assert_eq!(again.nodes.iter().map(|n| n.config.grpc.clone()).collect::<Vec<_>>(), grpc);
}

#[test]
fn a_folder_with_another_cluster_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    drop(Plan::make(dir.path(), Wish { nodes: Some(2), ..FREE }).unwrap());
    for wish in [
        Wish { nodes: Some(3), ..FREE },
        Wish { apart: Some((1, 1)), ..FREE },
        Wish { base_port: Some(60_000), ..FREE },
        Wish { syncs_off: true, ..FREE },
    ] {
        let error = Plan::make(dir.path(), wish).unwrap_err();
        assert!(matches!(error, PlanError::Other { .. }), "{error}");
    }
    Plan::make(dir.path(), FREE).unwrap();
}

#[test]
fn clusters_that_start_together_get_ports_of_their_own() {
    let drawn = AtomicU32::new(0);
    // Other programs listen at every second place.
    let is_free = |port: u16| (port / 50).is_multiple_of(2);
    let bases: Vec<u16> = (0..100).map(|_| base_where(3, &drawn, is_free).unwrap()).collect();
    assert_eq!(bases.iter().collect::<BTreeSet<_>>().len(), bases.len(), "{bases:?}");
    assert_eq!(base_where(3, &drawn, |_| false), None);
}

/// Between fork and exec, a child has a copy of every descriptor of this process. That copy must keep neither a port nor the folder.
#[test]
fn copies_of_descriptors_take_neither_a_port_nor_the_folder() {
    let copied = probe("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = copied.local_addr().unwrap();
    drop(probe(address).unwrap());
    let taken = TcpListener::bind(address).unwrap();
    assert!(probe(address).is_err(), "somebody listens");
    drop((copied, taken));

    let dir = tempfile::tempdir().unwrap();
    let lock = FolderLock::take(dir.path()).unwrap();
    let copied = lock.0.try_clone().unwrap();
    assert!(matches!(FolderLock::take(dir.path()), Err(PlanError::InUse { .. })));
    drop(lock);
    FolderLock::take(dir.path()).unwrap();
    drop(copied);
}

#[test]
fn a_log_can_stand_apart() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::make(dir.path(), Wish { apart: Some((3, 1)), ..FREE }).unwrap();
    let roles: Vec<Roles> = plan.nodes.iter().map(|n| n.config.roles).collect();
    let log = Roles { log: true, meta: false, sequencer: false };
    assert_eq!(roles, [log, log, log, Roles { log: false, meta: true, sequencer: true }]);
    drop(plan);
    Plan::make(dir.path(), Wish { apart: Some((3, 1)), ..FREE }).unwrap();
}

#[test]
fn one_node_has_no_peers() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::make(dir.path(), Wish { nodes: Some(1), ..FREE }).unwrap();
    assert!(plan.nodes[0].config.peers.is_empty());
}

#[test]
fn taken_ports_and_bad_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let plan = Plan::make(dir.path(), FREE).unwrap();
    let (grpc, file) = (plan.nodes[1].config.grpc.clone(), plan.nodes[1].config_file());
    drop(plan);
    let taken = TcpListener::bind(&grpc).unwrap();
    let error = Plan::make(dir.path(), FREE).unwrap_err().to_string();
    assert!(error.contains(&grpc) && error.contains("node 2"), "{error}");
    drop(taken);
    std::fs::write(&file, "[node]\nid = \"two\"\n").unwrap();
    let error = Plan::make(dir.path(), FREE).unwrap_err().to_string();
    assert!(error.contains("config.toml:2: `node.id`"), "{error}");

    let other = tempfile::tempdir().unwrap();
    let high = Wish { base_port: Some(65_300), nodes: Some(30), ..FREE };
    assert!(matches!(Plan::make(other.path(), high), Err(PlanError::BasePort { base: 65_300, nodes: 30 })));
}

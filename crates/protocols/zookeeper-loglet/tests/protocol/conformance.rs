//! Runs the conformance suites of Loglets and registers on an ensemble in memory with its faults, on Atoll's own ZooKeeper door, and on a
//! real Apache ZooKeeper where the environment names one.

use atoll_contract::conformance::{loglet, register};
use atoll_zookeeper_loglet::testing::Faults;

use crate::ensembles::{Door, Harness, real};

/// All faults of an ensemble in memory.
const ALL: Faults = Faults { lost_requests: 4, lost_answers: 6, late: 4, lag: true };

#[test]
fn a_loglet_in_memory() {
    loglet::all(&mut Harness::memory(3, Faults::default()), 0..30);
}

#[test]
fn a_loglet_whose_servers_lag_behind() {
    loglet::all(&mut Harness::memory(3, Faults { lag: true, ..Faults::default() }), 0..30);
}

#[test]
fn a_loglet_with_all_faults() {
    loglet::all(&mut Harness::memory(3, ALL), 0..40);
}

#[test]
fn registers_in_memory() {
    register::all(&mut Harness::memory(3, Faults::default()), 0..30);
}

#[test]
fn registers_with_all_faults() {
    register::all(&mut Harness::memory(3, ALL), 0..40);
}

#[test]
fn a_loglet_behind_the_door() {
    loglet::all(&mut Harness::servers(2, &Door::open().address), 0..3);
}

#[test]
fn registers_behind_the_door() {
    register::all(&mut Harness::servers(2, &Door::open().address), 0..3);
}

#[test]
fn a_loglet_in_apache_zookeeper() {
    let Some(servers) = real() else { return };
    loglet::all(&mut Harness::servers(3, &servers), 0..5);
}

#[test]
fn registers_in_apache_zookeeper() {
    let Some(servers) = real() else { return };
    register::all(&mut Harness::servers(3, &servers), 0..5);
}

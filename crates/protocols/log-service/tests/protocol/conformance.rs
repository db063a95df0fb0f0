//! Runs the conformance suite of Loglets, without faults, and with a service that is slow, loses requests and answers, refuses without a
//! reason, shows old states, and leaves some nodes with an old leader.

use atoll_contract::conformance::loglet;

use crate::harness::Harness;

#[test]
fn a_loglet_in_a_log_service_passes_the_suite() {
    loglet::all(&mut Harness::memory(false), 0..20);
}

#[test]
fn a_loglet_passes_the_suite_over_a_service_that_fails() {
    loglet::all(&mut Harness::memory(true), 0..100);
}

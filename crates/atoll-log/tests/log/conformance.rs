//! The conformance suites, run on Loglets and registers in memory, and on virtual logs that are reconfigured meanwhile.

use crate::common::{Adapted, Bare, Cluster};
use atoll_contract::conformance::{loglet, register};

#[test]
fn loglets_in_memory() {
    let mut h = Bare { cluster: Cluster::new(1, 3), keeps_order: true, faults: false };
    loglet::all(&mut h, 0..20);
    h.faults = true;
    for seed in 100..160 {
        loglet::random(&mut h, seed);
    }
}

#[test]
fn loglets_that_reorder() {
    let mut h = Bare { cluster: Cluster::new(2, 3), keeps_order: false, faults: true };
    loglet::all(&mut h, 0..40);
}

#[test]
fn registers_in_memory() {
    let mut h = Bare { cluster: Cluster::new(3, 3), keeps_order: true, faults: false };
    register::all(&mut h, 0..60);
}

#[test]
fn a_virtual_log_is_a_loglet() {
    let mut h = Adapted::new(Cluster::new(4, 3), ["memory", "memory"], false, false);
    loglet::all(&mut h, 0..20);
}

#[test]
fn a_virtual_log_is_a_loglet_while_it_is_reconfigured() {
    let mut h = Adapted::new(Cluster::new(5, 3), ["memory", "shuffled"], true, false);
    for seed in 0..60 {
        loglet::random(&mut h, seed);
    }
}

#[test]
fn a_virtual_log_is_a_loglet_while_all_goes_wrong() {
    let mut h = Adapted::new(Cluster::new(6, 3), ["memory", "shuffled"], true, true);
    for seed in 0..100 {
        loglet::random(&mut h, seed);
    }
}

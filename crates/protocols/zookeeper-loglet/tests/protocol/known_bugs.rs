//! Each known bug of this protocol is caught by the suite that passes without it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use atoll_contract::conformance::{LogletHarness, loglet, register};
use atoll_contract::{AppendError, Batch, ClientId, Entry, OpId};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_zookeeper_loglet::mutants;
use atoll_zookeeper_loglet::testing::Faults;
use bytes::Bytes;

use crate::ensembles::Harness;

/// Returns whether a check fails under a mutant. The mutant is that of this thread only.
fn caught(mutant: Mutant, check: impl FnOnce()) -> bool {
    set_mutant(mutant);
    let outcome = catch_unwind(AssertUnwindSafe(check));
    set_mutant(Mutant::NONE);
    outcome.is_err()
}

fn loglets(faults: Faults) {
    let mut harness = Harness::memory(3, faults);
    (0..40).for_each(|seed| loglet::random(&mut harness, seed));
}

fn registers(faults: Faults) {
    let mut harness = Harness::memory(3, faults);
    (0..40).for_each(|seed| register::random(&mut harness, seed));
}

/// Appends through a handle that has not noticed that another one has sealed the loglet.
fn an_append_meets_a_seal() {
    let mut harness = Harness::memory(2, Faults::default());
    let log = harness.fresh();
    let [writer, sealer] = [NodeId(1), NodeId(2)].map(|node| (node, harness.open(log, node)));
    let batch = |seq| {
        let op = OpId { client: ClientId(1), seq };
        Batch::of([Entry { op, payload: Bytes::from_static(b"x") }])
    };
    let (node, handle) = writer;
    let (first, second) = (handle.append(batch(1)), handle.clone());
    assert!(harness.driver.block_on(node, first).unwrap().is_ok());
    harness.driver.block_on(sealer.0, async move { sealer.1.seal().await }).unwrap();
    let late = harness.driver.block_on(node, async move { second.append(batch(2)).await });
    assert_eq!(late, Ok(Err(AppendError::Sealed)));
}

const LOSSES: Faults = Faults { lost_requests: 0, lost_answers: 10, late: 0, lag: false };

#[test]
fn an_append_without_a_check_of_the_seal() {
    assert!(!caught(Mutant::NONE, an_append_meets_a_seal));
    assert!(caught(mutants::ZOOKEEPER_SEAL_UNCHECKED, an_append_meets_a_seal));
    assert!(caught(mutants::ZOOKEEPER_SEAL_UNCHECKED, || loglets(Faults::default())));
}

#[test]
fn a_lost_connection_taken_for_a_failure() {
    assert!(!caught(Mutant::NONE, || loglets(LOSSES)));
    assert!(caught(mutants::ZOOKEEPER_LOSS_IS_FAILURE, || loglets(LOSSES)));
}

#[test]
fn a_tail_from_a_server_that_lags_behind() {
    let lag = Faults { lag: true, ..Faults::default() };
    assert!(!caught(Mutant::NONE, || loglets(lag)));
    assert!(caught(mutants::ZOOKEEPER_STALE_TAIL, || loglets(lag)));
}

#[test]
fn a_register_that_forgets_its_first_attempt() {
    assert!(!caught(Mutant::NONE, || registers(LOSSES)));
    assert!(caught(atoll_register_store::mutants::REGISTER_FORGETS, || registers(LOSSES)));
}

//! Each known bug of this protocol is caught by a check that passes without it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use atoll_contract::conformance::{LogletHarness, loglet};
use atoll_contract::{AppendError, Batch, ClientId, Entry, Loglet, Offset, OpId, Placement};
use atoll_core::NodeId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_log_service::mutants;

use crate::harness::{Harness, Over};

/// Returns whether a check fails under a mutant. The mutant is that of this thread only.
fn caught(bug: Mutant, check: impl FnOnce()) -> bool {
    set_mutant(bug);
    let outcome = catch_unwind(AssertUnwindSafe(check));
    set_mutant(Mutant::NONE);
    outcome.is_err()
}

/// The suite over a service that fails; it passes without a bug (`conformance.rs`).
fn suite() {
    loglet::all(&mut Harness::memory(true), 0..100);
}

fn append(h: &mut Harness, at: NodeId, l: &Arc<dyn Loglet>, client: u64) -> Result<Placement, AppendError> {
    let writer = l.clone();
    let op = OpId { client: ClientId(client), seq: 1 };
    let batch = Batch::of([Entry { op, payload: "x".into() }]);
    h.driver.block_on(at, async move { writer.append(batch).await.unwrap() })
}

/// Checks the tail, and returns it.
fn tail(h: &mut Harness, at: NodeId, l: &Arc<dyn Loglet>) -> Offset {
    let checker = l.clone();
    h.driver.block_on(at, async move { checker.check_tail().await }).unwrap().at
}

/// Appends through a handle that knows nothing of another one's append.
fn two_append_at_one_tail() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let [a, b] = [1, 2].map(|n| (NodeId(n), h.open(log, NodeId(n))));
    for (node, l) in [&a, &b] {
        assert_eq!(tail(&mut h, *node, l), Offset(0));
    }
    assert_eq!(append(&mut h, a.0, &a.1, 1), Ok(Placement::contiguous(Offset(0), 1)));
    assert_eq!(append(&mut h, b.0, &b.1, 2), Ok(Placement::contiguous(Offset(1), 1)));
    assert_eq!(tail(&mut h, a.0, &a.1), Offset(2));
}

/// Appends while no publish is answered: an append that is in the log must not be said not to be.
fn nobody_hears_an_answer() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let (node, l) = (NodeId(1), h.open(log, NodeId(1)));
    assert_eq!(tail(&mut h, node, &l), Offset(0));
    let Over::Memory(memory) = h.over.clone() else { panic!("the service is in memory") };
    memory.faults.set(0, 1000, 0, 0);
    let outcome = append(&mut h, node, &l, 1);
    h.heal();
    let is_there = tail(&mut h, node, &l) > Offset(0);
    let allowed = match outcome {
        Ok(_) => is_there,
        Err(AppendError::Unknown(_)) => true,
        Err(_) => !is_there,
    };
    assert!(allowed, "{outcome:?}, and it is there: {is_there}");
}

#[test]
fn a_seal_that_the_service_forgets() {
    assert!(caught(mutants::SERVICE_FORGETS_SEALS, suite));
}

#[test]
fn an_append_without_a_condition() {
    assert!(!caught(Mutant::NONE, two_append_at_one_tail));
    assert!(caught(mutants::SERVICE_APPENDS_BLINDLY, two_append_at_one_tail));
}

#[test]
fn silence_that_counts_as_a_refusal() {
    assert!(!caught(Mutant::NONE, nobody_hears_an_answer));
    assert!(caught(mutants::SERVICE_SILENCE_IS_NO, nobody_hears_an_answer));
}

#[test]
fn a_tail_that_nothing_proves() {
    assert!(caught(mutants::SERVICE_STALE_TAIL, suite));
}

#[test]
fn an_appender_that_ignores_what_others_append() {
    assert!(caught(mutants::SERVICE_IGNORES_OTHERS, suite));
}

#[test]
fn a_purge_of_the_newest_message() {
    assert!(caught(mutants::SERVICE_PURGES_ALL, suite));
}

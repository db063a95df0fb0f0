//! Each known bug of this protocol is caught by the suite that passes without it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use atoll_contract::conformance::register;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_etcd_register::mutants;
use atoll_etcd_register::testing::Faults;

use crate::harness::Harness;

/// Returns whether the suite fails under a mutant. The mutant is that of this thread only.
fn caught(mutant: Mutant, faults: Faults) -> bool {
    set_mutant(mutant);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut harness = Harness::memory(faults);
        (0..40).for_each(|seed| register::random(&mut harness, seed));
    }));
    set_mutant(Mutant::NONE);
    outcome.is_err()
}

#[test]
fn a_register_that_is_created_unchecked() {
    assert!(!caught(Mutant::NONE, Faults::default()));
    assert!(caught(mutants::ETCD_CREATES_UNCHECKED, Faults::default()));
}

#[test]
fn a_read_from_a_server_that_lags_behind() {
    assert!(caught(mutants::ETCD_STALE_READ, Faults::default()));
}

#[test]
fn a_register_that_forgets_its_first_attempt() {
    let losses = Faults { lost_answers: 10, ..Faults::default() };
    assert!(!caught(Mutant::NONE, losses));
    assert!(caught(atoll_register_store::mutants::REGISTER_FORGETS, losses));
}

//! Runs the conformance suite of Loglets on striped Loglets over native and over local ones.

use atoll_contract::conformance::loglet;
use atoll_striped::Mode;

use crate::cluster::{Harness, Of};

#[test]
fn rotating_sequencers_over_native() {
    loglet::all(&mut Harness::new(3, Of::Native { servers: 3 }, Mode::Rotating, 2), 0..40);
}

#[test]
fn three_stripes_over_five_servers() {
    loglet::all(&mut Harness::new(5, Of::Native { servers: 5 }, Mode::Rotating, 3), 0..15);
}

#[test]
fn sharded_acceptors_over_native() {
    loglet::all(&mut Harness::new(6, Of::Native { servers: 3 }, Mode::Sharded, 2), 0..20);
}

#[test]
fn sharded_over_local() {
    loglet::all(&mut Harness::new(3, Of::Local, Mode::Sharded, 3), 0..40);
}

#[test]
fn one_stripe_is_the_loglet_itself() {
    loglet::all(&mut Harness::new(2, Of::Local, Mode::Sharded, 1), 0..10);
}

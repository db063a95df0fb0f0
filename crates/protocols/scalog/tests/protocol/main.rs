//! Tests of this crate from outside. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod client;
mod cluster;
mod conformance;
mod ledger;
mod model;
mod ordering_log;
mod slow_log;
mod traces;

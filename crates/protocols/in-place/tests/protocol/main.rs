//! Tests of this crate from outside. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod common;
mod conformance;
mod crowd;
mod model;
mod moves;
mod properties;
mod provider;
mod traces;
mod transactions;
mod watch;

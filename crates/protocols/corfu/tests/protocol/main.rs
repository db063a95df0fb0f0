//! Tests of this crate from outside. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod back_fill;
mod bad_input;
mod cluster;
mod conformance;
mod dead_units;
mod log;
mod model;
mod plan;
mod positions;
mod shelf;
mod traces;

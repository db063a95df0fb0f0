//! Tests of this crate from outside. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod altered;
mod conformance;
mod elsewhere;
mod faults;
mod real;

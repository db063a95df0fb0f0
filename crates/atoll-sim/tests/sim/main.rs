//! Tests of the simulator's parts. They are no unit tests, because a second build of this crate takes much longer than they do. One test
//! program: each further one would link the whole product again.
#![allow(clippy::unwrap_used)]

mod clock;
mod coverage;
mod envelope;
mod log_oracle;
mod mutants;
mod races;
mod register_oracle;
mod runner;
mod seeds;
mod status;
mod world;

//! Tests of the simulator's parts. They are no unit tests, because a second build of this crate takes much longer than they do.
#![allow(clippy::unwrap_used)]

mod clock;
mod coverage;
mod envelope;
mod log_oracle;
mod register_oracle;
mod runner;
mod seeds;

//! Tables, without a cluster. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod common;
mod properties;
mod tables;
mod upkeep;

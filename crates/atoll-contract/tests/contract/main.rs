//! The contracts themselves: what every implementation shares. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod catalog;
mod keyspace;

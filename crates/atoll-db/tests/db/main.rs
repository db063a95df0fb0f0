//! Replicas and stores. One test program: each further one would build much of the same code again.
#![allow(clippy::unwrap_used)]

mod cluster;
mod common;
mod long;
mod solo;
mod started;
mod stores;
mod surgery;

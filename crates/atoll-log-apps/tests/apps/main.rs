//! The applications over a log in memory, whose clients run in chosen orders and die between any two steps; and over CORFU.
#![allow(clippy::unwrap_used)]

mod codecs;
mod compaction;
mod corfu;
mod market;
mod mirror;
mod model;
mod sharded_store;
mod smr;
mod store;
mod streams;
mod transactions;

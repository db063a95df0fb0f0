//! The door, by what clients of ZooKeeper see of it. One test program: each further one would build much of the server again.
#![allow(clippy::unwrap_used)]

mod admin;
mod bounds;
mod client;
mod cluster;
mod cold;
mod cut_off;
mod door;
mod monitor;
mod order;
mod refusals;
mod served;
mod silence;
mod tls;

//! The door, by what clients of ZooKeeper see of it.

mod admin;
mod bounds;
mod client;
mod cluster;
mod cold;
mod cut_off;
mod long;
mod monitor;
mod order;
mod refusals;
mod requests;
mod served;
mod silence;
mod tls;

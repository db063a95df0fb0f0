//! The network between nodes, over real sockets. One test program: each further one would build much of the crate again.
#![allow(clippy::unwrap_used)]

mod cluster;
mod codec;
mod common;
mod hostile;
mod throughput;
mod tls;

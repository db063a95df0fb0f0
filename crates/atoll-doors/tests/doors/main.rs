//! The doors, by what clients of gRPC see of them. One test program: each further one would build much of the server again.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

mod authorisation;
mod clients;
mod edges;
mod lanes;
mod limits;
mod log_apps;
mod memory;
mod subscribers;

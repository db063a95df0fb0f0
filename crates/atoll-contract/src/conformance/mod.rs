//! The suites that every implementation of a Loglet (vlog-L1–vlog-L9), a register, a keyspace or an application must pass, and a driver
//! that runs nodes on virtual time. Only available with the feature `testing`.
//!
//! An implementation provides a small harness: nodes in a [`Driver`], and handles on each node.

pub mod application;
pub mod cluster;
mod driver;
mod history;
pub mod keyspace;
mod leases;
pub mod loglet;
mod random;
pub mod register;
mod transactions;

pub use driver::{DEFAULT_LATENCY, Driver};
pub use keyspace::KeyspaceHarness;
pub use loglet::LogletHarness;
pub use register::RegisterHarness;

//! What every Loglet and every register must pass (vlog-L1–vlog-L9), whoever wrote it, and a driver that runs nodes on
//! virtual time. For tests: behind the feature `testing`.
//!
//! An implementation shows itself through a small harness: nodes in a [`Driver`], and handles on each of them.

pub mod cluster;
mod driver;
mod history;
pub mod loglet;
mod random;
pub mod register;

pub use driver::{DEFAULT_LATENCY, Driver};
pub use loglet::LogletHarness;
pub use register::RegisterHarness;

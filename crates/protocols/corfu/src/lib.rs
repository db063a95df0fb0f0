//! CORFU (TOCS 31(4), "CORFU: A Distributed Shared Log"): a shared log that clients drive over write-once storage units.
//!
//! | paper | here |
//! | --- | --- |
//! | storage unit (§2.1, Figure 2): a sparse write-once address space, seal by epoch, junk, delete, trim | `unit/` |
//! | projection (§2.2) | `projection.rs` |
//!
//! # Not offered yet
//!
//! Sequencer, clients, reconfiguration, the Loglet.

pub mod intervals;
mod invariants;
pub mod message;
pub mod mutants;
pub mod projection;
pub mod roles;
pub mod unit;

pub use projection::{Chain, Projection, ProjectionError, Stretch, UnitId};
pub use unit::{Unit, UnitOptions};

//! CORFU (TOCS 31(4), "CORFU: A Distributed Shared Log"): a shared log that clients drive over write-once storage units.
//!
//! | paper | here |
//! | --- | --- |
//! | storage unit (§2.1, Figure 2): a sparse write-once address space, seal by epoch, junk, delete, trim | `unit/` |
//! | sequencer (§2.4): positions one by one and in batches; soft state | `sequencer.rs` |
//! | projection (§2.2) | `projection.rs` |
//!
//! # Not offered yet
//!
//! Clients, reconfiguration, the Loglet.

pub mod client;
pub mod intervals;
mod invariants;
pub mod message;
pub mod mutants;
pub mod projection;
pub mod roles;
mod sequencer;
pub mod unit;

pub use client::ClientOptions;
pub use projection::{Chain, Projection, ProjectionError, Stretch, UnitId};
pub use sequencer::{Sequencer, SequencerOptions};
pub use unit::{Unit, UnitOptions};

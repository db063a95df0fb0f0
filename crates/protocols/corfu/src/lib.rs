//! CORFU (TOCS 31(4), "CORFU: A Distributed Shared Log"): a shared log that clients drive over write-once storage units.
//!
//! | paper | here |
//! | --- | --- |
//! | storage unit (§2.1, Figure 2): a sparse write-once address space, seal by epoch, junk, delete, trim | `unit/` |
//! | sequencer (§2.4): positions one by one and in batches; soft state | `sequencer.rs` |
//! | projection (§2.2) | `projection.rs` |
//! | append by chain replication with f + 1 units (§2.3) | `client/write.rs`, `loglet/append.rs` |
//! | fill (§2.3) and the policy for holes | `client/fill.rs`, `loglet/check_tail.rs` |
//! | read: any replica of what is known to be complete, else the tail of the chain | `loglet/read.rs` |
//! | check: the tail | `client/tail.rs`, `loglet/check_tail.rs` |
//! | trim | `loglet/trim.rs` |
//! | the paper's interface (Figure 1) to the positions of a log of any segments | `loglet/positions.rs` |
//! | reconfiguration (§2.2, Figure 3): of a Loglet, by the virtual log | `loglet/seal.rs` |
//! | reconfiguration inside CORFU: units and sequencers replaced, ranges extended and merged, rebuild | `log/reconfigure.rs`, `log/changes.rs` |
//! | the paper's interface (Figure 1) to a log of its own, appends without a sequencer (§2.4) | `log/append.rs`, `log/read.rs` |
//! | (placement) | `plan.rs` |
//! | (when another Loglet must follow) | `reasons.rs` |
//! | (copies for reconfigModify) | `rebuild.rs`, `loglet/back_fill.rs` |
//!
//! # Departures from the paper and the notes, and why
//!
//! - *One write covers the consecutive positions of a batch.* A unit takes all of its addresses or none, with one record in its journal, so
//!   a batch costs one message for each unit of the chain, not one for each entry.
//! - *Positions have no fixed size.* A record is as long as its content.
//! - *The sequencer of a Loglet remembers which entry got which position*, because a client's retry may come through another node.
//! - *The holes of a sealed Loglet are part of what is installed*, see `loglet/seal.rs`. The notes resolve them later, at the first of the
//!   installed units; then a reader would depend on that unit.
//! - *Any unit may serve a position of a sealed Loglet that is no hole*, also one that was not sealed in time (`loglet/read.rs`). The notes
//!   allow only the installed units. But a position that is no hole has one content, wherever it is, and units that were away fetch what
//!   they lack (X7). With the installed units alone, the loss of one of them could make entries unreadable of which there is another copy.
//! - *A read of an open Loglet does not look at its projection again* (corfu-C9). The virtual log asks only for positions below a tail, and
//!   those are complete.
//! - *keeps_order is false*: an append whose position was filled takes a later one, so a later append may overtake it.
//!
//! - *Junk is not deleted alone.* It takes no space. So an address that was deleted alone held data, and a writer that finds its address so
//!   knows that its entry was there, and does not append it again.
//! - *A deletion of one address does not raise the watermark* (corfu-C15), although it may close the gap to it. Readers of a Loglet stop at
//!   a trim of all lower positions, and pass single deletions.
//!
//! # Not offered yet
//!
//! - Merging by moving data (§2.6): ranges merge only if each position keeps its place.
//! - Doors for a log of its own (`log/`): they serve the positions of a virtual log, whose next segment has the other units. The paper's
//!   applications (§4) are in `atoll-log-apps`; no node offers them.

pub mod client;
pub mod intervals;
mod invariants;
pub mod log;
pub mod loglet;
pub mod message;
pub mod mutants;
mod plan;
mod plugin;
pub mod projection;
mod provider;
mod reasons;
mod rebuild;
pub mod roles;
mod sequencer;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unit;

pub use client::ClientOptions;
pub use log::CorfuLog;
pub use loglet::CorfuLoglet;
pub use plugin::CorfuPlugin;
pub use projection::{Chain, Projection, ProjectionError, Stretch, UnitId};
pub use provider::{CorfuProvider, KIND, SEQUENCER_ROLE, UNIT_ROLE};
pub use sequencer::{Sequencer, SequencerOptions};
pub use unit::{Unit, UnitOptions};

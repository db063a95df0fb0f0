//! LocalLoglet: a log in the journal of one node. It is as durable as that node's disk, and as available as that node.
//!
//! It is a NativeLoglet of one server that needs no sequencer: the store assigns the offsets itself, because its journal
//! remembers them across a restart. So it has no lives, no quorums and no repair, and its seal is one durable bit.
//!
//! | paper (Delos Figure 2) | here |
//! | --- | --- |
//! | append, acknowledged after the sync; a retry gets its original offsets, also after a restart | `appends.rs` |
//! | checkTail → (tail, sealed) | `Info` |
//! | readNext | `Read` |
//! | prefixTrim | `Trim` |
//! | (reasons to reconfigure) | `reasons.rs` |
//! | seal | `Seal`: no more appends are accepted; the earlier ones and the bit become durable (native-T4) |
//! | invariants | `invariants.rs`; from outside of the node: `testing/oracle.rs` |
//!
//! Departures: none. The store answers messages like a LogServer, so the log can be used from any node.

pub mod config;
pub mod message;
pub mod mutants;

mod appends;
mod invariants;
mod local_store;
mod loglet;
mod plugin;
mod provider;
mod reasons;
pub mod roles;
#[cfg(feature = "testing")]
mod testing;

pub use config::LocalConfig;
pub use local_store::{LocalStore, LocalStoreOptions};
pub use loglet::{LocalLoglet, LocalOptions};
pub use plugin::LocalPlugin;
pub use provider::LocalProvider;

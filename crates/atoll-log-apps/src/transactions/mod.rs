//! Optimistic transactions in the manner of Hyder (CIDR'11; TOCS'13 §3).
//!
//! A transaction runs at one replica on a snapshot, and appends an intention: what it has read and what it writes. Every replica decides at
//! the intention's position, and all decide alike: it commits if nothing that it has read was written since its snapshot. So committed
//! transactions are serializable in the order of their intentions.

mod client;
mod record;
mod state;

pub use client::{Database, Transaction, TxnError, TxnReplica};
pub use record::{MAX_INTENT_BYTES, MAX_KEY_BYTES, Read, TxnRecord};
pub use state::{Decision, NoProcedures, Procedures, Snapshot, TxnLimits, TxnState, Writes};

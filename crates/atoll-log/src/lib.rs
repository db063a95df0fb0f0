//! Logs and what they are made of: the [`Loglet`] and [`Register`] abstractions, and the virtual log that composes them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `entry.rs`, `position.rs` | entries, batches, places |
//! | `loglet.rs`, `register.rs` | the two abstractions |
//! | `chain.rs` | which Loglet holds which part of a log |
//! | `origin.rs` | what the id of a Loglet says of the change that made it |
//! | `virtual_log/` | the log over a chain, and its reconfiguration |
//! | `budget.rs` | what all logs of a node may have under way together |
//! | `adapter.rs` | a virtual log as a Loglet |
//! | `conformance/` | what every Loglet and every register must pass, and the driver that runs it |
//! | `memory.rs` | Loglets and registers in memory, with faults, for tests |

pub mod adapter;
mod budget;
pub mod chain;
#[cfg(feature = "testing")]
pub mod conformance;
pub mod entry;
pub mod loglet;
#[cfg(feature = "testing")]
pub mod memory;
pub mod origin;
pub mod page;
pub mod position;
pub mod register;
mod rounds;
pub mod virtual_log;

pub use adapter::VirtualLoglet;
pub use budget::Budget;
pub use chain::{Chain, ChainError, Segment, VersionedChain};
pub use entry::{Batch, BatchBuilder, ClientId, Entry, OpId};
pub use loglet::{
    AppendError, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Members, Placement, PlanError,
    ReadBatch, ReadError, ReadFrom, Registry, SealedConfig, Tail, Why,
};
pub use position::{LogPos, Offset};
pub use register::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
pub use virtual_log::{
    Busy, LogAppendError, LogError, LogRead, LogReadError, LogRecord, Options, ReconfigError, Trouble,
    VirtualLog, Watch,
};

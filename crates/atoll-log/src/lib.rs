//! The virtual log: a chain of Loglets, and the register that holds the chain.
//!
//! | file | what it is |
//! | --- | --- |
//! | `virtual_log/` | the log over a chain, and its reconfiguration |
//! | `chain.rs`, `page.rs` | which Loglet holds which part of a log; index pages for old segments |
//! | `surgery.rs` | what operators did to single entries, as the chain keeps it |
//! | `rescue.rs` | the chain of a log that was rescued from what some nodes have left |
//! | `origin.rs` | the change that made a Loglet, as encoded in its id |
//! | `adapter.rs` | a virtual log as a Loglet |
//! | `rounds.rs` | an operation that many callers share; a race of two futures |
//! | `memory/` | Loglets and registers in memory, with faults, for tests |
//! | `mutants.rs` | known bugs and coverage marks, for tests |

pub mod adapter;
pub mod chain;
#[cfg(feature = "testing")]
pub mod memory;
pub mod mutants;
pub mod origin;
pub mod page;
pub mod rescue;
mod rounds;
pub mod surgery;
pub mod virtual_log;

pub use adapter::VirtualLoglet;
pub use chain::{Chain, ChainError, Segment, VersionedChain};
pub use virtual_log::{
    Busy, Held, Incision, LogAppendError, LogError, LogRead, LogReadError, LogRecord, Options, Patched,
    ReconfigError, Room, SurgeryError, TrimError, Trouble, TroubleObserver, VirtualLog,
};

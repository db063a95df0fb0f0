//! Logs and what they are made of: the [`Loglet`] and [`Register`] abstractions, and the virtual log that composes them.

pub mod entry;
pub mod loglet;
pub mod position;
pub mod register;

pub use entry::{Batch, BatchBuilder, ClientId, Entry, OpId};
pub use loglet::{
    AppendError, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Members, Placement, PlanError,
    ReadBatch, ReadError, ReadFrom, Registry, SealedConfig, Tail, Why,
};
pub use position::{LogPos, Offset};
pub use register::{Nonce, Register, RegisterError, Registers, Version, Versioned, Written};

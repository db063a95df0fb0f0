//! The contracts between the layers of Atoll: what a log, a register, a keyspace and an application promise, and the values that they
//! exchange. This crate depends on no protocol and on no implementation of a log or of an engine.
//!
//! | file | what it is |
//! | --- | --- |
//! | `position.rs` | positions in a virtual log and offsets in a Loglet |
//! | `entry.rs` | entries and batches, with their encoding |
//! | `loglet/` | the [`Loglet`] trait, its errors, and the provider that creates Loglets of one kind |
//! | `plugin.rs` | the interface through which a protocol joins a node |
//! | `cluster/` | the members of the cluster, as the procedures of a protocol see them, and what one node knows about them |
//! | `place.rs` | places for registers outside of the cluster |
//! | `register.rs` | the [`Register`] trait: a versioned value with a conditional write |
//! | `keyspace/` | the [`Keyspace`] trait: keys that do not wait for each other; its errors, layouts, providers and names |
//! | `application/` | the [`Application`] trait: a replicated state machine, its view of the state, and what its engine provides |
//! | `conformance/` | the suites that every Loglet, register, keyspace and application must pass, and the driver that runs them |
//! | `testing.rs` | the oracle with which a protocol checks its invariants from outside of the nodes |
//! | `mutants.rs` | known bugs for tests |

pub mod application;
pub mod cluster;
#[cfg(feature = "testing")]
pub mod conformance;
pub mod entry;
pub mod keyspace;
pub mod loglet;
pub mod mutants;
pub mod place;
pub mod plugin;
pub mod position;
pub mod register;
#[cfg(feature = "testing")]
pub mod testing;

pub use application::Application;
pub use cluster::{Cluster, Picture, Roster, RosterRow};
pub use entry::{Batch, BatchBuilder, ClientId, Entry, OpId};
pub use keyspace::{Keyspace, KeyspaceError, KeyspaceProvider};
pub use loglet::{
    AppendError, Binding, Duties, Duty, Evidence, Extent, Kinds, Loglet, LogletError, LogletId,
    LogletProvider, LogletSpec, Part, PartLoglet, Placement, PlanError, Progress, ReadBatch, ReadError,
    ReadFrom, Reason, Registry, Remains, RoleOfKind, SealedConfig, ShardAppendError, Sharded, ShardedError,
    Tail, Trouble, Unavailability, Urgency, WriteOnce, WriteOnceError,
};
pub use position::{LogPos, Offset};
pub use register::{
    ClusterRegisters, Holders, Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written,
};

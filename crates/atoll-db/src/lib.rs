//! The database on the log: replicates deterministic applications over a virtual log (Delos, "Virtual Consensus in Delos", §4).
//!
//! An [`Application`] is a state machine over an ordered store. An [`Engine`] proposes its commands: they are batched into log
//! entries, appended, and applied on every node in the order of the log. Reads are served from immutable [`View`]s; after
//! [`Engine::barrier`] they are linearizable.
//!
//! What an application and its readers use is in [`atoll_contract::application`], so an application needs nothing of this crate.
//!
//! | file | what it is |
//! | --- | --- |
//! | `backup/` | what a backup needs of a replica; makes a state again from a backup |
//! | `engine/` | proposals, barriers, events, and their waiters |
//! | `hosted.rs` | the applications that share one log |
//! | `entry.rs` | the encoding of a log entry |
//! | `replica/` | applies whole entries in order, exactly once; poison, commits |
//! | `layers.rs` | the applied changes on top of the committed state |
//! | `store/` | the local store |
//! | `transfer/` | state snapshots between replicas, comparison of their hashes, and the trim of the log (`upkeep.rs`) |
//! | `mutants.rs` | known bugs, for tests |

pub mod backup;
pub mod engine;
mod entry;
mod hosted;
mod layers;
pub mod mutants;
mod part;
mod replica;
pub mod roles;
pub mod store;
pub mod transfer;

pub use atoll_contract::LogPos;
pub use atoll_contract::application::{
    AppId, Application, ApplyAt, Direction, InMemory, KeyRange, Observer, Persistence, Proposer, Rejected,
    Savepoint, Scan, StoreError, Tx, View,
};

pub use engine::{
    Applied, BarrierError, Busy, Checked, Clock, ClockAhead, Cluster, Database, Divergence, Engine, Finding,
    Health, HearClocks, NotFenced, OpenError, OperateError, Options, OutOfService, PeerClocks, ProposeError,
    Proposed, ReadReplicas, Refilling, ReplicaParts, Room, Solo, SoloClock, Stopped, Threads,
};
pub use entry::MAX_COMMAND_BYTES;
pub use hosted::{Applications, Slot};
pub use part::MAX_LONG_COMMAND_BYTES;
pub use replica::{Halt, HashAt, Standing};
pub use store::{Bound, Change, FjallStore, MemoryStore, Owner, OwnerError, Store, StoreSnapshot};
pub use transfer::{ReplicaRole, Rot, RotKind, Shelf};

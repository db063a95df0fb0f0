//! The foundation of every protocol of Atoll: identities, messages, roles, procedures, and the node core that runs them, in
//! production and in the simulator alike.
//!
//! | file | what it is |
//! | --- | --- |
//! | `cell.rs` | small values that a role stores in place |
//! | `ids.rs` | nodes, lives, data directories, ticks, record numbers |
//! | `codec.rs`, `frame.rs` | encoding and messages; `record!`, `choice!`, `message!`, `rpc!` declare them |
//! | `format.rs` | the formats of messages and stored values, as lists that tools walk |
//! | `role.rs` | a server role and its effects |
//! | `role_table.rs` | the roles of a node and their deadlines |
//! | `env.rs` | the interface between a procedure and the world: time, randomness, calls |
//! | `level.rs` | feature levels: what all members can read, and so what a node may write |
//! | `member.rs` | the identity of a node; the members as a node sees them |
//! | `node_core.rs` | a node without I/O: feeds roles, polls procedures, holds answers until they are durable |
//! | `notify.rs` | wakes everyone who waits for a change |
//! | `pool.rs` | named values, with a limit on the idle ones |
//! | `races.rs` | race points, at which tests delay what follows |
//! | `testing.rs` | mutants, coverage marks, `invariant!` |
//! | `traces/` | traces of roles as data, for tests |
//! | `witness.rs` | how far the journals of other nodes have come |
//! | `ready.rs` | procedures that are ready to be polled, and the wake-up of the host |
//! | `ticket.rs` | a value that another party completes |
//! | `mutants.rs` | known bugs, for tests |
//!
//! Windows, the callers that wait for room in them, and the primitives for threads come from `atoll-pipeline`, which the client uses too.

pub mod cell;
pub mod codec;
pub mod env;
pub mod format;
pub mod frame;
pub mod ids;
pub mod level;
pub mod member;
pub mod mutants;
pub mod node_core;
pub mod notify;
pub mod pool;
pub mod races;
mod ready;
pub mod role;
mod role_table;
pub mod testing;
pub mod ticket;
#[cfg(feature = "testing")]
pub mod traces;
pub mod witness;

pub use atoll_pipeline::{Bounds, Budget, Cut, Gate, Load, Pipeline, Place, WaitList, sync, wait_list};
pub use cell::{Cell, CellWrite, MAX_CELL_KEY_BYTES, MAX_CELL_VALUE_BYTES};
pub use codec::{Decode, DecodeError, Encode, Reader};
pub use env::{Call, CallError, Elapsed, Env, Link, Refused, Replies, Sleep, Task, Unsent};
pub use format::{Format, Mismatch};
pub use frame::{Class, Envelope, Exchange, ForRole, Frame, Message, Outgoing, Rpc};
pub use ids::{Incarnation, Lsn, NodeId, RoleKind, StorageId, Tick, roles};
pub use level::{Level, LevelError, LevelRange, Levels};
pub use member::{Candidate, Directory, Identify, Identity};
pub use node_core::{Checkpoint, Fetch, JournalBatch, NodeCore, Outputs, RecoverError};
pub use notify::{Notified, Notify};
pub use pool::Pool;
pub use role::{Caller, Effects, FetchError, Loc, Measure, Record, RecordKind, Role, Space, Stored};
pub use ticket::{Abandoned, BoxFuture, Completer, Ticket, ticket};
pub use witness::{PutBack, Witness};

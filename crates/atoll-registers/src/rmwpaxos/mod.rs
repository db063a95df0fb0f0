//! RMWPaxos: registers in place.

mod acceptor;
mod ballot;
mod group;
mod hand_over;
mod invariants;
mod list;
mod membership;
pub mod message;
mod proposer;
mod read;
mod registers;
mod round;
mod state;
mod write;

pub use acceptor::{Acceptor, DEFAULT_CAPACITY_BYTES, MAX_NAME_BYTES};
pub use ballot::{Ballot, ProposerId};
pub use group::{GroupConfig, InvalidGroup, KnownGroup, MAX_MEMBERS, Member};
pub use hand_over::HandOverError;
pub use registers::{MAX_OPEN_REGISTERS, Options, RmwRegisters};
pub use state::{REMEMBERED_WRITES, State};

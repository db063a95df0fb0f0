//! The interface of a replicated application: a deterministic state machine over an ordered store (Delos §4; Figure 6 shows the
//! application above the engine).
//!
//! | file | what it is |
//! | --- | --- |
//! | `tx.rs` | the state as a command reads and writes it |
//! | `view.rs` | the state as readers see it |
//! | `state.rs` | what an engine provides behind both of them |
//! | `key_range.rs` | ranges of keys |
//! | `map.rs` | a state in memory, for tests of applications |

mod key_range;
#[cfg(any(test, feature = "testing"))]
mod map;
mod state;
mod tx;
mod view;

use std::fmt;

use atoll_core::{Incarnation, Level, NodeId};
use bytes::Bytes;

pub use self::key_range::{Direction, KeyRange};
#[cfg(any(test, feature = "testing"))]
pub use self::map::MapState;
pub use self::state::{InMemory, Mark, Page, Persistence, ShowState, StoreError, WriteState};
pub use self::tx::{Savepoint, Tx};
pub use self::view::{Scan, View, full_key};
use crate::position::LogPos;

/// Identifies an application among those that share a log. It is the first byte of the application's keys in the store and of its
/// commands in the log. The engine itself uses 0. It must not change once commands have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u8);

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "application {}", self.0)
    }
}

/// One life of a node, as the proposer of a command. It is unrelated to the proposers of Paxos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proposer {
    /// The node.
    pub node: NodeId,
    /// The life of the node.
    pub incarnation: Incarnation,
}

/// Where and when a command is applied: the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyAt {
    /// The log entry that holds the command.
    pub position: LogPos,
    /// The index of the command in the entry, from 0.
    pub index: u32,
    /// The proposer of the command.
    pub proposer: Proposer,
    /// The time of the entry, in milliseconds since the Unix epoch: the proposer's wall clock, or the time of an earlier entry if
    /// that was later. It never goes back along the log. It is the only time that a command may use.
    pub time_ms: u64,
    /// The version of the command's format and rules; see [`Application::version_at`].
    pub version: u8,
}

/// A command was rejected: it changes nothing, on any replica. The bytes are returned to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected(pub Bytes);

/// A replicated service. Every replica calls [`Application::apply`] with the same commands in the same order.
///
/// All state is kept in the store that [`Tx`] writes to. Fields of the implementing type may only cache it. `apply` uses no clock,
/// no randomness, and nothing else that may differ between two nodes. If it panics, every replica halts before the entry with that
/// command ("poison"). The halt names the command; local reads continue, and nothing later is applied.
pub trait Application: Send + 'static {
    /// An event that a command sends to the doors, on every replica: for example, a watch fires or a session is closed.
    type Event: Send + 'static;
    /// See [`AppId`]. From 1 to 254.
    const ID: AppId;
    /// The name of the application in error messages and in the status.
    const NAME: &'static str;

    /// Returns the version of the commands' format and rules at a feature level of the cluster. Versions start at 1 and rise with
    /// the level. A proposer uses the version of the active level and sends it with every command. `apply` decides by
    /// [`ApplyAt::version`] and never by a level, because nodes learn of a level at different times. A replica whose program is too
    /// old for the version halts before the entry and reports why.
    fn version_at(_level: Level) -> u8 {
        1
    }

    /// Applies one command. The reply is returned to the proposing caller. On [`Rejected`], the engine rolls back the writes to
    /// `tx` and drops the events.
    ///
    /// # Errors
    /// The state does not allow the command; the bytes of [`Rejected`] say why.
    fn apply(
        &mut self,
        at: &ApplyAt,
        command: &[u8],
        tx: &mut Tx<'_, Self::Event>,
    ) -> Result<Bytes, Rejected>;

    /// Recomputes the caches. Called when the state was opened or was replaced as a whole by a state snapshot, before any command is
    /// applied and before the view is published.
    ///
    /// # Errors
    /// The store cannot be read. The open or the refill fails with this error.
    fn opened(&mut self, view: &View) -> Result<(), StoreError>;

    /// Drops the caches that mirror writes, or marks them to be recomputed. Called after a command of this application, or of another
    /// one in the same entry, was rolled back: it was rejected, it panicked, or the store failed. `apply` may have changed caches
    /// by then. The default implementation assumes that there are no such caches.
    fn undone(&mut self) {}
}

/// Receives the events of applied commands, on the applying thread. Implementations must not block: they should queue the events.
pub trait Observer<E>: Send + Sync {
    /// Receives the events of commands in entries below `below`, in order. Called before the view that shows their effects is
    /// published (contracts X19), and before their callers are answered.
    fn on_events(&self, below: LogPos, events: Vec<E>);

    /// Called when a state snapshot at `below` has replaced the state as a whole. The events in between are missing, so anything
    /// that depends on them (such as watches) must be reevaluated against the new view. That view is published after this returns.
    fn on_restored(&self, _below: LogPos, _view: &View) {}
}

//! The replicated part: a deterministic state machine over an ordered store (Delos §4, Figure 6: the application above the engine).

use std::fmt;

use atoll_contract::LogPos;
use atoll_core::{Incarnation, Level, NodeId};
use bytes::Bytes;

use crate::store::StoreError;
use crate::tx::Tx;
use crate::view::View;

/// Number of an application among those that share a log: the first byte of its keys in the store and of its commands in the
/// log. 0 is the engine's own. It never changes once commands were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppId(pub u8);

impl fmt::Display for AppId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "application {}", self.0)
    }
}

/// One life of one node's process, as the proposer of a command to the log. Not a proposer of Paxos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Proposer {
    /// Which node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
}

/// Where and when a command is applied: the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplyAt {
    /// The log entry that holds the command.
    pub position: LogPos,
    /// Which command of the entry, from 0.
    pub index: u32,
    /// Who proposed it.
    pub proposer: Proposer,
    /// Milliseconds since the Unix epoch: the proposer's wall clock, or the time of an earlier entry if that was later. It
    /// never goes back along the log. The only time that a command may use.
    pub time_ms: u64,
    /// Version of the command's format and rules, see [`Application::version_at`].
    pub version: u8,
}

/// The command fails identically on every replica and changes nothing; the bytes go to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected(pub Bytes);

/// A replicated service. Every replica calls [`Application::apply`] with the same commands in the same order.
///
/// All state lives in the store that [`Tx`] writes to; fields of the implementor may only cache it. `apply` uses no clock, no
/// randomness, and nothing else that may differ between two nodes. If it panics, every replica stops at that command ("poison"):
/// the halt names the command, local reads continue, and nothing later is applied.
pub trait Application: Send + 'static {
    /// What a command tells the doors of the node, on every replica: watches to fire, sessions to close.
    type Event: Send + 'static;
    /// See [`AppId`]; 1 to 254.
    const ID: AppId;
    /// Its name in errors, status and snapshots.
    const NAME: &'static str;

    /// The version of the format and rules of its commands at a feature level of the cluster. Versions start at 1 and rise with the
    /// level. A proposer uses the version of the active level and sends it with every command. `apply` decides by
    /// [`ApplyAt::version`] and never by a level, because nodes learn of a level at different times. A program that is too old for
    /// a version stops before the command and reports it.
    fn version_at(_level: Level) -> u8 {
        1
    }

    /// Applies one command. The answer goes to the proposing caller. On [`Rejected`] the engine undoes what was written to `tx`, and
    /// drops the events.
    ///
    /// # Errors
    /// The command does not fit the state; its reply says why.
    fn apply(
        &mut self,
        at: &ApplyAt,
        command: &[u8],
        tx: &mut Tx<'_, Self::Event>,
    ) -> Result<Bytes, Rejected>;

    /// The state was opened, or a snapshot replaced it as a whole: rebuild the caches. Called before any command is applied and
    /// before the view is published.
    ///
    /// # Errors
    /// The store cannot be read; the replica stops.
    fn opened(&mut self, view: &View) -> Result<(), StoreError>;

    /// A command of this application, or of another one in the same entry, was rolled back although `apply` may have touched
    /// caches: the command was rejected or panicked, or the store failed under it. Drop caches that mirror writes, or rebuild them
    /// lazily. The default implementation assumes that there are no such caches.
    fn undone(&mut self) {}
}

/// Receives the events of applied commands, on the thread that applies. Implementations must not block: hand the events to queues.
pub trait Observer<E>: Send + Sync {
    /// Events of commands in entries below `below`, in order. Called before a view that shows their effects is
    /// published (contracts X19), and before their callers are answered.
    fn on_events(&self, below: LogPos, events: Vec<E>);

    /// A snapshot at `below` replaced the state as a whole: the events in between are missing. Promises based on events (watches)
    /// must be reevaluated against the new view, which is published when this returns.
    fn on_restored(&self, _below: LogPos, _view: &View) {}
}

//! The engine: proposes commands, applies the log, answers callers (Delos §4.1: propose, sync, apply).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | [`Engine`], the interface for doors |
//! | `core.rs` | the state that all engines of a replica share: the published state and its waiters |
//! | `check.rs` | decides whether a replica may show the state that it had at startup |
//! | `crowd.rs` | the waiters for the replica, and the state published to them |
//! | `database.rs` | builds a replica on a log |
//! | `propose.rs` | appends commands to the log; barriers |
//! | `clock.rs` | the time that the entries of this node carry |
//! | `tailer.rs`, `feed.rs`, `applier.rs` | read and apply entries; events, view and answers follow in this order (X19) |
//! | `inlet.rs` | the queue through which `feed.rs` passes work between threads |
//! | `commit.rs` | commits to the store |
//! | `progress.rs` | watches the replica's progress; retries failed operations of its store |
//! | `surgery.rs` | surgery on the log: makes sure that no replica passes the entry before it is changed |
//! | `solo.rs` | an engine without a log, for tests of applications and doors |

mod applier;
mod check;
mod clock;
mod commit;
mod core;
mod crowd;
mod database;
mod error;
mod feed;
mod health;
mod inlet;
mod options;
mod progress;
mod propose;
mod room;
mod solo;
mod surgery;
mod tailer;

use std::fmt;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::level::since;
use atoll_core::{Level, Ticket};

use crate::entry::MAX_COMMAND_BYTES;
use crate::hosted::Slot;
use crate::part::MAX_LONG_COMMAND_BYTES;
use crate::replica::{Halt, HashAt};
use atoll_contract::application::View;
use atoll_contract::application::{Application, Observer, Proposer, Rejected};

pub(crate) use self::core::Proposal;
pub use check::Checked;
pub(crate) use check::Mine;
pub use clock::{ClockAhead, HearClocks, PeerClocks};
pub use database::{Clock, Cluster, Database, OpenError, ReadReplicas, ReplicaParts, Threads};
pub use error::{BarrierError, Busy, ProposeError, Stopped};
pub use health::{Divergence, Finding, Health, OutOfService, Refilling};
pub use options::Options;
pub use room::Room;
pub use solo::{Solo, SoloClock};
pub use surgery::{NotFenced, OperateError};

pub(crate) use self::core::Core;
pub(crate) use commit::{Committer, Here};

/// The errors of reads while the replica is withheld or in its start check.
const WRONG: &str = "this replica is wrong and is being refilled by a peer";
const CHECKING: &str = "this replica has just started and is comparing its state with a peer's";

/// A command that was applied on this node: its place in the order of all commands, and its reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The log entry that holds it.
    pub position: LogPos,
    /// The index of the command in the entry, from 0.
    pub index: u32,
    /// Milliseconds since the Unix epoch, see [`crate::ApplyAt::time_ms`].
    pub time_ms: u64,
    /// The reply of [`Application::apply`].
    pub reply: Result<Bytes, Rejected>,
}

/// The outcome of a proposal.
pub type Proposed = Ticket<Result<Applied, ProposeError>>;

/// One application of a replicated database, on this node. All methods may be called from any thread and return immediately.
/// Tickets can be awaited anywhere. Cheap to clone.
pub struct Engine<A: Application> {
    core: Arc<Core>,
    slot: Slot<A>,
}

impl<A: Application> Clone for Engine<A> {
    fn clone(&self) -> Self {
        Engine { core: self.core.clone(), slot: self.slot.clone() }
    }
}

impl<A: Application> fmt::Debug for Engine<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine of {:?}", self.slot)
    }
}

impl<A: Application> Engine<A> {
    pub(crate) fn new(core: Arc<Core>, slot: Slot<A>) -> Self {
        Engine { core, slot }
    }

    /// Proposes a command. The commands of one node are applied in the order of these calls, each exactly once. The ticket
    /// completes when the command is in the log (as durable as the log promises) and is applied on this node; from then on
    /// [`Engine::view`] shows it. Dropping the ticket cancels nothing.
    ///
    /// # Errors
    /// [`Busy`]: the command was not accepted and did not happen. Wait with [`Engine::room`] and try again. The ticket may yield a
    /// [`ProposeError`]; its variants document whether the command happened.
    pub fn propose(&self, command: Bytes) -> Result<Proposed, Busy> {
        self.propose_at(self.level(), command)
    }

    /// Like [`Engine::propose`], for a command that was encoded for `level`, an earlier result of [`Engine::level`]. The active
    /// level may have risen since.
    ///
    /// # Errors
    /// As for [`Engine::propose`].
    pub fn propose_at(&self, level: Level, command: Bytes) -> Result<Proposed, Busy> {
        self.propose_command(level, command, None)
    }

    /// Like [`Engine::propose`], for a caller that has proposed commands whose outcomes it does not know yet, and without which this one
    /// must not be applied. `losses` is what [`Engine::losses`] returned before the first of them. If commands were lost since then, this
    /// one is refused, even if they were not the caller's.
    ///
    /// # Errors
    /// As for [`Engine::propose`].
    pub fn propose_behind(&self, losses: u64, command: Bytes) -> Result<Proposed, Busy> {
        self.propose_command(self.level(), command, Some(losses))
    }

    fn propose_command(&self, level: Level, command: Bytes, losses: Option<u64>) -> Result<Proposed, Busy> {
        let allowed = self.max_command_bytes();
        if command.len() > allowed {
            return Ok(Ticket::ready(Err(ProposeError::TooLarge { bytes: command.len(), allowed })));
        }
        let version = A::version_at(level);
        self.core.propose(Proposal { app: A::ID, version, command, losses })
    }

    /// Returns the maximum length of a command, in bytes. It rises with the feature level of the cluster.
    pub fn max_command_bytes(&self) -> usize {
        match self.core.levels.allows(since::LONG_COMMANDS) {
            true => MAX_LONG_COMMAND_BYTES,
            false => MAX_COMMAND_BYTES,
        }
    }

    /// Returns how many times commands of this node were lost since it started, because an append failed.
    pub fn losses(&self) -> u64 {
        self.core.losses()
    }

    /// Completes when there is room for the refused command, or when it would be refused for another reason. Another caller may
    /// take the room first; then this one must wait again. Waiters are woken in the order in which they began to wait.
    pub fn room(&self, refused: &Busy) -> Room {
        Room::new(self.core.clone(), refused.refused_bytes)
    }

    /// Returns the active feature level of the cluster, as far as this node knows. It determines the version of commands.
    pub fn level(&self) -> Level {
        self.core.levels.active()
    }

    /// Completes when [`Engine::view`] shows every command that was acknowledged to any caller, on any node, before this call.
    /// Yields the position below which all entries are then applied. A linearizable read is a barrier followed by a view. Calls
    /// that arrive during a tail check share the next one (vlog-V14).
    pub fn barrier(&self) -> Ticket<Result<LogPos, BarrierError>> {
        self.core.barrier()
    }

    /// Returns the newest published state of this node. It never goes back, but may lag behind other nodes. Every read of the view
    /// fails while this replica is withheld ([`Health::withheld`]) or in its start check ([`Engine::checked`]).
    pub fn view(&self) -> View {
        // Take the state before the check, so that a state that is found wrong in between is not shown.
        let published = self.core.published();
        match () {
            () if self.core.is_withheld() => View::withheld(published, A::ID, WRONG),
            () if self.core.check.is_under_way() => View::withheld(published, A::ID, CHECKING),
            () => View::new(published, A::ID),
        }
    }

    /// Like [`Engine::view`], but readable even while the replica is withheld or in its start check. Use it only for state that a
    /// door caches in memory and reloads when [`Observer::on_restored`] is called, never to answer clients.
    pub fn view_for_door(&self) -> View {
        View::new(self.core.published(), A::ID)
    }

    /// Completes when the start check has ended, usually within seconds. Until then the state that the store had is compared with
    /// that of a peer, and [`Engine::view`] cannot be read. Barriers and proposals wait for the check themselves.
    pub fn checked(&self) -> Ticket<()> {
        self.core.check.wait()
    }

    /// Returns how many states of this node are kept in memory for existing views, including the newest one.
    pub fn held_versions(&self) -> usize {
        self.core.published().hold.versions()
    }

    /// Returns true if this replica was found to be wrong and has not been refilled yet. Reads fail, and proposals and barriers are
    /// refused; clients must use another node.
    pub fn is_withheld(&self) -> bool {
        self.core.is_withheld()
    }

    /// Completes when the view includes all entries below `below` (exclusive). Yields the position below which all entries are then
    /// applied. For a caller that has seen a later state elsewhere: to wait for the entry at [`Applied::position`], call
    /// `wait_applied(position.plus(1))`.
    pub fn wait_applied(&self, below: LogPos) -> Ticket<Result<LogPos, Stopped>> {
        self.core.wait_applied(below)
    }

    /// Sets the receiver of the events, replacing an earlier one. Events of commands that were applied before this call are
    /// dropped.
    pub fn observe(&self, observer: Arc<dyn Observer<A::Event>>) {
        *self.slot.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(observer);
    }

    /// Returns how many commands of this node, from any door, wait for an answer, whether queued, in the log, or being applied.
    pub fn waiting_commands(&self) -> usize {
        self.core.waiting_commands()
    }

    /// Returns this node's identity as a proposer, which [`crate::ApplyAt::proposer`] shows for each of its commands.
    pub fn proposer(&self) -> Proposer {
        self.core.proposer
    }

    /// Returns the progress and condition of this replica.
    pub fn health(&self) -> Health {
        self.core.health()
    }

    /// Returns the state hashes of this replica at recent sampling positions, in ascending order. All replicas sample at the same
    /// positions.
    pub fn hashes(&self) -> Vec<HashAt> {
        self.core.samples()
    }

    /// Returns why this replica has halted, if it has.
    pub fn halted(&self) -> Option<Halt> {
        self.core.halted()
    }

    /// Returns why this replica is out of service, if it is. Its node may be up.
    pub fn out_of_service(&self) -> Option<OutOfService> {
        self.core.out_of_service()
    }
}

//! The engine: proposes commands, applies the log, answers callers (Delos §4.1: propose, sync, apply).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | [`Engine`], the face that doors see |
//! | `core.rs` | what all engines of a replica share: the published state and its waiters |
//! | `check.rs` | whether it may show the state that it had at startup |
//! | `crowd.rs` | the waiters for the replica, and the state published to them |
//! | `database.rs` | a replica put together over a log |
//! | `propose.rs` | the way into the log, and barriers |
//! | `clock.rs` | the time that the entries of this node carry |
//! | `learn.rs`, `feed.rs`, `applier.rs` | the way out of it: entries in, answers out, in the order events – view – callers (X19) |
//! | `inlet.rs` | what `feed.rs` hands from thread to thread |
//! | `commit.rs` | who commits to the store |
//! | `progress.rs` | whether the replica makes progress; retries failed operations of its store |
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
mod inlet;
mod learn;
mod options;
mod progress;
mod propose;
mod room;
mod solo;

use std::fmt;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::{Level, Ticket};

use crate::application::{Application, Observer, Proposer, Rejected};
use crate::hosted::Slot;
use crate::replica::{Halt, HashAt};
use crate::view::View;

pub(crate) use self::core::Proposal;
pub use self::core::{Divergence, Finding, Health, OutOfService, Refilling};
pub use check::Checked;
pub(crate) use check::Mine;
pub use clock::{ClockAhead, HearClocks, PeerClocks};
pub use database::{Clock, Cluster, Database, Ground, OpenError, Threads};
pub use error::{BarrierError, Busy, ProposeError, Stopped};
pub use options::Options;
pub use room::Room;
pub use solo::{Solo, SoloClock};

pub(crate) use self::core::Core;

/// Why nothing is read.
const WRONG: &str = "this replica was found to be wrong and fetches the state from a peer";
const CHECKING: &str = "this replica was just started and compares its state with that of a peer";

/// A command that was applied, on this node too: its place in the order of all commands, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The log entry that holds it.
    pub position: LogPos,
    /// Which command of the entry, from 0.
    pub index: u32,
    /// Milliseconds since the Unix epoch, see [`crate::ApplyAt::time_ms`].
    pub time_ms: u64,
    /// What [`Application::apply`] answered.
    pub reply: Result<Bytes, Rejected>,
}

/// What becomes of a proposal.
pub type Proposed = Ticket<Result<Applied, ProposeError>>;

/// One application of a replicated database, on this node. All methods may be called from any thread and return at once; tickets can
/// be awaited anywhere. Cheap to clone.
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

    /// Proposes a command. Commands of one node are applied in the order of these calls, each exactly once. The ticket completes
    /// when the command is in the log, is as durable as the log promises, and is applied on this node: [`Engine::view`] shows it
    /// then. Dropping the ticket cancels nothing.
    ///
    /// # Errors
    /// [`Busy`]: nothing was taken; try again once other commands are answered. In the ticket: [`ProposeError`], whose variants
    /// document whether the command happened.
    pub fn propose(&self, command: Bytes) -> Result<Proposed, Busy> {
        self.propose_at(self.level(), command)
    }

    /// Like [`Engine::propose`], for a command whose bytes were made at this level of [`Engine::level`], which may have risen
    /// meanwhile.
    ///
    /// # Errors
    /// As of [`Engine::propose`].
    pub fn propose_at(&self, level: Level, command: Bytes) -> Result<Proposed, Busy> {
        if command.len() > crate::entry::MAX_COMMAND_BYTES {
            return Ok(Ticket::ready(Err(ProposeError::TooLarge { bytes: command.len() })));
        }
        let version = A::version_at(level);
        self.core.propose(Proposal { app: A::ID, version, command })
    }

    /// Completes when the command that was refused finds room, or would have: another one may take it first, and then the caller waits
    /// again. Callers find room in the order in which they began to wait.
    pub fn room(&self, refused: &Busy) -> Room {
        Room::new(self.core.clone(), refused.refused_bytes)
    }

    /// The active feature level of the cluster, as far as this node knows: commands may be of the version that it has.
    pub fn level(&self) -> Level {
        self.core.levels.active()
    }

    /// Completes when [`Engine::view`] shows everything that was answered to anybody, on any node, before this call; yields the
    /// position below which entries are applied then. For linearizable reads: first a barrier, then a view. Calls that arrive while
    /// a check of the tail is under way share the next one (vlog-V14).
    pub fn barrier(&self) -> Ticket<Result<LogPos, BarrierError>> {
        self.core.barrier()
    }

    /// The newest published state of this node. It never goes back, but may lag behind other nodes. While this replica is known to
    /// be wrong ([`Health::withheld`]), or was just started and is being compared ([`Engine::checked`]), every read of the view is
    /// an error.
    pub fn view(&self) -> View {
        // Take the state before the check: a state that was found wrong meanwhile must not be shown.
        let published = self.core.published();
        match () {
            () if self.core.is_withheld() => View::withheld(published, A::ID, WRONG),
            () if self.core.check.is_under_way() => View::withheld(published, A::ID, CHECKING),
            () => View::new(published, A::ID),
        }
    }

    /// Like [`Engine::view`], but readable even while the state is compared after the start. For state that a door caches in memory
    /// and reloads when it is notified that the state was replaced; not for clients.
    pub fn view_for_door(&self) -> View {
        View::new(self.core.published(), A::ID)
    }

    /// Completes when [`Engine::view`] shows something after the start, within seconds: the state that the store had is first
    /// compared with that of a peer. Barriers and proposals wait for this on their own.
    pub fn checked(&self) -> Ticket<()> {
        self.core.check.wait()
    }

    /// How many states of this node are kept for views that somebody holds, the newest one among them.
    pub fn held_versions(&self) -> usize {
        self.core.published().hold.versions()
    }

    /// Whether this replica was found to be wrong and is not refilled yet: reads fail, proposals and barriers are refused. Clients
    /// are served at another node.
    pub fn is_withheld(&self) -> bool {
        self.core.is_withheld()
    }

    /// Completes when all entries below `below` (excluding the entry at `below`) are in the view; yields how far the replica got.
    /// For a caller that has seen a later state elsewhere: the entry at [`Applied::position`] is in once
    /// `wait_applied(position.plus(1))` is done.
    pub fn wait_applied(&self, below: LogPos) -> Ticket<Result<LogPos, Stopped>> {
        self.core.wait_applied(below)
    }

    /// Sets the receiver of the events and replaces an earlier one. Events of commands that are applied before this call are
    /// dropped.
    pub fn observe(&self, observer: Arc<dyn Observer<A::Event>>) {
        *self.slot.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(observer);
    }

    /// How many commands of this node, through whatever door, wait for an answer: queued, in the log, or being applied.
    pub fn waiting_commands(&self) -> usize {
        self.core.waiting_commands()
    }

    /// Who this node is as a proposer: the same in every [`crate::ApplyAt::proposer`] of its commands.
    pub fn proposer(&self) -> Proposer {
        self.core.proposer
    }

    /// How far this replica is.
    pub fn health(&self) -> Health {
        self.core.health()
    }

    /// Hashes of the state of this replica, at the last positions that all replicas remember theirs of; rising.
    pub fn hashes(&self) -> Vec<HashAt> {
        self.core.samples()
    }

    /// Why this replica applies no more, if so.
    pub fn halted(&self) -> Option<Halt> {
        self.core.halted()
    }

    /// Why this replica serves nobody at the moment, if so: it has halted, makes no progress, or is known to be wrong.
    /// Its node may be up.
    pub fn out_of_service(&self) -> Option<OutOfService> {
        self.core.out_of_service()
    }
}

//! An engine without a log: every proposal is applied immediately, in the caller's thread. For tests of applications and doors.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::{ClientId, Entry, LogPos, OpId};
use atoll_core::{Bounds, Incarnation, LevelRange, Levels, NodeId, Ticket, ticket};

use super::applier::Applier;
use super::commit::Here;
use super::core::{Core, Path, Proposal, Waiting};
use super::{BarrierError, Busy, Engine, Options, ProposeError, Proposed, Stopped};
use crate::entry::{EntryBuilder, Header, MAX_COMMAND_BYTES};
use crate::hosted::{Applications, Slot};
use crate::part::Cutter;
use crate::replica::Replica;
use crate::store::{Store, StoreError};
use atoll_contract::application::{Application, Proposer};

/// The wall clock of a [`Solo`], in milliseconds since the Unix epoch. The test sets it.
#[derive(Clone, Debug, Default)]
pub struct SoloClock(Arc<AtomicU64>);

impl SoloClock {
    /// Sets the clock.
    pub fn set_ms(&self, ms: u64) {
        self.0.store(ms, Ordering::Relaxed);
    }

    /// Returns the time that the clock shows.
    pub fn ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Alone {
    /// The applier and the number of the last entry. None before the replica is open and after it was closed.
    applier: Mutex<Option<(Applier, u64)>>,
    clock: SoloClock,
    since: LogPos,
}

impl Alone {
    fn applier(&self) -> MutexGuard<'_, Option<(Applier, u64)>> {
        self.applier.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A standalone replica without a log.
#[derive(Clone)]
pub struct Solo {
    core: Arc<Core>,
    alone: Arc<Alone>,
}

impl std::fmt::Debug for Solo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "solo replica of node {}", self.core.proposer.node)
    }
}

struct AlonePath(Arc<Alone>);

impl Solo {
    /// Opens applications on a store, which need not be empty.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn open(apps: Applications, store: Box<dyn Store>) -> Result<Solo, StoreError> {
        let (replica, published) = Replica::open(apps, LevelRange::OURS, store.snapshot())?;
        let clock = SoloClock::default();
        clock.set_ms(published.time_ms);
        let alone = Arc::new(Alone { applier: Mutex::new(None), clock, since: published.below });
        let proposer = Proposer { node: NodeId(1), incarnation: Incarnation(published.below.0 + 1) };
        let levels = Levels::new(LevelRange::OURS, true);
        // The highest level can be used, because no other program reads what this one writes.
        let _ = levels.learn(LevelRange::OURS.highest);
        let unbounded = Bounds { items: usize::MAX, bytes: usize::MAX };
        let core = Core::new(proposer, levels, Box::new(AlonePath(alone.clone())), published, unbounded);
        let options = Options::default();
        let here = Here::new(store, &options)?;
        *alone.applier() = Some((Applier::new(replica, core.clone(), Box::new(here), &options), 0));
        Ok(Solo { core, alone })
    }

    /// Returns the engine of an application that was added to the [`Applications`] of this replica.
    pub fn engine<A: Application>(&self, slot: &Slot<A>) -> Engine<A> {
        Engine::new(self.core.clone(), slot.clone())
    }

    /// Returns the clock, for the test to set.
    pub fn clock(&self) -> SoloClock {
        self.alone.clock.clone()
    }

    /// Durably commits everything that is applied to the store. Without this call it is lost when the replica is dropped.
    pub fn commit(&self) {
        if let Some((applier, _)) = self.alone.applier().as_mut() {
            applier.commit(true);
        }
    }

    /// Closes the replica. The tickets of later proposals are abandoned. Without this call the replica and its engines keep each
    /// other alive and are never freed.
    pub fn close(&self) {
        *self.alone.applier() = None;
    }
}

impl Path for AlonePath {
    fn propose(&self, core: &Arc<Core>, proposal: Proposal) -> Result<Proposed, Busy> {
        let (caller, wait) = ticket();
        let mut applier = self.0.applier();
        let Some((applier, seq)) = applier.as_mut() else { return Ok(wait) };
        if let Some(halt) = core.halted() {
            return Ok(Ticket::ready(Err(ProposeError::Stopped(halt))));
        }
        let bytes = proposal.command.len();
        core.reserve(bytes)?;
        let header = Header { proposer: core.proposer, since: self.0.since, time_ms: self.0.clock.ms() };
        let begin = |size| EntryBuilder::new(&header, size, core.levels.active());
        let mut next_op = || {
            *seq += 1;
            OpId { client: ClientId(core.proposer.incarnation.0), seq: *seq }
        };
        let entry = if bytes > MAX_COMMAND_BYTES {
            let part_bytes = Options::default().part_bytes;
            let mut parts = Cutter::new(proposal.app, proposal.version, proposal.command, part_bytes);
            loop {
                let Some(part) = parts.next() else { return Ok(wait) };
                let mut entry = begin(EntryBuilder::size_of(&part.data));
                entry.push_part(&part);
                if part.is_last() {
                    break entry;
                }
                applier.apply(&[Entry { op: next_op(), payload: entry.finish() }.into()]);
            }
        } else {
            let mut entry = begin(EntryBuilder::size_of(&proposal.command));
            entry.push(proposal.app, proposal.version, &proposal.command);
            entry
        };
        let op = next_op();
        if core.expect(Waiting { op, callers: vec![caller], bytes }).is_err() {
            return Ok(wait);
        }
        // A halt is reported to all waiters, including this caller.
        applier.apply(&[Entry { op, payload: entry.finish() }.into()]);
        Ok(wait)
    }

    fn barrier(&self, core: &Arc<Core>) -> Ticket<Result<LogPos, BarrierError>> {
        Ticket::ready(match core.halted() {
            Some(halt) => Err(Stopped(halt).into()),
            None => Ok(core.published().below),
        })
    }

    fn known_tail(&self) -> LogPos {
        LogPos::ZERO
    }

    fn refused(&self, _op: OpId) {}

    fn losses(&self) -> u64 {
        0
    }
}

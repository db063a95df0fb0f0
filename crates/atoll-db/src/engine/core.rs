//! The state that all engines of a replica share: the published state, its waiters, and the path to the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use atoll_contract::{LogPos, OpId};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Bounds, Completer, Levels, Ticket, ticket};
use atoll_log::LogError;

use super::check::{Check, Checked};
use super::crowd::{self, Crowd, Shown, Waits};
use super::health::{Divergence, Finding, Health, OutOfService, Refilling};
use super::{Applied, BarrierError, Busy, ClockAhead, ProposeError, Proposed, Stopped};
use crate::replica::Published;
use crate::replica::{Halt, HashAt};
use crate::store::StoreError;
use crate::transfer::{HashReport, ReplicaReport, Scrubbed, ServiceReport};
use atoll_contract::application::{AppId, Proposer};

/// A command on its way to the log.
#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) app: AppId,
    pub(crate) version: u8,
    pub(crate) command: Bytes,
    /// The number of losses that its caller knows of, if the command must not be applied without the caller's earlier ones.
    pub(crate) losses: Option<u64>,
}

/// Appends commands to the log and finds its tail.
pub(crate) trait Path: Send + Sync {
    fn propose(&self, core: &Arc<Core>, proposal: Proposal) -> Result<Proposed, Busy>;
    fn barrier(&self, core: &Arc<Core>) -> Ticket<Result<LogPos, BarrierError>>;
    /// Returns the highest tail that this node knows of.
    fn known_tail(&self) -> LogPos;
    /// Called when every replica has refused an entry of this node. They will also refuse all later entries of the same lane.
    fn refused(&self, op: OpId);
    /// Returns how many times commands of this node were lost.
    fn losses(&self) -> u64;
}

pub(crate) type Caller = Completer<Result<Applied, ProposeError>>;

pub(crate) type Waiting = crowd::Waiting<Caller>;

/// The number of waiters for a fence.
const MOST_FENCES: usize = 8;
/// The number of findings that are kept.
const FOUND_AT_MOST: usize = 8;

/// Figures that the applier keeps up to date.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) committed_below: LogPos,
    pub(crate) durable_below: LogPos,
    pub(crate) overlay_bytes: u64,
    pub(crate) store_bytes: u64,
    pub(crate) foreign_entries: u64,
    pub(crate) commands: u64,
    pub(crate) rejected: u64,
    pub(crate) trouble: Option<String>,
    pub(crate) refills: u64,
    pub(crate) refilling: Option<Refilling>,
    pub(crate) divergence: Option<Divergence>,
    pub(crate) scrubbed: Option<Scrubbed>,
    pub(crate) withheld: Option<Finding>,
    pub(crate) found: VecDeque<Finding>,
    pub(crate) found_total: u64,
    pub(crate) samples: Vec<HashAt>,
}

#[derive(Debug, Default)]
struct EngineState {
    figures: Figures,
    /// This replica was found to be wrong, and the tailer has not begun to refill it.
    wrong: bool,
    /// A scrub of the store has been requested.
    scrub: bool,
    tailer: Option<Waker>,
    /// Who waits for the tailer to read again what is not applied.
    fences: Vec<Completer<LogPos>>,
    /// The error that the store reported and that is being retried.
    store_trouble: Option<StoreError>,
    /// This node's clock is refused.
    clock_ahead: Option<ClockAhead>,
    /// Wakes the procedure that retries the store.
    retrier: Option<Waker>,
    /// The first entry that is not applied, if the replica has entries to apply but makes no progress.
    stalled_at: Option<LogPos>,
    /// The store has accepted no commit for a long time.
    behind: bool,
    /// Entries from here on must not be trimmed: they are not in a backup yet.
    keep_from: Option<LogPos>,
}

impl EngineState {
    fn out_of_service(&self, halted: Option<Halt>) -> Option<OutOfService> {
        if let Some(halt) = halted {
            return Some(OutOfService::Halted(halt));
        }
        if self.figures.withheld.is_some() {
            return Some(OutOfService::Withheld);
        }
        if let Some(at) = self.stalled_at {
            return Some(OutOfService::Stalled { at, error: self.store_trouble.clone() });
        }
        self.clock_ahead.clone().map(OutOfService::ClockAhead)
    }
}

/// A waiter for the replica to reach a position.
#[derive(Debug)]
pub(crate) enum Reached {
    Applied(Completer<Result<LogPos, Stopped>>),
    Barrier(Completer<Result<LogPos, BarrierError>>),
}

impl Reached {
    fn complete(self, outcome: Result<LogPos, Stopped>) {
        match self {
            Reached::Applied(done) => done.complete(outcome),
            Reached::Barrier(done) => done.complete(outcome.map_err(BarrierError::Stopped)),
        }
    }

    /// Completes a barrier with the error that kept it from finding the tail.
    pub(crate) fn fail(self, error: &LogError) {
        // A waiter for a position needs no tail, so this is not called for one. If it were, the dropped completer would notify the
        // reader.
        if let Reached::Barrier(done) = self {
            done.complete(Err(BarrierError::Log(error.clone())));
        }
    }
}

impl Waits for Reached {
    fn is_abandoned(&self) -> bool {
        match self {
            Reached::Applied(done) => done.is_abandoned(),
            Reached::Barrier(done) => done.is_abandoned(),
        }
    }
}

pub(crate) struct Core {
    pub(crate) proposer: Proposer,
    pub(crate) levels: Levels,
    path: Box<dyn Path>,
    pub(super) crowd: Crowd<Published, Caller, Reached, Halt>,
    /// This replica was found to be wrong and has not been refilled yet.
    withheld: AtomicBool,
    state: Mutex<EngineState>,
    /// Whether the replica may show the state that it had at startup.
    pub(crate) check: Check,
}

impl Core {
    pub(crate) fn new(
        proposer: Proposer,
        levels: Levels,
        path: Box<dyn Path>,
        published: Arc<Published>,
        bounds: Bounds,
    ) -> Arc<Core> {
        let (crowd, withheld) = (Crowd::new(published, bounds), AtomicBool::new(false));
        let (state, check) = (Mutex::default(), Check::default());
        Arc::new(Core { proposer, levels, path, crowd, withheld, state, check })
    }

    pub(crate) fn propose(self: &Arc<Self>, proposal: Proposal) -> Result<Proposed, Busy> {
        if self.is_withheld() {
            return Ok(Ticket::ready(Err(ProposeError::Withheld)));
        }
        // The caller would get no answer, and other nodes are taking over this replica's sessions.
        let stalled_at = lock(&self.state).stalled_at;
        if let Some(at) = stalled_at {
            return Ok(Ticket::ready(Err(ProposeError::Stalled(at))));
        }
        self.path.propose(self, proposal)
    }

    pub(crate) fn losses(&self) -> u64 {
        self.path.losses()
    }

    pub(crate) fn barrier(self: &Arc<Self>) -> Ticket<Result<LogPos, BarrierError>> {
        if self.is_withheld() {
            return Ticket::ready(Err(BarrierError::Withheld));
        }
        self.path.barrier(self)
    }

    pub(crate) fn published(&self) -> Arc<Published> {
        self.crowd.published()
    }

    /// Returns the highest tail that this node knows of.
    pub(crate) fn known_tail(&self) -> LogPos {
        self.path.known_tail()
    }

    pub(crate) fn halted(&self) -> Option<Halt> {
        self.crowd.halted()
    }

    /// Returns why this replica is out of service, if it is.
    pub(crate) fn out_of_service(&self) -> Option<OutOfService> {
        let halted = self.halted();
        self.out_of_service_of(&lock(&self.state), halted)
    }

    fn out_of_service_of(&self, state: &EngineState, halted: Option<Halt>) -> Option<OutOfService> {
        let why = state.out_of_service(halted);
        why.or_else(|| self.check.is_under_way().then_some(OutOfService::Checking))
    }

    /// Records an error of the store and wakes the procedure that retries the operation.
    pub(crate) fn store_fails(&self, error: &StoreError) {
        let retrier = {
            let mut state = lock(&self.state);
            state.store_trouble = Some(error.clone());
            state.retrier.take()
        };
        retrier.into_iter().for_each(Waker::wake);
    }

    /// Records that no operation of the store has to be retried.
    pub(crate) fn store_works(&self) {
        lock(&self.state).store_trouble = None;
    }

    /// Returns true if an operation of the store has to be retried. Always false after a halt.
    pub(crate) fn is_store_failing(&self) -> bool {
        self.halted().is_none() && lock(&self.state).store_trouble.is_some()
    }

    /// Ready once an operation of the store has to be retried.
    pub(crate) fn poll_store_failing(&self, cx: &mut Context<'_>) -> Poll<()> {
        let halted = self.halted().is_some();
        let mut state = lock(&self.state);
        if state.store_trouble.is_some() && !halted {
            return Poll::Ready(());
        }
        state.retrier = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Records what the progress watch found: where this replica is stalled, if it is, and whether its store has accepted no commit
    /// for a long time.
    pub(crate) fn set_progress(&self, stalled_at: Option<LogPos>, behind: bool) {
        let mut state = lock(&self.state);
        (state.stalled_at, state.behind) = (stalled_at, behind);
        drop(state);
        if stalled_at.is_some() {
            self.crowd.admit_all();
        }
    }

    /// Records whether this node's clock is refused, and why.
    pub(crate) fn set_clock(&self, ahead: Option<ClockAhead>) {
        lock(&self.state).clock_ahead = ahead;
    }

    pub(crate) fn waiting_commands(&self) -> usize {
        self.crowd.commands()
    }

    pub(crate) fn health(&self) -> Health {
        let (applied_below, halted) = (self.crowd.below(), self.halted());
        let waiting_commands = self.waiting_commands() as u64;
        let state = lock(&self.state);
        let figures = state.figures.clone();
        Health {
            applied_below,
            committed_below: figures.committed_below,
            durable_below: figures.durable_below,
            waiting_commands,
            known_tail: self.path.known_tail().max(applied_below),
            overlay_bytes: figures.overlay_bytes,
            store_bytes: figures.store_bytes,
            foreign_entries: figures.foreign_entries,
            commands: figures.commands,
            rejected: figures.rejected,
            refills: figures.refills,
            refilling: figures.refilling,
            divergence: figures.divergence,
            scrubbed: figures.scrubbed,
            withheld: figures.withheld,
            checked: self.check.outcome(),
            found: figures.found.into(),
            found_total: figures.found_total,
            trouble: figures.trouble,
            store_trouble: state.store_trouble.clone(),
            out_of_service: self.out_of_service_of(&state, halted.clone()),
            halted,
        }
    }

    pub(crate) fn figures(&self, change: impl FnOnce(&mut Figures)) {
        self.figures_of(change);
    }

    fn figures_of<T>(&self, change: impl FnOnce(&mut Figures) -> T) -> T {
        change(&mut lock(&self.state).figures)
    }

    pub(crate) fn durable_below(&self) -> LogPos {
        lock(&self.state).figures.durable_below
    }

    pub(crate) fn samples(&self) -> Vec<HashAt> {
        lock(&self.state).figures.samples.clone()
    }

    /// Returns the progress and the hashes that this replica reports to its peers.
    pub(crate) fn report(&self) -> ReplicaReport {
        let applied_below = self.crowd.below();
        let state = lock(&self.state);
        let report = |h: &HashAt| HashReport { below: h.below, hash: h.hash };
        ReplicaReport {
            applied_below,
            durable_below: state.figures.durable_below,
            hashes: state.figures.samples.iter().map(report).collect(),
        }
    }

    /// Returns what this node announces about whether its peers should wait for this replica.
    pub(crate) fn service(&self) -> ServiceReport {
        let halted = self.halted();
        let state = lock(&self.state);
        let out = state.out_of_service(halted).is_some_and(|why| !matches!(why, OutOfService::ClockAhead(_)));
        ServiceReport { out_of_service: out, behind: state.behind }
    }

    /// Returns true if a command would be refused immediately, regardless of the available room.
    pub(crate) fn refuses(&self) -> bool {
        self.is_withheld() || lock(&self.state).stalled_at.is_some()
    }

    /// True while this replica is known to be wrong: none of its state may be shown.
    pub(crate) fn is_withheld(&self) -> bool {
        self.withheld.load(Ordering::Acquire)
    }

    /// Records that another replica's state differs. `wrong`: this replica is the one that must be refilled.
    pub(crate) fn diverged(&self, found: Divergence, wrong: bool) {
        let known = self.figures_of(|f| f.divergence.replace(found.clone()).is_some());
        if !known || wrong {
            self.judged(Finding::Differs(found), wrong);
        }
    }

    /// Records that all replicas agree wherever they can be compared.
    pub(crate) fn agreed(&self) {
        self.figures(|f| f.divergence = None);
    }

    /// Records the result of a scrub. `refill`: this replica must be refilled if the scrub found damage.
    pub(crate) fn scrubbed(&self, scrubbed: Scrubbed, refill: bool) {
        let wrong = scrubbed.wrong.clone();
        self.figures(|f| f.scrubbed = Some(scrubbed));
        if let Some(rot) = wrong {
            self.judged(Finding::Rot(rot), refill);
        }
    }

    /// Sets the position at and above which this replica trims nothing.
    pub(crate) fn keep_from(&self, position: Option<LogPos>) {
        lock(&self.state).keep_from = position;
    }

    /// Returns the position at and above which this replica must trim nothing.
    pub(crate) fn kept_from(&self) -> Option<LogPos> {
        lock(&self.state).keep_from
    }

    /// Requests a scrub of the store at the next upkeep.
    pub(crate) fn ask_for_scrub(&self) {
        lock(&self.state).scrub = true;
    }

    /// Returns true if a scrub was requested since the last call.
    pub(crate) fn take_scrub(&self) -> bool {
        std::mem::take(&mut lock(&self.state).scrub)
    }

    /// Records a finding. `wrong`: the replica is withheld until it is refilled.
    fn judged(&self, found: Finding, wrong: bool) {
        let tailer = {
            let mut state = lock(&self.state);
            let figures = &mut state.figures;
            if figures.found.len() == FOUND_AT_MOST {
                figures.found.pop_front();
            }
            figures.found.push_back(found.clone());
            figures.found_total += 1;
            if !wrong {
                return;
            }
            figures.withheld = Some(found);
            state.wrong = true;
            self.withheld.store(true, Ordering::Release);
            state.tailer.take()
        };
        self.crowd.admit_all();
        if let Some(tailer) = tailer {
            tailer.wake();
        }
    }

    /// Ready once this replica has been found to be wrong. Clears the request for a refill, but the replica stays withheld.
    pub(crate) fn poll_wrong(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.wrong) {
            return Poll::Ready(());
        }
        state.tailer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Ends the withholding and the start check: the state has been replaced, so earlier findings no longer apply to it.
    pub(crate) fn forget_wrong(&self) {
        let mut state = lock(&self.state);
        state.wrong = false;
        state.figures.withheld = None;
        self.withheld.store(false, Ordering::Release);
        drop(state);
        self.check.end(Checked::Refilled);
    }

    /// Answers the callers of all waiting entries that `is_behind` accepts with [`ProposeError::Skipped`]: the refill has passed
    /// these entries, so their replies are lost.
    pub(crate) fn skip(&self, below: LogPos, is_behind: impl Fn(OpId) -> bool) {
        for op in self.crowd.ops().into_iter().filter(|op| is_behind(*op)) {
            for caller in self.take_waiting(op).into_iter().flat_map(|w| w.callers) {
                caller.complete(Err(ProposeError::Skipped(below)));
            }
        }
    }

    pub(crate) fn wait_applied(&self, below: LogPos) -> Ticket<Result<LogPos, Stopped>> {
        let (done, wait) = ticket();
        self.when_applied(below, vec![Reached::Applied(done)]);
        wait
    }

    /// Completes the waiters once all entries below `below` are visible, or the replica halts.
    pub(crate) fn when_applied(&self, below: LogPos, who: Vec<Reached>) {
        if let Err((who, outcome)) = self.crowd.when_applied(below, who) {
            for one in who {
                one.complete(outcome.clone().map_err(Stopped));
            }
        }
    }

    /// Reserves room for a command that awaits an answer.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), Busy> {
        let reserved = self.crowd.reserve(bytes);
        reserved.map_err(|(commands, waiting)| Busy { commands, bytes: waiting, refused_bytes: bytes })
    }

    /// Returns the room of commands that were answered without having been sent.
    pub(crate) fn release(&self, commands: usize, bytes: usize) {
        self.crowd.release(commands, bytes);
    }

    /// Registers the callers of an entry of this node that is about to be sent.
    ///
    /// # Errors
    /// This replica has halted since the commands were accepted. The entry must not be sent; its callers have been answered.
    pub(crate) fn expect(&self, waiting: Waiting) -> Result<(), Halt> {
        self.crowd.expect(waiting).map_err(|(waiting, halt)| {
            hit("db.propose.halted");
            for caller in waiting.callers {
                caller.complete(Err(ProposeError::Stopped(halt.clone())));
            }
            halt
        })
    }

    /// Notifies the path that every replica has refused an entry of this node.
    pub(crate) fn refused(&self, op: OpId) {
        self.path.refused(op);
    }

    /// Removes and returns the callers of an entry that has been read from the log.
    pub(crate) fn take_waiting(&self, op: OpId) -> Option<Waiting> {
        self.crowd.take(op)
    }

    /// Publishes a state to all readers and completes those who waited for it.
    pub(crate) fn publish(&self, published: Arc<Published>) {
        let below = published.below;
        for done in self.crowd.publish(published) {
            done.complete(Ok(below));
        }
    }

    /// Records that the replica continues after a halt. What its store owes is tried again.
    pub(crate) fn resume(&self) {
        self.crowd.resume();
        let retrier = lock(&self.state).retrier.take();
        retrier.into_iter().for_each(Waker::wake);
    }

    /// Asks the tailer to answer once every entry that is not applied is read from the log again, with the chain that this node has read
    /// by now. The answer is the position of the next entry. There is none if the replica has halted for good, or ends.
    pub(crate) fn fence(&self) -> Ticket<LogPos> {
        let (done, wait) = ticket();
        let tailer = {
            let mut state = lock(&self.state);
            state.fences.retain(|done| !done.is_abandoned());
            // More are not possible, unless a caller repeats the question without waiting.
            if state.fences.len() < MOST_FENCES {
                state.fences.push(done);
            }
            state.tailer.take()
        };
        if let Some(tailer) = tailer {
            tailer.wake();
        }
        wait
    }

    /// Ready once somebody waits for [`Core::fence`]. Returns who does.
    pub(crate) fn poll_fence(&self, cx: &mut Context<'_>) -> Poll<Vec<Completer<LogPos>>> {
        let mut state = lock(&self.state);
        if state.fences.is_empty() {
            state.tailer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut state.fences))
    }

    /// Completes all waiters with the reason why the replica has halted.
    pub(crate) fn halt(&self, halt: &Halt) {
        let (waiting, positions) = self.crowd.halt(halt);
        for caller in waiting.into_iter().flat_map(|w| w.callers) {
            caller.complete(Err(ProposeError::Halted(halt.clone())));
        }
        for done in positions {
            done.complete(Err(Stopped(halt.clone())));
        }
    }
}

impl Shown for Published {
    fn below(&self) -> LogPos {
        self.below
    }
}

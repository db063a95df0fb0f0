//! The proposer of one register on one node (§4): a queue of commands, at most one proposal in flight, at most one token.
//!
//! There is never more than one per register and proposer id, because two would share ballots (rmw-T4). An idle one may be dropped: a
//! later user of the register gets a proposer with another id (rmw-T5).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::register::Unavailability;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Completer, Tick, Ticket, ticket};

use crate::mutants;

use super::ballot::{Ballot, ProposerId};
use super::group::GroupConfig;
use super::registers::Shared;
use super::round::Setback;
use super::state::{Command, CommandOutcome, RegisterState};
use super::write;

/// Maximum number of commands in one proposal.
pub(super) const MAX_BATCH: usize = 64;

/// Why a command has no outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The command did not happen.
    No(Unavailability),
    /// The command may have happened.
    Unknown(Unavailability),
    /// The command was for an epoch that has ended. It did not happen; another hand-over may have happened instead.
    Overtaken,
}

/// A command that waits for its outcome.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) command: Command,
    pub(super) deadline: Tick,
    /// The highest ballot in which a state that includes the command was sent for a vote. The command may take effect at any time until a
    /// state is chosen in a higher ballot (rmw-W9).
    pub(super) exposed: Option<Ballot>,
    done: Completer<Result<CommandOutcome, Failure>>,
}

impl Queued {
    pub(super) fn answer(self, outcome: CommandOutcome) {
        self.done.complete(match outcome {
            // After too many later writes, it is unknown whether this write was one of them.
            CommandOutcome::Forgotten => Err(Failure::Unknown(Unavailability::Busy)),
            outcome => Ok(outcome),
        });
    }

    fn fail(self, why: Unavailability) {
        let failure = if self.exposed.is_some() { Failure::Unknown(why) } else { Failure::No(why) };
        self.done.complete(Err(failure));
    }

    pub(super) fn is_move(&self) -> bool {
        matches!(self.command, Command::Move { .. })
    }
}

/// The right to send one proposal without phase 1: a majority has promised `ballot`, and `base` is the state chosen before. It is used
/// only once, so it is not `Clone` (rmw-T4).
#[derive(Debug)]
pub(super) struct Token {
    pub(super) epoch: u64,
    pub(super) ballot: Ballot,
    pub(super) base: RegisterState,
    /// The ballot in which the base was chosen.
    pub(super) chosen: Ballot,
}

impl Token {
    /// Creates a second token for the same ballot: the bug of rmw-T4.
    fn twin_for_mutant(&self) -> Token {
        Token { epoch: self.epoch, ballot: self.ballot, base: self.base.clone(), chosen: self.chosen }
    }
}

#[derive(Debug, Default)]
struct Inner {
    /// Bounded by `Options::queue`.
    queue: VecDeque<Queued>,
    driving: bool,
    token: Option<Token>,
    /// The highest round seen since the last success. An explicit prepare must be above it (rmw-T13). If 0, prepare incrementally.
    floor: u64,
    /// Number of prepares sent, to recognise duplicates (rmw-T15).
    prepares: u64,
    /// Whether anything was proposed or prepared yet (for the rmw-T7 mutant).
    begun: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Proposer {
    pub(super) name: String,
    pub(super) pid: ProposerId,
    inner: Mutex<Inner>,
}

impl Proposer {
    pub(super) fn new(name: String, pid: ProposerId) -> Self {
        Proposer { name, pid, inner: Mutex::default() }
    }

    /// Returns true if it has never tried to propose. It then owns no ballot, and may be dropped.
    pub(super) fn is_blank(&self) -> bool {
        let inner = self.inner();
        !inner.begun && inner.prepares == 0
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a command and makes sure that a driver is running. The command continues if the ticket is dropped (X8).
    pub(super) fn submit(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        command: Command,
        deadline: Tick,
    ) -> Ticket<Result<CommandOutcome, Failure>> {
        let (done, wait) = ticket();
        let mut inner = self.inner();
        if inner.queue.len() >= shared.options.queue {
            drop(inner);
            done.complete(Err(Failure::No(Unavailability::Busy)));
            return wait;
        }
        inner.queue.push_back(Queued { command, deadline, exposed: None, done });
        let start = !std::mem::replace(&mut inner.driving, true);
        drop(inner);
        if start {
            shared.env.spawn("rmw.propose", Box::pin(drive(shared.clone(), self.clone())));
        }
        wait
    }

    /// Removes and returns the token, if it is for this group. The caller must use it up.
    pub(super) fn take_token(&self, group: &GroupConfig) -> Option<Token> {
        let mut inner = self.inner();
        if mutant(mutants::RMW_T7) && !inner.begun {
            // "Smallest round": a first write without phase 1.
            inner.begun = true;
            let ballot = Ballot { n: 1, pid: self.pid };
            return Some(Token {
                epoch: group.epoch,
                ballot,
                base: RegisterState::empty(),
                chosen: Ballot::ZERO,
            });
        }
        inner.begun = true;
        if mutant(mutants::RMW_T4) {
            return inner.token.as_ref().filter(|t| t.epoch == group.epoch).map(Token::twin_for_mutant);
        }
        inner.token.take().filter(|t| t.epoch == group.epoch)
    }

    pub(super) fn put_token(&self, token: Token) {
        let mut inner = self.inner();
        inner.token = Some(token);
        inner.floor = 0;
    }

    pub(super) fn next_prepare(&self) -> u64 {
        let mut inner = self.inner();
        inner.prepares += 1;
        inner.prepares
    }

    pub(super) fn floor(&self) -> u64 {
        self.inner().floor
    }

    /// Records that the next prepare must be above this round.
    pub(super) fn raise_floor(&self, n: u64) {
        let mut inner = self.inner();
        inner.floor = inner.floor.max(n);
    }

    /// Fills the batch with the commands kept from the last attempt, in order, and then with queued ones. A hand-over command gets a batch
    /// of its own. Returns false if there is nothing to do; the driver has then stopped.
    fn fill(&self, batch: &mut Vec<Queued>) -> bool {
        let mut inner = self.inner();
        while batch.len() < MAX_BATCH && !batch.first().is_some_and(Queued::is_move) {
            match inner.queue.front() {
                Some(next) if next.is_move() && !batch.is_empty() => break,
                Some(_) => batch.extend(inner.queue.pop_front()),
                None => break,
            }
        }
        inner.driving = !batch.is_empty();
        inner.driving
    }
}

/// Drops commands that have expired or belong to another group.
fn expire(shared: &Shared, batch: &mut Vec<Queued>, why: Unavailability) {
    let (now, epoch) = (shared.env.now(), shared.group().epoch);
    for queued in std::mem::take(batch) {
        match &queued.command {
            Command::Move { epoch: wanted, .. } if *wanted != epoch => {
                queued.done.complete(Err(Failure::Overtaken));
            }
            _ if queued.deadline <= now => queued.fail(why),
            _ => batch.push(queued),
        }
    }
}

/// Proposes until the queue is empty.
async fn drive(shared: Arc<Shared>, proposer: Arc<Proposer>) {
    let mut batch = Vec::new();
    let mut failures = 0;
    let mut why = Unavailability::NoQuorum;
    loop {
        expire(&shared, &mut batch, why);
        if !proposer.fill(&mut batch) {
            return;
        }
        expire(&shared, &mut batch, why);
        if batch.is_empty() {
            continue;
        }
        let group = shared.group();
        let Err(setback) = write::attempt(&shared, &proposer, &group, &mut batch).await else {
            (failures, why) = (0, Unavailability::NoQuorum);
            continue;
        };
        if setback == Setback::VoteRefused && mutant(mutants::RMW_T3) {
            // "A nack means that it failed": together with rmw-T3 in the acceptor, this is the other part of the bug.
            batch.drain(..).for_each(|q| {
                q.done.complete(Err(Failure::No(Unavailability::NoQuorum)));
            });
            continue;
        }
        if setback == Setback::Full {
            // Waiting makes no room. Callers that have something else to do should learn of it at once, the others come again.
            batch.drain(..).for_each(|q| q.fail(Unavailability::DiskFull));
            continue;
        }
        failures += 1;
        why = match &setback {
            Setback::StorageFailed => Unavailability::StorageFailed,
            _ => Unavailability::NoQuorum,
        };
        match setback {
            Setback::NewGroup => hit("rmw.proposer.new_group"),
            Setback::HandingOver(next) => shared.await_hand_over(&group, &next).await,
            _ => shared.back_off(failures).await,
        }
    }
}

//! The proposer of one key on one node (§4): a queue of commands, at most one proposal in flight, at most one token.
//!
//! There is never more than one for a key and a proposer's id, because two would share ballots (rmw-T4). An idle one may be dropped: the
//! next one for the key has another id (rmw-T5).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use atoll_contract::keyspace::{Floor, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Completer, Tick, Ticket, ticket};
use bytes::Bytes;

use crate::ballot::{Ballot, ProposerId};
use crate::command::{Named, Reply};
use crate::message::GroupConfig;
use crate::mutants;
use crate::round::Setback;
use crate::space::{Options, Shared};
use crate::state::{KeyState, REMEMBERED};
use crate::write;

/// The most commands in one proposal. If nobody knows whether it was chosen, the next attempt must find all of them in the state.
const MAX_BATCH: usize = 32;
const _: () = assert!(MAX_BATCH <= REMEMBERED);
/// The most proposals of a command that are kept as long as nobody knows what became of them.
const MAX_TRIES: usize = 16;
/// How far a named ballot is above the highest number that was seen: a rival makes some more proposals until the name arrives.
const LEAD: u64 = 4;
/// How often the pause before an attempt doubles at most because a rival gets nothing done.
const MAX_HASTE: u32 = 7;
/// How often it doubles at once.
const HASTENS: u32 = 2;
/// A rival that has not been heard of for so many rounds has nothing to propose any more, or is dead.
const RIVAL_ROUNDS: u32 = 8;

/// Why a command has no outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It did not happen, and will not happen.
    No(Unavailability),
    /// It did not happen, and will not happen: a majority of the acceptors has no room.
    Full,
    /// It may have happened, or may still happen. A repeat needs this floor.
    Unknown(Unavailability, Floor),
}

/// A proposal of a command that may have been chosen, or may still be.
#[derive(Debug)]
struct Try {
    ballot: Ballot,
    /// What the command is answered if the proposal is chosen.
    reply: Reply,
}

/// A command that waits for its outcome.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) named: Named,
    pub(crate) deadline: Tick,
    /// Whether others than those in `tries` may have proposed it.
    again: bool,
    /// The proposals that this proposer has made, at most [`MAX_TRIES`].
    tries: Vec<Try>,
    done: Completer<Result<Reply, Failure>>,
}

impl Queued {
    pub(crate) fn answer(self, reply: Reply) {
        self.done.complete(Ok(reply));
    }

    /// Notes that the command is about to be proposed. No state before the base, which has this clock, contains it.
    pub(crate) fn proposed(&mut self, ballot: Ballot, base_clock: u64, reply: &Reply) {
        self.named.floor.get_or_insert(base_clock);
        if self.tries.len() >= MAX_TRIES {
            // From now on, only the command itself can be looked for.
            self.again = true;
        }
        if !self.again {
            self.tries.push(Try { ballot, reply: reply.clone() });
        }
    }

    /// Learns from a state what became of earlier proposals, before the command is proposed again. The state was chosen in the ballot
    /// `chosen`. Returns the outcome if a proposal was chosen so long ago that the key remembers only that.
    ///
    /// Without this, a proposer that was overtaken would have to say that the outcome is unknown as soon as the others have recorded more
    /// commands than a key remembers.
    pub(crate) fn settle(&mut self, base: &KeyState, chosen: Ballot) -> Option<Reply> {
        let floor = self.named.floor?;
        if let Some(done) = base.outcome_of(self.named.op) {
            // The key remembers only the last proposal of this node. If the next one is made without this command, nobody can find out
            // later that an earlier one contained it. So it gets its answer now, or it can only be looked for by its own name.
            if done.refused || mutant(mutants::IN_PLACE_T2) || mutant(mutants::IN_PLACE_LATER) {
                self.again |= !mutant(mutants::IN_PLACE_LATER);
                return None;
            }
            hit("in-place.propose.chosen_before");
            return Some(self.named.apply(base).1);
        }
        if floor < base.forgotten {
            if self.again {
                return None;
            }
            for tried in &self.tries {
                if base.contains(tried.ballot, floor)? {
                    hit("in-place.propose.chosen_long_ago");
                    return Some(tried.reply.clone());
                }
            }
        }
        // It is not in this state, so every state that has it will record it later.
        self.named.floor = Some(floor.max(base.clock));
        // Whoever proposes above a chosen ballot builds on it. A vote in a lower one cannot win any more.
        let is_over =
            self.tries.iter().all(|tried| tried.ballot < chosen) || mutant(mutants::IN_PLACE_SETTLES);
        if !self.again && is_over {
            hit("in-place.propose.overtaken");
            self.named.floor = None;
            self.tries.clear();
        }
        None
    }

    /// Returns until when the command is worked on. After its deadline, a command that was proposed is not proposed again, but its proposer
    /// looks once more at what became of it.
    pub(crate) fn ends(&self, options: &Options) -> Tick {
        if self.tries.is_empty() { self.deadline } else { self.deadline.after(options.reply_timeout) }
    }

    pub(crate) fn fail(self, why: Unavailability) {
        // With a floor, there were attempts: at an acceptor or, before this one, at another node.
        self.done.complete(Err(match self.named.floor {
            Some(floor) => Failure::Unknown(why, Floor(floor)),
            None => Failure::No(why),
        }));
    }
}

/// The right to send one proposal without phase 1: a majority has promised `ballot`, and `base` was chosen before. It is used only once, so
/// it is not `Clone` (rmw-T4).
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) ballot: Ballot,
    pub(crate) base: KeyState,
    /// The ballot in which the base was chosen. [`Ballot::ZERO`] if nothing was.
    pub(crate) chosen: Ballot,
}

/// A proposer of another node, to which acceptors have promised the key.
#[derive(Clone, Copy, Debug)]
struct Rival {
    /// It has got something done if a state contains its proposal in this ballot or a later one.
    ballot: Ballot,
    /// When it was last heard of.
    seen: Tick,
    /// Whether that was after this proposer has got the key the last time: a rival that only pauses is not in need of time.
    is_news: bool,
    /// Whether this proposer has got something done since it knows of the rival. If not, it needs time as much as the rival does.
    is_worse_off: bool,
}

#[derive(Debug, Default)]
struct Inner {
    /// Bounded by `Options::queue`.
    queue: VecDeque<Queued>,
    driving: bool,
    token: Option<Token>,
    /// The highest number that was seen or used. A ballot that this proposer names is above it: it must not be one in which it has proposed
    /// before (rmw-I2). Incremental prepares cannot get one of these, because a majority has promised it or a higher one.
    floor: u64,
    /// Whether the next prepare names its ballot (rmw-T13). If not, it is incremental.
    names: bool,
    /// A rival that had the key when this proposer wanted it, and has got nothing done since.
    rival: Option<Rival>,
    /// How often the pause before an attempt doubles, because this proposer has got the key while that rival got nothing done.
    haste: u32,
    /// How many prepares were sent, so that acceptors recognise copies (rmw-T15).
    prepares: u64,
    /// Whether anything was proposed yet.
    begun: bool,
    /// The highest clock of the key that was seen in a chosen state: a floor for commands.
    clock: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Proposer {
    pub(crate) key: Bytes,
    pub(crate) group: GroupConfig,
    pub(crate) pid: ProposerId,
    inner: Mutex<Inner>,
}

impl Proposer {
    pub(crate) fn new(key: Bytes, group: GroupConfig, pid: ProposerId) -> Self {
        Proposer { key, group, pid, inner: Mutex::default() }
    }

    /// Queues a command and makes sure that it is worked on. It continues if the ticket is dropped (X8).
    pub(crate) fn submit(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        named: Named,
        deadline: Tick,
    ) -> Ticket<Result<Reply, Failure>> {
        let (done, wait) = ticket();
        let again = named.floor.is_some();
        let queued = Queued { named, deadline, again, tries: Vec::new(), done };
        let mut inner = lock(&self.inner);
        if inner.queue.len() >= shared.options.queue {
            drop(inner);
            queued.fail(Unavailability::Busy);
            return wait;
        }
        inner.queue.push_back(queued);
        let start = !std::mem::replace(&mut inner.driving, true);
        drop(inner);
        if start {
            shared.env.spawn("in-place.propose", Box::pin(drive(shared.clone(), self.clone())));
        }
        wait
    }

    /// Removes and returns the token. The caller must use it up.
    pub(crate) fn take_token(&self) -> Option<Token> {
        let mut inner = lock(&self.inner);
        let begun = std::mem::replace(&mut inner.begun, true);
        if mutant(mutants::IN_PLACE_T7) && !begun {
            // "Smallest round": a first write without phase 1.
            let ballot = Ballot { n: 1, pid: self.pid };
            return Some(Token { ballot, base: KeyState::absent(0), chosen: Ballot::ZERO });
        }
        if mutant(mutants::IN_PLACE_T4) {
            let twin = |t: &Token| Token { ballot: t.ballot, base: t.base.clone(), chosen: t.chosen };
            return inner.token.as_ref().map(twin);
        }
        inner.token.take()
    }

    pub(crate) fn put_token(&self, token: Token) {
        let mut inner = lock(&self.inner);
        inner.clock = inner.clock.max(token.base.clock);
        inner.floor = inner.floor.max(token.ballot.n);
        inner.token = Some(token);
        inner.names = false;
        if let Some(rival) = &mut inner.rival {
            rival.is_worse_off = true;
        }
    }

    /// Returns whether the last thing that this proposer knows to be chosen was chosen in this ballot.
    pub(crate) fn is_latest(&self, chosen: Ballot) -> bool {
        lock(&self.inner).token.as_ref().is_some_and(|token| token.chosen == chosen)
    }

    pub(crate) fn next_prepare(&self) -> u64 {
        let mut inner = lock(&self.inner);
        inner.prepares += 1;
        inner.prepares
    }

    /// Returns the ballot that the next prepare names. None if that prepare is incremental.
    pub(crate) fn names(&self) -> Option<Ballot> {
        let inner = lock(&self.inner);
        inner.names.then(|| Ballot { n: inner.floor + LEAD, pid: self.pid })
    }

    /// The next prepare names a ballot above this number.
    pub(crate) fn raise_floor(&self, n: u64) {
        let mut inner = lock(&self.inner);
        (inner.floor, inner.names) = (inner.floor.max(n), true);
    }

    /// The next prepare is incremental again. During a pause, a rival with a token has gone far beyond everything that was seen before it:
    /// a ballot that is named after a pause would be refused, time after time, for as long as the rival has something to propose.
    fn start_afresh(&self) {
        if !mutant(mutants::IN_PLACE_STARVES) {
            lock(&self.inner).names = false;
        }
    }

    /// Acceptors refuse this proposer something because of what they have promised or voted for in this ballot.
    pub(crate) fn overtaken(&self, by: Ballot, now: Tick) {
        let mut inner = lock(&self.inner);
        match &mut inner.rival {
            _ if by.pid.node == self.pid.node => {}
            Some(rival) if rival.ballot.pid.node != by.pid.node => {}
            Some(rival) => (rival.seen, rival.is_news) = (now, true),
            none => *none = Some(Rival { ballot: by, seen: now, is_news: true, is_worse_off: false }),
        }
    }

    /// A majority has promised this proposer a ballot, and this is the state to build on. If the rival has tried again and got nothing
    /// done, while this proposer has, further pauses are longer. Otherwise proposers that are near the acceptors would starve one that is
    /// far away: one of them would always be back before its votes arrive.
    pub(crate) fn overtakes(&self, base: &KeyState, now: Tick, options: &Options) {
        let mut inner = lock(&self.inner);
        let Some(rival) = inner.rival else { return };
        if let Some(rival) = &mut inner.rival {
            rival.is_news = false;
        }
        let is_of_rival = |b: &Ballot| b.pid.node == rival.ballot.pid.node && b.n >= rival.ballot.n;
        if base.proposals.iter().any(is_of_rival) {
            (inner.rival, inner.haste) = (None, inner.haste / 2);
        } else if now.since(rival.seen) > options.reply_timeout * RIVAL_ROUNDS {
            (inner.rival, inner.haste) = (None, 0);
        } else if rival.is_news && rival.is_worse_off {
            inner.haste = (inner.haste + HASTENS).min(MAX_HASTE);
        }
    }

    fn haste(&self) -> u32 {
        lock(&self.inner).haste
    }

    /// Returns the highest clock of the key that was seen.
    pub(crate) fn clock(&self) -> u64 {
        lock(&self.inner).clock
    }

    /// Notes the clock of a chosen state.
    pub(crate) fn saw_clock(&self, clock: u64) {
        let mut inner = lock(&self.inner);
        inner.clock = inner.clock.max(clock);
    }

    /// Fills the batch with what is queued. Returns false if there is nothing to do; nobody works on the queue then.
    fn fill(&self, batch: &mut Vec<Queued>) -> bool {
        let mut inner = lock(&self.inner);
        while batch.len() < MAX_BATCH
            && let Some(next) = inner.queue.pop_front()
        {
            batch.push(next);
        }
        inner.driving = !batch.is_empty();
        inner.driving
    }
}

/// Proposes until the queue is empty.
async fn drive(shared: Arc<Shared>, proposer: Arc<Proposer>) {
    let mut batch: Vec<Queued> = Vec::new();
    let mut failures = 0;
    let mut why = Unavailability::NoQuorum;
    // When the batch that is worked on was begun, or what came before it was done.
    let mut since = shared.env.now();
    while proposer.fill(&mut batch) {
        let now = shared.env.now();
        for late in batch.extract_if(.., |queued| queued.ends(&shared.options) <= now) {
            late.fail(why);
        }
        if batch.is_empty() {
            continue;
        }
        shared.env.race_point("in-place.propose.batch").await;
        let Err(setback) = write::attempt(&shared, &proposer, &mut batch, why).await else {
            (failures, why, since) = (0, Unavailability::NoQuorum, shared.env.now());
            continue;
        };
        match setback {
            Setback::VoteRefused if mutant(mutants::IN_PLACE_T3) => {
                // "A refusal is a failure": the other half of this bug.
                for queued in batch.drain(..) {
                    queued.done.complete(Err(Failure::No(Unavailability::NoQuorum)));
                }
                continue;
            }
            // Waiting makes no room. Callers that have something else to do should learn of it at once.
            Setback::Full => {
                for queued in batch.drain(..) {
                    match queued.named.floor {
                        None => queued.done.complete(Err(Failure::Full)),
                        Some(_) => queued.fail(Unavailability::DiskFull),
                    }
                }
                continue;
            }
            // Waiting makes no room, and brings nothing back.
            Setback::Short(reason)
                if matches!(
                    reason,
                    Unavailability::DiskFull | Unavailability::LostMajority | Unavailability::Gone
                ) =>
            {
                batch.drain(..).for_each(|queued| queued.fail(reason));
                continue;
            }
            Setback::Created => {
                hit("in-place.propose.created");
                continue;
            }
            Setback::Short(reason) => why = reason,
            Setback::Contended | Setback::VoteRefused => why = Unavailability::NoQuorum,
        }
        failures += 1;
        let gives_way = shared.gives_way(&proposer.group, &proposer.key);
        if matches!(setback, Setback::Contended | Setback::VoteRefused) {
            let waited = shared.env.now().since(since);
            shared.give_time(failures, proposer.haste(), gives_way, waited).await;
            proposer.start_afresh();
        } else {
            // A named ballot may be promised where a new key finds no room for an incremental prepare.
            shared.back_off(failures, gives_way).await;
        }
    }
}

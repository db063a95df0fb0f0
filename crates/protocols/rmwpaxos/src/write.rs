//! `write` (§4, rmw-P1 to rmw-W9): one attempt to get a batch of commands chosen.

use std::collections::BTreeMap;

use atoll_contract::Written;
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};
use bytes::Bytes;

use crate::mutants;

use super::ballot::Ballot;
use super::group::GroupConfig;
use super::invariants;
use super::message::{Mode, Prep, PrepAnswer, PrepReply, Write, WriteAnswer, WriteReply};
use super::proposer::{Proposer, Queued, Token};
use super::registers::Shared;
use super::round::{Answers, RoundStep, Setback, ask, learn, to_all};
use super::state::{Command, CommandOutcome, RegisterState};

/// The basis of an attempt.
struct Base {
    /// The only ballot that phase 2 may use (rmw-T6).
    ballot: Ballot,
    /// The state to build on.
    base: RegisterState,
    /// The ballot in which the base was chosen; None if it is not known to be chosen.
    chosen: Option<Ballot>,
    /// Whether phase 1 of this attempt began after the commands arrived, so that the base may be shown to them (rmw-T8).
    fresh: bool,
}

/// One attempt at one register of one group.
struct Attempt<'a> {
    shared: &'a Shared,
    proposer: &'a Proposer,
    group: &'a GroupConfig,
    /// Whether the attempt belongs to a hand-over, and therefore passes the fence.
    moving: bool,
    /// The latest time until which this attempt waits for a message. By then, the last of its callers has given up.
    deadline: Tick,
}

/// Makes one attempt. On success, every command of the batch was answered and the batch is empty; otherwise the batch still holds the
/// commands that must be tried again.
pub(super) async fn attempt(
    shared: &Shared,
    proposer: &Proposer,
    group: &GroupConfig,
    batch: &mut Vec<Queued>,
) -> Result<(), Setback> {
    let moving = batch.iter().any(Queued::is_move);
    let deadline = batch.iter().map(|q| q.deadline).max().unwrap_or_default();
    let attempt = Attempt { shared, proposer, group, moving, deadline };
    let mut ground = match proposer.take_token(group) {
        Some(t) => {
            hit("rmw.write.token");
            Base { ballot: t.ballot, base: t.base, chosen: Some(t.chosen), fresh: false }
        }
        None => attempt.prepare().await?,
    };
    loop {
        // A hand-over builds on the highest vote even if it is not known to be chosen: the fence rules out writing it through, and the
        // next value is either chosen together with it or not at all.
        if ground.chosen.is_none() && !moving {
            ground = attempt.write_through(ground).await?;
        }
        // No state follows a final one, and no operation is answered from it: the next group decides (§9a).
        if let (Some(next), false) = (&ground.base.moved, moving) {
            return Err(Setback::HandingOver(next.clone()));
        }
        let (state, outcomes) = apply(&ground.base, batch);
        if let (None, Some(chosen)) = (&state, ground.chosen)
            && !denies_exposed(batch, &outcomes, chosen)
        {
            // Failed guards and queries are reads (rmw-W6, rmw-T8). The base of a token may be out of date by now.
            if ground.fresh || attempt.still_chosen(chosen).await? {
                proposer.put_token(attempt.token(ground.ballot, ground.base, chosen));
                answer(batch, outcomes);
                return Ok(());
            }
            hit("rmw.write.stale_token");
            ground = attempt.prepare().await?;
            continue;
        }
        let state = state.unwrap_or_else(|| ground.base.clone());
        attempt.propose(&ground, state, batch, outcomes).await?;
        return Ok(());
    }
}

/// Applies the batch in order (rmw-W5). Returns the new state if anything changed, and the outcome of each command.
fn apply(base: &RegisterState, batch: &mut [Queued]) -> (Option<RegisterState>, Vec<(CommandOutcome, bool)>) {
    let mut state: Option<RegisterState> = None;
    let mut outcomes = Vec::with_capacity(batch.len());
    for queued in batch {
        let (next, outcome) = queued.command.apply(state.as_ref().unwrap_or(base));
        outcomes.push((outcome, next.is_some()));
        state = next.or(state);
    }
    (state, outcomes)
}

/// Returns whether an outcome denies a write that an acceptor may have voted for in a ballot above that of the base. Such a vote can still
/// win, and then the write happens after its caller was told that it did not. The base has to be chosen again, in a ballot above that vote
/// (rmw-T8).
fn denies_exposed(batch: &[Queued], outcomes: &[(CommandOutcome, bool)], chosen: Ballot) -> bool {
    let exposed = batch.iter().zip(outcomes).any(|(queued, (outcome, _))| {
        matches!(outcome, CommandOutcome::Written(Written::Conflict(_))) && queued.exposed > Some(chosen)
    });
    if exposed {
        hit("rmw.write.denies_exposed");
    }
    exposed && !mutant(mutants::RMW_DENIES)
}

fn answer(batch: &mut Vec<Queued>, outcomes: Vec<(CommandOutcome, bool)>) {
    for (queued, (outcome, _)) in batch.drain(..).zip(outcomes) {
        queued.answer(outcome);
    }
}

impl Attempt<'_> {
    fn until(&self) -> Tick {
        self.deadline.min(self.shared.env.now().after(self.shared.options.reply_timeout))
    }

    fn token(&self, ballot: Ballot, base: RegisterState, chosen: Ballot) -> Token {
        Token { epoch: self.group.epoch, ballot, base, chosen }
    }

    async fn prep(
        &self,
        mode: Mode,
        judge: impl FnMut(&Answers<PrepReply>) -> RoundStep,
    ) -> (Answers<PrepReply>, Option<Setback>) {
        let Shared { env, options, .. } = self.shared;
        let request = self.proposer.next_prepare();
        let requests = to_all(self.group, |to| Prep {
            to,
            name: self.proposer.name.clone(),
            request,
            pid: self.proposer.pid,
            mode: mode.clone(),
            moving: self.moving,
        });
        let answers = ask(env, requests, self.until(), options.grace, judge).await;
        let setback = learn(self.shared, self.group, &answers);
        (answers, setback)
    }

    /// Gets a majority to promise one ballot, and evaluates its votes (rmw-P1, rmw-P2, rmw-W3).
    async fn prepare(&self) -> Result<Base, Setback> {
        let majority = self.group.majority();
        let mut last = Setback::NoQuorum;
        // Incremental prepares disagree under contention, so name the ballot after the first disagreement (rmw-T13).
        for _ in 0..2 {
            let floor = self.proposer.floor();
            let explicit = Ballot { n: floor + 1, pid: self.proposer.pid };
            let mode = if floor == 0 { Mode::Incremental {} } else { Mode::Explicit { ballot: explicit } };
            let incremental = floor == 0;
            let (answers, setback) = self
                .prep(mode, |answers| {
                    let (acks, agreed) = (promises(answers).count(), agreed(answers).1);
                    let nacked = answers.taken().count() > acks;
                    match () {
                        () if agreed >= majority || answers.elsewhere() => RoundStep::Done,
                        () if answers.hopeless(agreed, majority) => RoundStep::Done,
                        () if nacked || acks >= majority => RoundStep::Soon,
                        () => RoundStep::Wait,
                    }
                })
                .await;
            if setback == Some(Setback::Full) || (setback.is_none() && answers.lack_room(majority)) {
                // The register is new only to the acceptors that are full if another one has voted for it. They take a named ballot.
                if !incremental || !is_known(&answers) {
                    return Err(Setback::Full);
                }
                hit("rmw.write.missed_by_full");
                self.proposer.raise_floor(highest_seen(&answers).n);
                last = Setback::Full;
                continue;
            }
            if let Some(setback) = setback {
                return Err(setback);
            }
            let (ballot, count) = agreed(&answers);
            if count >= majority {
                return self.judge_base(&answers, ballot, count);
            }
            let seen = highest_seen(&answers);
            self.proposer.raise_floor(seen.n);
            let replied = answers.taken().count();
            last = if replied >= majority { Setback::Contended } else { Setback::NoQuorum };
            if !incremental || replied < majority {
                break;
            }
            hit("rmw.write.incremental_disagrees");
        }
        Err(last)
    }

    /// Determines the base from the votes of the quorum (rmw-W3): if all have the same vote, that vote is chosen; otherwise the highest
    /// vote may be.
    fn judge_base(
        &self,
        answers: &Answers<PrepReply>,
        ballot: Ballot,
        count: usize,
    ) -> Result<Base, Setback> {
        invariants::phase_two(ballot, count, self.group.majority());
        let quorum: Vec<(Ballot, &Bytes)> = promises(answers)
            .filter(|(b, ..)| *b == ballot)
            .map(|(_, voted, state)| (voted, state))
            .collect();
        let Some((highest, state)) = quorum.iter().max_by_key(|(voted, _)| *voted) else {
            return Err(Setback::NoQuorum);
        };
        // A state that cannot be decoded was written by a newer version, so this node must not overwrite it.
        let base = RegisterState::read(state).map_err(|_| Setback::NoQuorum)?;
        let agree = if mutant(mutants::RMW_T1) {
            quorum.iter().all(|(_, s)| RegisterState::read(s).is_ok_and(|s| s.value == base.value))
        } else {
            // rmw-T1: compare ballots, never values.
            quorum.iter().all(|(voted, _)| voted == highest)
        };
        let ballot = if mutant(mutants::RMW_T6) {
            Ballot { n: highest_seen(answers).n, pid: self.proposer.pid }
        } else {
            ballot
        };
        Ok(Base { ballot, base, chosen: agree.then_some(*highest), fresh: true })
    }

    /// Writes the highest vote again, unchanged (rmw-W4), and continues with the ballot that was promised with it, without another phase
    /// 1.
    async fn write_through(&self, ground: Base) -> Result<Base, Setback> {
        hit("rmw.write.through");
        self.vote(ground.ballot, &ground.base, true).await?;
        Ok(Base { ballot: ground.ballot.next(), chosen: Some(ground.ballot), ..ground })
    }

    /// Gets the new state chosen, answers the commands, and keeps the token (rmw-W7 to rmw-W9).
    async fn propose(
        &self,
        ground: &Base,
        state: RegisterState,
        batch: &mut Vec<Queued>,
        outcomes: Vec<(CommandOutcome, bool)>,
    ) -> Result<(), Setback> {
        let mut mutations = 0;
        for (queued, (_, changes)) in batch.iter_mut().zip(&outcomes) {
            if *changes {
                queued.exposed = Some(ground.ballot);
            }
            mutations += u64::from(*changes && matches!(queued.command, Command::WriteIf { .. }));
        }
        invariants::version_rises(&self.proposer.name, ground.base.version, state.version, mutations);
        self.vote(ground.ballot, &state, state == ground.base).await?;
        // No state follows a final one.
        if state.moved.is_none() {
            self.proposer.put_token(self.token(ground.ballot.next(), state, ground.ballot));
        }
        answer(batch, outcomes);
        Ok(())
    }

    /// Sends phase 2 to all acceptors. With a majority of votes, the state is chosen; otherwise it is unknown whether it will be chosen
    /// (rmw-W9).
    async fn vote(&self, ballot: Ballot, state: &RegisterState, through: bool) -> Result<(), Setback> {
        let majority = self.group.majority();
        let bytes = state.written();
        let requests = to_all(self.group, |to| Write {
            to,
            name: self.proposer.name.clone(),
            ballot,
            through,
            last: state.moved.is_some(),
            state: bytes.clone(),
        });
        // This ballot is used up, whatever the outcome.
        let used_up = ballot.next().n;
        let Shared { env, options, .. } = self.shared;
        let answers = ask(env, requests, self.until(), options.grace, |answers| {
            let (acks, nacks) = votes(answers);
            match () {
                () if acks >= majority || answers.elsewhere() || answers.hopeless(acks, majority) => {
                    RoundStep::Done
                }
                () if nacks > 0 => RoundStep::Soon,
                () => RoundStep::Wait,
            }
        })
        .await;
        let (acks, nacks) = votes(&answers);
        if acks >= majority {
            return Ok(());
        }
        self.proposer.raise_floor(used_up);
        for reply in answers.taken() {
            if let WriteAnswer::Nack { promised, .. } = &reply.answer {
                self.proposer.raise_floor(promised.n);
            }
        }
        hit(if nacks > 0 { "rmw.write.nacked" } else { "rmw.write.timed_out" });
        let setback = learn(self.shared, self.group, &answers);
        Err(setback.unwrap_or(if nacks > 0 { Setback::VoteRefused } else { Setback::NoQuorum }))
    }

    /// Returns whether a majority, asked now, still shows the vote that chose the base of the token (rmw-T8).
    async fn still_chosen(&self, chosen: Ballot) -> Result<bool, Setback> {
        let majority = self.group.majority();
        let same = |answers: &Answers<PrepReply>| {
            answers
                .taken()
                .filter(|r| matches!(r.answer, PrepAnswer::Ack { voted, .. } if voted == chosen))
                .count()
        };
        let (answers, setback) = self
            .prep(Mode::ReadOnly {}, |answers| {
                let same = same(answers);
                let over = same >= majority || answers.hopeless(same, majority) || answers.elsewhere();
                if over { RoundStep::Done } else { RoundStep::Wait }
            })
            .await;
        match setback {
            Some(setback) => Err(setback),
            None => Ok(same(&answers) >= majority),
        }
    }
}

/// Returns the promises of a round: ballot, vote and state of each.
fn promises(answers: &Answers<PrepReply>) -> impl Iterator<Item = (Ballot, Ballot, &Bytes)> {
    answers.taken().filter_map(|r| match &r.answer {
        PrepAnswer::Ack { ballot: Some(ballot), voted } => Some((*ballot, *voted, &r.state)),
        _ => None,
    })
}

/// Returns the ballot that most acceptors promised, and how many did.
fn agreed(answers: &Answers<PrepReply>) -> (Ballot, usize) {
    let mut counts: BTreeMap<Ballot, usize> = BTreeMap::new();
    for (ballot, ..) in promises(answers) {
        *counts.entry(ballot).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(ballot, n)| (*n, *ballot)).unwrap_or((Ballot::ZERO, 0))
}

/// Returns whether an acceptor has voted for the register.
fn is_known(answers: &Answers<PrepReply>) -> bool {
    answers.taken().any(|r| matches!(r.answer, PrepAnswer::Ack { voted, .. } if voted != Ballot::ZERO))
}

fn highest_seen(answers: &Answers<PrepReply>) -> Ballot {
    let ballots = answers.taken().map(|r| match &r.answer {
        PrepAnswer::Ack { ballot, voted } => ballot.unwrap_or(Ballot::ZERO).max(*voted),
        PrepAnswer::Nack { promised } => *promised,
        PrepAnswer::Rejected { .. } => Ballot::ZERO,
    });
    ballots.max().unwrap_or(Ballot::ZERO)
}

fn votes(answers: &Answers<WriteReply>) -> (usize, usize) {
    let acks = answers.taken().filter(|r| matches!(r.answer, WriteAnswer::Ack { .. })).count();
    (acks, answers.taken().count() - acks)
}

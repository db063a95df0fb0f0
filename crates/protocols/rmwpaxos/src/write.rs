//! `write` (§4, rmw-P1–rmw-W9): one attempt to get a batch of commands chosen.

use std::collections::BTreeMap;

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
struct Ground {
    /// The ballot for phase 2, and the only one (rmw-T6).
    ballot: Ballot,
    /// The state to build on.
    base: RegisterState,
    /// The ballot that chose the base; None if the base may not be chosen.
    chosen: Option<Ballot>,
    /// Phase 1 of this attempt began after the commands arrived, so the base may be shown to them (rmw-T8).
    fresh: bool,
}

/// One attempt at one register of one group.
struct Attempt<'a> {
    shared: &'a Shared,
    proposer: &'a Proposer,
    group: &'a GroupConfig,
    /// The attempt belongs to a hand-over, and passes the fence.
    moving: bool,
    /// No message of this attempt is awaited longer than this: by then, the last of its callers has gone.
    deadline: Tick,
}

/// Tries once. On success, every command of the batch was answered and the batch is empty; otherwise it still holds the
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
            Ground { ballot: t.ballot, base: t.base, chosen: Some(t.chosen), fresh: false }
        }
        None => attempt.prepare().await?,
    };
    loop {
        // A move builds on the highest vote whether or not it is chosen: the fence rules out writing it through, and the
        // next value is either chosen together with it or not at all.
        if ground.chosen.is_none() && !moving {
            ground = attempt.write_through(ground).await?;
        }
        // Nothing follows a final state, and no operation gets its answer from it: the next group decides (§9a).
        if let (Some(next), false) = (&ground.base.moved, moving) {
            return Err(Setback::HandingOver(next.clone()));
        }
        let (state, outcomes) = apply(&ground.base, batch);
        if let (None, Some(chosen)) = (&state, ground.chosen) {
            // rmw-W6, rmw-T8: failed guards and queries are reads. A token's base may be out of date by now.
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

/// rmw-W5: applies the batch in order. Returns the new state if anything changed, and the outcome of each command.
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
    ) -> Result<Answers<PrepReply>, Setback> {
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
        match learn(self.shared, self.group, &answers) {
            Some(setback) => Err(setback),
            None => Ok(answers),
        }
    }

    /// rmw-P1–rmw-P2 and rmw-W3: gets a majority to promise one ballot, and judges its votes.
    async fn prepare(&self) -> Result<Ground, Setback> {
        let majority = self.group.majority();
        let mut last = Setback::NoQuorum;
        // rmw-T13: incremental prepares disagree under contention, so after the first disagreement, name the ballot.
        for _ in 0..2 {
            let floor = self.proposer.floor();
            let explicit = Ballot { n: floor + 1, pid: self.proposer.pid };
            let mode = if floor == 0 { Mode::Incremental {} } else { Mode::Explicit { ballot: explicit } };
            let incremental = floor == 0;
            let answers = self
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
                .await?;
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

    /// rmw-W3: if the quorum agrees on its vote, that vote is chosen; otherwise its highest vote may be.
    fn judge_base(
        &self,
        answers: &Answers<PrepReply>,
        ballot: Ballot,
        count: usize,
    ) -> Result<Ground, Setback> {
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
        Ok(Ground { ballot, base, chosen: agree.then_some(*highest), fresh: true })
    }

    /// rmw-W4: writes the highest vote again, unchanged, and continues with the ballot promised along with it: no new phase 1.
    async fn write_through(&self, ground: Ground) -> Result<Ground, Setback> {
        hit("rmw.write.through");
        self.vote(ground.ballot, &ground.base, true).await?;
        Ok(Ground { ballot: ground.ballot.next(), chosen: Some(ground.ballot), ..ground })
    }

    /// rmw-W7–rmw-W9: gets the new state chosen, answers, and keeps the token.
    async fn propose(
        &self,
        ground: &Ground,
        state: RegisterState,
        batch: &mut Vec<Queued>,
        outcomes: Vec<(CommandOutcome, bool)>,
    ) -> Result<(), Setback> {
        let mut mutations = 0;
        for (queued, (_, changes)) in batch.iter_mut().zip(&outcomes) {
            queued.exposed |= changes;
            mutations += u64::from(*changes && matches!(queued.command, Command::WriteIf { .. }));
        }
        invariants::version_rises(&self.proposer.name, ground.base.version, state.version, mutations);
        self.vote(ground.ballot, &state, state == ground.base).await?;
        // Nothing follows a final state.
        if state.moved.is_none() {
            self.proposer.put_token(self.token(ground.ballot.next(), state, ground.ballot));
        }
        answer(batch, outcomes);
        Ok(())
    }

    /// Phase 2 to all acceptors; a majority of votes means "chosen". Otherwise, it is unknown whether the value will be chosen (rmw-W9).
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
        // Whatever the outcome, this ballot is used up.
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

    /// rmw-T8 (iii): a majority, asked now, still shows the vote that chose the token's base.
    async fn still_chosen(&self, chosen: Ballot) -> Result<bool, Setback> {
        let majority = self.group.majority();
        let same = |answers: &Answers<PrepReply>| {
            answers
                .taken()
                .filter(|r| matches!(r.answer, PrepAnswer::Ack { voted, .. } if voted == chosen))
                .count()
        };
        let answers = self
            .prep(Mode::ReadOnly {}, |answers| {
                let same = same(answers);
                let over = same >= majority || answers.hopeless(same, majority) || answers.elsewhere();
                if over { RoundStep::Done } else { RoundStep::Wait }
            })
            .await?;
        Ok(same(&answers) >= majority)
    }
}

/// The promises of a round: ballot, vote, state.
fn promises(answers: &Answers<PrepReply>) -> impl Iterator<Item = (Ballot, Ballot, &Bytes)> {
    answers.taken().filter_map(|r| match &r.answer {
        PrepAnswer::Ack { ballot: Some(ballot), voted } => Some((*ballot, *voted, &r.state)),
        _ => None,
    })
}

/// The ballot that most acceptors promised, and how many did.
fn agreed(answers: &Answers<PrepReply>) -> (Ballot, usize) {
    let mut counts: BTreeMap<Ballot, usize> = BTreeMap::new();
    for (ballot, ..) in promises(answers) {
        *counts.entry(ballot).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(ballot, n)| (*n, *ballot)).unwrap_or((Ballot::ZERO, 0))
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

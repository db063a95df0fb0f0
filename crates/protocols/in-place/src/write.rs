//! One attempt to get a batch of commands chosen (§4, rmw-P1 to rmw-W9).

use std::sync::Arc;

use atoll_contract::keyspace::Unavailability;
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};

use crate::ballot::Ballot;
use crate::command::Reply;
use crate::forget;
use crate::invariants;
use crate::message::{Mode, Step};
use crate::mutants;
use crate::proposer::{Proposer, Queued, Token};
use crate::round::{Progress, Round, Setback, Shown, ask, learn};
use crate::space::Shared;
use crate::state::KeyState;

/// The basis of an attempt.
struct Base {
    /// The only ballot that phase 2 may use (rmw-T6).
    ballot: Ballot,
    /// The state to build on.
    base: KeyState,
    /// The ballot in which the base was chosen; None if it is not known to be chosen.
    chosen: Option<Ballot>,
    /// Whether phase 1 of this attempt began after the commands had arrived, so that the base may be shown to them (rmw-T8).
    fresh: bool,
}

struct Attempt<'a> {
    shared: &'a Arc<Shared>,
    proposer: &'a Arc<Proposer>,
    /// The time until which this attempt waits for a message: by then, the last of its callers has given up.
    deadline: Tick,
}

/// Makes one attempt. On success every command was answered, and the batch is empty. Otherwise it holds the commands to try again.
/// Commands whose deadline has passed fail with `why`.
pub(crate) async fn attempt(
    shared: &Arc<Shared>,
    proposer: &Arc<Proposer>,
    batch: &mut Vec<Queued>,
    why: Unavailability,
) -> Result<(), Setback> {
    let deadline = batch.iter().map(|queued| queued.ends(&shared.options)).max().unwrap_or_default();
    let attempt = Attempt { shared, proposer, deadline };
    let mut ground = match proposer.take_token() {
        Some(Token { ballot, base, chosen }) => {
            hit("in-place.write.token");
            shared.env.race_point("in-place.write.with_token").await;
            Base { ballot, base, chosen: Some(chosen), fresh: false }
        }
        None => attempt.prepare().await?,
    };
    loop {
        if ground.chosen.is_none() {
            ground = attempt.write_through(ground).await?;
        }
        shared.env.race_point("in-place.write.base").await;
        proposer.saw_clock(ground.base.clock);
        if let Some(chosen) = ground.chosen {
            settle(&ground.base, chosen, batch, (shared.env.now(), why));
        }
        let (state, replies) = apply(&ground.base, batch);
        let (Some(chosen), None) = (ground.chosen, &state) else {
            let Some(state) = state else { continue };
            return attempt.propose(&ground, state, batch, replies).await;
        };
        // Refusals and queries are reads (rmw-W6, rmw-T8). The base of a token may be out of date.
        if ground.fresh || mutant(mutants::IN_PLACE_T8) || attempt.still_chosen(chosen).await? {
            proposer.put_token(Token { ballot: ground.ballot, base: ground.base, chosen });
            answer(batch, replies);
            return Ok(());
        }
        hit("in-place.write.stale_token");
        ground = attempt.prepare().await?;
    }
}

/// Answers the commands that need no other proposal, and those that must not have one because their deadline has passed.
fn settle(base: &KeyState, chosen: Ballot, batch: &mut Vec<Queued>, (now, why): (Tick, Unavailability)) {
    for mut queued in std::mem::take(batch) {
        match queued.settle(base, chosen) {
            Some(reply) => queued.answer(reply),
            None if queued.deadline <= now && base.outcome_of(queued.named.op).is_none() => queued.fail(why),
            None => batch.push(queued),
        }
    }
}

/// Applies the batch in order (rmw-W5). Returns the new state if there is one, and the reply to each command.
fn apply(base: &KeyState, batch: &[Queued]) -> (Option<KeyState>, Vec<(Reply, bool)>) {
    let mut state: Option<KeyState> = None;
    let mut replies = Vec::with_capacity(batch.len());
    for queued in batch {
        let (next, reply) = queued.named.apply(state.as_ref().unwrap_or(base));
        replies.push((reply, next.is_some()));
        state = next.or(state);
    }
    (state, replies)
}

fn answer(batch: &mut Vec<Queued>, replies: Vec<(Reply, bool)>) {
    for (queued, (reply, _)) in batch.drain(..).zip(replies) {
        queued.answer(reply);
    }
}

impl Attempt<'_> {
    fn until(&self) -> Tick {
        self.deadline.min(self.shared.env.now().after(self.shared.options.reply_timeout))
    }

    async fn ask(&self, step: &Step, judge: impl FnMut(&Round) -> Progress) -> Round {
        ask(self.shared, &self.proposer.group, &self.proposer.key, step, self.until(), judge).await
    }

    async fn prep(&self, mode: Mode, judge: impl FnMut(&Round) -> Progress) -> Round {
        let request = self.proposer.next_prepare();
        self.ask(&Step::Prep { pid: self.proposer.pid, request, mode }, judge).await
    }

    /// Gets a majority to promise one ballot, and judges its votes (rmw-P1, rmw-P2, rmw-W3).
    async fn prepare(&self) -> Result<Base, Setback> {
        let majority = self.proposer.group.majority();
        // Incremental prepares disagree under contention, so name the ballot after the first disagreement (rmw-T13).
        loop {
            let named = self.proposer.names();
            let mode = named.map_or(Mode::Incremental {}, |ballot| Mode::Explicit { ballot });
            let round = self
                .prep(mode, |round| {
                    let (acks, agreed) = (round.shown().count(), round.agreed().1);
                    let nacked = round.taken().count() > acks;
                    match () {
                        () if agreed >= majority || round.hopeless(agreed, majority) => Progress::Done,
                        () if nacked || acks >= majority => Progress::Soon,
                        () => Progress::Wait,
                    }
                })
                .await;
            let (ballot, count) = round.agreed();
            if count >= majority {
                invariants::phase_two(ballot, count, majority);
                return self
                    .judge(round.shown().filter(|shown| shown.ballot == Some(ballot)).collect(), ballot);
            }
            self.refused(&round);
            self.proposer.raise_floor(round.highest().n.max(named.map_or(0, |ballot| ballot.n)));
            if let Some(setback) = learn(self.shared, &self.proposer.group, &round) {
                return Err(setback);
            }
            match () {
                // One refusal shows that a rival is there, although the round may have ended before a majority has answered.
                () if named.is_some() && round.votes().1 > 0 => return Err(Setback::Contended),
                () if round.taken().count() < majority => {
                    return Err(Setback::Short(Unavailability::NoQuorum));
                }
                () if named.is_some() => return Err(Setback::Contended),
                () => hit("in-place.write.incremental_disagrees"),
            }
        }
    }

    /// Learns from a round that has failed which rival was faster.
    fn refused(&self, round: &Round) {
        if let Some(rival) = round.rival() {
            self.proposer.overtaken(rival, self.shared.env.now());
        }
    }

    /// Determines the base from the votes of the quorum (rmw-W3): if all have the same vote, it is chosen; otherwise the highest may be.
    fn judge(&self, quorum: Vec<Shown>, ballot: Ballot) -> Result<Base, Setback> {
        // A state that cannot be decoded was written by a newer version of the program, so this node must not overwrite it.
        let unreadable = |_| Setback::Short(Unavailability::StorageFailed);
        let clock = quorum.iter().map(|shown| shown.clock).max().unwrap_or(0);
        let Some(highest) = quorum.iter().max_by_key(|shown| shown.voted) else {
            return Err(Setback::Contended);
        };
        let base = KeyState::read(&highest.state, clock).map_err(unreadable)?;
        self.proposer.overtakes(&base, self.shared.env.now(), &self.shared.options);
        let agree = if mutant(mutants::IN_PLACE_T1) {
            let same = |s: &Shown| KeyState::read(&s.state, clock).is_ok_and(|s| s.content == base.content);
            quorum.iter().all(same)
        } else {
            // rmw-T1: compare ballots, never contents.
            quorum.iter().all(|shown| shown.voted == highest.voted)
        };
        Ok(Base { ballot, base, chosen: agree.then_some(highest.voted), fresh: true })
    }

    /// Writes the highest vote again, unchanged (rmw-W4), and continues with the ballot that was promised with it.
    async fn write_through(&self, ground: Base) -> Result<Base, Setback> {
        hit("in-place.write.through");
        self.vote(ground.ballot, &ground.base, true).await?;
        Ok(Base { ballot: ground.ballot.next(), chosen: Some(ground.ballot), ..ground })
    }

    /// Gets the new state chosen, answers the commands, and keeps the token (rmw-W7 to rmw-W9).
    async fn propose(
        &self,
        ground: &Base,
        mut state: KeyState,
        batch: &mut Vec<Queued>,
        replies: Vec<(Reply, bool)>,
    ) -> Result<(), Setback> {
        let mut recorded = 0;
        for (queued, (reply, changes)) in batch.iter_mut().zip(&replies) {
            if *changes {
                // From now on, the command may happen.
                queued.proposed(ground.ballot, ground.base.clock, reply);
                recorded += 1;
            }
        }
        state.proposed_in(ground.ballot, ground.base.clock);
        invariants::clock_rises(&self.proposer.key, ground.base.clock, state.clock, recorded);
        self.vote(ground.ballot, &state, false).await?;
        self.shared.env.race_point("in-place.write.chosen").await;
        let (ballot, is_tombstone) = (ground.ballot, state.is_tombstone());
        if is_tombstone {
            forget::later(self.shared, self.proposer, ballot, state.written());
        }
        self.proposer.put_token(Token { ballot: ballot.next(), base: state, chosen: ballot });
        answer(batch, replies);
        Ok(())
    }

    /// Sends phase 2 to all acceptors. With a majority of votes, the state is chosen; otherwise nobody knows whether it will be (rmw-W9).
    async fn vote(&self, ballot: Ballot, state: &KeyState, through: bool) -> Result<(), Setback> {
        let majority = self.proposer.group.majority();
        let step = Step::Write { ballot, through, state: state.written() };
        let round = self
            .ask(&step, |round| {
                let (acks, nacks) = round.votes();
                match () {
                    () if acks >= majority || round.hopeless(acks, majority) => Progress::Done,
                    () if nacks > 0 => Progress::Soon,
                    () => Progress::Wait,
                }
            })
            .await;
        let (acks, nacks) = round.votes();
        if acks >= majority {
            return Ok(());
        }
        self.refused(&round);
        // This ballot is used up, whatever the outcome.
        self.proposer.raise_floor(ballot.next().n.max(round.highest().n));
        hit(if nacks > 0 { "in-place.write.nacked" } else { "in-place.write.timed_out" });
        let setback = learn(self.shared, &self.proposer.group, &round);
        let otherwise =
            if nacks > 0 { Setback::VoteRefused } else { Setback::Short(Unavailability::NoQuorum) };
        Err(setback.unwrap_or(otherwise))
    }

    /// Returns whether a majority, asked now, still shows the vote that chose the base of the token (rmw-T8).
    async fn still_chosen(&self, chosen: Ballot) -> Result<bool, Setback> {
        let majority = self.proposer.group.majority();
        let same = |round: &Round| round.shown().filter(|shown| shown.voted == chosen).count();
        let round = self
            .prep(Mode::ReadOnly {}, |round| {
                let same = same(round);
                if same >= majority || round.hopeless(same, majority) {
                    Progress::Done
                } else {
                    Progress::Wait
                }
            })
            .await;
        if same(&round) >= majority {
            return Ok(true);
        }
        match learn(self.shared, &self.proposer.group, &round) {
            Some(setback) => Err(setback),
            None => Ok(false),
        }
    }
}

//! Reads (§4, rmw-R1 to rmw-R4).

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::OpId;
use atoll_contract::keyspace::Unavailability;
use atoll_core::testing::{hit, mutant};
use bytes::Bytes;

use crate::ballot::{Ballot, ProposerId};
use crate::command::{Command, Named, Reply};
use crate::message::{Mode, Step};
use crate::mutants;
use crate::proposer::Failure;
use crate::round::{Progress, Round, Setback, Shown, ask, learn};
use crate::space::Shared;
use crate::state::KeyState;

/// Returns what a key holds: a chosen state that is not older than any state chosen before the call.
pub(crate) async fn read(shared: &Arc<Shared>, key: &Bytes) -> Result<Reply, Unavailability> {
    read_vote(shared, key).await.map(|(reply, _)| reply)
}

/// Like [`read`]. Also returns the ballot in which the state was chosen, if it is known.
pub(crate) async fn read_vote(
    shared: &Arc<Shared>,
    key: &Bytes,
) -> Result<(Reply, Option<Ballot>), Unavailability> {
    let deadline = shared.env.now().after(shared.options.patience);
    let group = shared.group(shared.layout.place(key).shard);
    let majority = group.majority();
    let pid = ProposerId { node: shared.env.node(), life: 0 };
    let (mut highest, mut without_progress, mut failures) = (Ballot::ZERO, 0, 0);
    let mut why = Unavailability::NoQuorum;
    while shared.env.now() < deadline {
        let until = deadline.min(shared.env.now().after(shared.options.reply_timeout));
        // rmw-R1
        let step = Step::Prep { pid, request: 0, mode: Mode::ReadOnly {} };
        let round = ask(shared, &group, key, &step, until, |round| {
            let replied = round.shown().count();
            match () {
                () if agreement(round, majority).is_some() => Progress::Done,
                () if round.hopeless(replied, majority) => Progress::Done,
                // rmw-R3: late answers may still make an agreement.
                () if replied >= majority => Progress::Soon,
                () => Progress::Wait,
            }
        })
        .await;
        shared.env.race_point("in-place.read.collected").await;
        // rmw-R2: what a majority has voted for is chosen, whatever the other answers are.
        if let Some((chosen, state)) = agreement(&round, majority) {
            return Ok((Reply::shows(&state), Some(chosen)));
        }
        match learn(shared, &group, &round) {
            Some(Setback::Created) => continue,
            Some(Setback::Short(reason @ (Unavailability::LostMajority | Unavailability::Gone))) => {
                return Err(reason);
            }
            Some(Setback::Short(reason)) => why = reason,
            _ => {}
        }
        if round.shown().count() >= majority {
            let seen = round.shown().map(|shown| shown.voted).max().unwrap_or_default();
            without_progress = if seen > highest { 0 } else { without_progress + 1 };
            highest = highest.max(seen);
            if without_progress >= shared.options.read_tries {
                // rmw-R4: the proposer of the key settles it, for all its readers at once (rmw-T12).
                hit("in-place.read.establish");
                let named = Named { op: OpId::PAD, command: Command::Get {}, floor: None, repeat: false };
                return match shared.proposer(key).submit(shared, named, deadline).await {
                    Ok(Ok(reply)) => Ok((reply, None)),
                    Ok(Err(Failure::No(why) | Failure::Unknown(why, _))) => Err(why),
                    Ok(Err(Failure::Full)) => Err(Unavailability::DiskFull),
                    Err(_) => Err(Unavailability::Stopping),
                };
            }
        }
        failures += 1;
        shared.back_off(failures, true).await;
    }
    Err(why)
}

/// Returns the state that a majority has voted for in one ballot, and the ballot.
fn agreement(round: &Round, majority: usize) -> Option<(Ballot, KeyState)> {
    let shown: Vec<Shown> = round.shown().collect();
    if mutant(mutants::IN_PLACE_T1) {
        return agreement_by_content(&shown, majority).map(|state| (Ballot::ZERO, state));
    }
    let mut counts: BTreeMap<Ballot, usize> = BTreeMap::new();
    for vote in &shown {
        *counts.entry(vote.voted).or_default() += 1;
    }
    let (agreed, _) = counts.into_iter().find(|(_, n)| *n >= majority)?;
    let same = || shown.iter().filter(|vote| vote.voted == agreed);
    let clock = same().map(|vote| vote.clock).max().unwrap_or(0);
    let state = same().next().and_then(|vote| KeyState::read(&vote.state, clock).ok())?;
    Some((agreed, state))
}

/// Compares contents instead of ballots: the bug of rmw-T1. Equal contents do not prove that there is one vote.
fn agreement_by_content(shown: &[Shown], majority: usize) -> Option<KeyState> {
    let states: Vec<KeyState> =
        shown.iter().filter_map(|vote| KeyState::read(&vote.state, vote.clock).ok()).collect();
    let same = |state: &KeyState| states.iter().filter(|s| s.content == state.content).count();
    states.iter().filter(|state| same(state) >= majority).max_by_key(|state| state.version).cloned()
}

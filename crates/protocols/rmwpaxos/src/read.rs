//! `read` (§4, rmw-R1 to rmw-R4).

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::register::Unavailability;
use atoll_core::Tick;
use atoll_core::testing::{hit, mutant};
use bytes::Bytes;

use crate::mutants;

use super::ballot::Ballot;
use super::message::{Mode, Prep, PrepAnswer, PrepReply};
use super::proposer::{Failure, Proposer};
use super::registers::Shared;
use super::round::{Answers, RoundStep, Setback, ask, learn, to_all};
use super::state::{Command, CommandOutcome, RegisterState};

/// Returns the newest state of a register: a chosen one that is not older than any state chosen before the call.
pub(super) async fn read(
    shared: &Arc<Shared>,
    proposer: &Arc<Proposer>,
    deadline: Tick,
) -> Result<RegisterState, Failure> {
    let mut highest = Ballot::ZERO;
    let mut without_progress = 0;
    let mut failures = 0;
    let mut why = Unavailability::NoQuorum;
    while shared.env.now() < deadline {
        let group = shared.group();
        let majority = group.majority();
        let until = deadline.min(shared.env.now().after(shared.options.reply_timeout));
        // rmw-R1
        let requests = to_all(&group, |to| Prep {
            to,
            name: proposer.name.clone(),
            request: 0,
            pid: proposer.pid,
            mode: Mode::ReadOnly {},
            moving: false,
        });
        let answers = ask(&shared.env, requests, until, shared.options.grace, |answers| {
            let replied = answers.taken().count();
            match () {
                () if agreement(answers, majority).is_some() || answers.elsewhere() => RoundStep::Done,
                () if answers.hopeless(replied, majority) => RoundStep::Done,
                // rmw-R3: late answers may still produce an agreeing majority.
                () if replied >= majority => RoundStep::Soon,
                () => RoundStep::Wait,
            }
        })
        .await;
        // rmw-R2: a state that a majority has voted for is chosen, whatever the other answers are.
        if let Some(bytes) = agreement(&answers, majority) {
            let state = RegisterState::read(bytes).map_err(|_| Failure::No(Unavailability::StorageFailed))?;
            let Some(next) = &state.moved else { return Ok(state) };
            // No operation is answered from a final state (§9a).
            shared.await_hand_over(&group, next).await;
            continue;
        }
        failures += 1;
        match learn(shared, &group, &answers) {
            Some(Setback::NewGroup) => continue,
            Some(Setback::HandingOver(next)) => {
                shared.await_hand_over(&group, &next).await;
                continue;
            }
            Some(Setback::StorageFailed) => why = Unavailability::StorageFailed,
            _ => {}
        }
        if answers.taken().count() >= majority {
            let seen = votes(&answers).map(|(voted, _)| voted).max().unwrap_or_default();
            without_progress = if seen > highest { 0 } else { without_progress + 1 };
            highest = highest.max(seen);
            if without_progress >= shared.options.read_tries {
                return establish(shared, proposer, deadline).await;
            }
        }
        shared.back_off_read(failures).await;
    }
    Err(Failure::No(why))
}

/// Gets the highest vote chosen (rmw-R4). This goes through the proposer's queue, so that all readers of a register share one attempt
/// (rmw-T12).
async fn establish(
    shared: &Arc<Shared>,
    proposer: &Arc<Proposer>,
    deadline: Tick,
) -> Result<RegisterState, Failure> {
    hit("rmw.read.establish");
    match proposer.submit(shared, Command::Query, deadline).await {
        Ok(Ok(CommandOutcome::State(state))) => Ok(state),
        // A query changes nothing, so it had no effect, whatever stopped it.
        Ok(Ok(_)) | Err(_) => Err(Failure::No(Unavailability::Stopping)),
        Ok(Err(Failure::No(why) | Failure::Unknown(why))) => Err(Failure::No(why)),
        Ok(Err(Failure::Overtaken)) => Err(Failure::No(Unavailability::NoQuorum)),
    }
}

fn votes(answers: &Answers<PrepReply>) -> impl Iterator<Item = (Ballot, &Bytes)> {
    answers.taken().filter_map(|r| match &r.answer {
        PrepAnswer::Ack { voted, .. } => Some((*voted, &r.state)),
        _ => None,
    })
}

/// Returns the state that a majority has voted for in one ballot.
fn agreement(answers: &Answers<PrepReply>, majority: usize) -> Option<&Bytes> {
    if mutant(mutants::RMW_T1) {
        return agreement_by_value(answers, majority);
    }
    let mut counts: BTreeMap<Ballot, usize> = BTreeMap::new();
    votes(answers).find_map(|(voted, state)| {
        let n = counts.entry(voted).or_default();
        *n += 1;
        (*n >= majority).then_some(state)
    })
}

/// Compares values instead of ballots: the bug of rmw-T1. Equal values do not prove that there is one vote.
fn agreement_by_value(answers: &Answers<PrepReply>, majority: usize) -> Option<&Bytes> {
    let read = |(_, bytes): (Ballot, _)| -> Option<(RegisterState, &Bytes)> {
        RegisterState::read(bytes).ok().map(|s| (s, bytes))
    };
    let states: Vec<(RegisterState, &Bytes)> = votes(answers).filter_map(read).collect();
    let same = |value: &Bytes| states.iter().filter(|(s, _)| s.value == *value).count();
    states
        .iter()
        .filter(|(s, _)| same(&s.value) >= majority)
        .max_by_key(|(s, _)| s.version)
        .map(|(_, bytes)| *bytes)
}

//! Names of registers (§10): the union of the names that a majority of acceptors holds, in pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_contract::Listed;
use atoll_contract::register::Unavailability;
use atoll_core::Tick;

use super::ballot::Ballot;
use super::group::GroupConfig;
use super::message::{List, ListAnswer, ListReply};
use super::proposer::Failure;
use super::read;
use super::registers::{ROOT, Shared};
use super::round::{Answers, RoundStep, Setback, ask, learn, to_all};

/// A page of names, each with the votes found for it, and where the next page starts.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) names: BTreeMap<String, Vec<Ballot>>,
    /// The name after which the next page starts; None if this was the last page.
    pub(super) after: Option<String>,
}

/// Lists the names of written registers that start with `prefix`, in order. The list is not a snapshot.
pub(super) async fn list(shared: &Arc<Shared>, prefix: &str) -> Result<Vec<Listed>, Failure> {
    let mut written = Vec::new();
    let mut after: Option<String> = None;
    let mut failures = 0;
    let mut deadline = shared.env.now().after(shared.options.deadline);
    while shared.env.now() < deadline {
        let group = shared.group();
        match page(shared, &group, prefix, after.as_deref(), false, deadline).await {
            Ok(page) => {
                let majority = group.majority();
                let fresh = page.names.into_iter().filter(|(n, _)| n != ROOT);
                for (name, votes) in fresh {
                    let chosen = chosen(&votes, majority);
                    if chosen.is_some() || was_written(shared, &name).await? {
                        written.push(Listed { name, mark: chosen.map(|ballot| mark(group.epoch, ballot)) });
                    }
                }
                after = page.after;
                if after.is_none() {
                    return Ok(written);
                }
                deadline = shared.env.now().after(shared.options.deadline);
            }
            Err(Setback::NewGroup) => {}
            Err(Setback::HandingOver(next)) => shared.await_hand_over(&group, &next).await,
            Err(_) => {
                failures += 1;
                shared.back_off(failures).await;
            }
        }
    }
    Err(Failure::No(Unavailability::NoQuorum))
}

/// Returns the vote on which a majority agrees, if any. That vote is chosen, so the register was written.
fn chosen(votes: &[Ballot], majority: usize) -> Option<Ballot> {
    votes.iter().find(|v| votes.iter().filter(|w| w == v).count() >= majority).copied()
}

/// Returns a mark that distinguishes the states of a register: in one epoch, a ballot has one state (rmw-I2), and proposers draw their
/// lives at random.
fn mark(epoch: u64, ballot: Ballot) -> u128 {
    let proposer = ballot.pid.life.0 ^ u64::from(ballot.pid.node.0).rotate_left(32);
    u128::from(proposer) << 64 | u128::from(epoch.rotate_left(40) ^ ballot.n)
}

async fn was_written(shared: &Arc<Shared>, name: &str) -> Result<bool, Failure> {
    let proposer = shared.proposer(name).ok_or(Failure::No(Unavailability::Busy))?;
    let deadline = shared.env.now().after(shared.options.deadline);
    Ok(read::read(shared, &proposer, deadline).await?.version > 0)
}

/// Returns one page of names from a majority; with `moving`, from a majority of fenced acceptors.
pub(super) async fn page(
    shared: &Shared,
    group: &GroupConfig,
    prefix: &str,
    after: Option<&str>,
    moving: bool,
    deadline: Tick,
) -> Result<Page, Setback> {
    let majority = group.majority();
    let until = deadline.min(shared.env.now().after(shared.options.reply_timeout));
    let requests =
        to_all(group, |to| List { to, prefix: prefix.to_owned(), after: after.map(str::to_owned), moving });
    let answers = ask(&shared.env, requests, until, shared.options.grace, |answers| {
        let n = answers.taken().count();
        let over = n >= majority || answers.elsewhere() || answers.hopeless(n, majority);
        if over { RoundStep::Done } else { RoundStep::Wait }
    })
    .await;
    if answers.taken().count() < majority {
        return Err(learn(shared, group, &answers).unwrap_or(Setback::NoQuorum));
    }
    Ok(union(&answers))
}

/// Merges the pages of the acceptors. If an acceptor has more names, those after its last one are unknown, so the merged page ends at the
/// smallest such last name.
fn union(answers: &Answers<ListReply>) -> Page {
    let pages = || {
        answers.taken().filter_map(|r| match &r.answer {
            ListAnswer::Names { names, more } => Some((names, *more)),
            ListAnswer::Rejected { .. } => None,
        })
    };
    let end = pages()
        .filter(|(_, more)| *more)
        .filter_map(|(names, _)| names.last())
        .map(|(n, _)| n)
        .min()
        .cloned();
    let mut page = Page { names: BTreeMap::new(), after: end };
    for (name, voted) in pages().flat_map(|(names, _)| names) {
        if page.after.as_ref().is_none_or(|end| name <= end) {
            page.names.entry(name.clone()).or_default().push(*voted);
        }
    }
    page
}

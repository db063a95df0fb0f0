//! One round of messages to the acceptors of a group, and what their rejections reveal.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Call, CallError, Env, ForRole, NodeId, Tick};

use super::group::{GroupConfig, Member};
use super::message::{Address, MayReject, Open, Reject};
use super::registers::Shared;

/// Whether a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundStep {
    /// Continue until the time-out.
    Wait,
    /// The result will probably not improve: wait only a little longer.
    Soon,
    /// The round is over.
    Done,
}

/// The answers of one round, one slot per member: a member counts once (rmw-T15), and only with its answer to this request (rmw-T14;
/// answers are matched to calls by number).
#[derive(Debug)]
pub(super) struct Answers<T> {
    slots: Vec<(NodeId, Option<Result<T, CallError>>)>,
}

impl<T: MayReject> Answers<T> {
    /// Returns the answers that are not rejections.
    pub(super) fn taken(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|(_, s)| match s {
            Some(Ok(reply)) if reply.rejection().is_none() => Some(reply),
            _ => None,
        })
    }

    /// Returns the rejections, each with the node that sent it.
    pub(super) fn rejections(&self) -> impl Iterator<Item = (NodeId, &Reject)> {
        self.slots.iter().filter_map(|(n, s)| match s {
            Some(Ok(reply)) => reply.rejection().map(|why| (*n, why)),
            _ => None,
        })
    }

    /// Returns whether a majority answered, but only together with acceptors that have no room.
    pub(super) fn lack_room(&self, majority: usize) -> bool {
        let full = self.rejections().filter(|(_, why)| matches!(why, Reject::Full {})).count();
        let taken = self.taken().count();
        taken < majority && taken + full >= majority
    }

    /// Returns the number of members that may still answer.
    pub(super) fn outstanding(&self) -> usize {
        self.slots.iter().filter(|(_, s)| s.is_none()).count()
    }

    /// Returns true if a rejection settles the round: another group holds the registers, or will.
    pub(super) fn elsewhere(&self) -> bool {
        self.rejections().any(|(_, why)| matches!(why, Reject::Moved { .. } | Reject::Fenced { .. }))
    }

    /// Returns true if `good` answers can no longer become `wanted`.
    pub(super) fn hopeless(&self, good: usize, wanted: usize) -> bool {
        good + self.outstanding() < wanted
    }
}

/// Sends a request to each node and collects answers until `judge` ends the round, all nodes have answered, or `until` has passed.
///
/// The requests are queued before this returns.
pub(super) fn ask<R: ForRole, J: FnMut(&Answers<R::Reply>) -> RoundStep>(
    env: &Env,
    requests: Vec<(NodeId, R)>,
    until: Tick,
    grace: Duration,
    mut judge: J,
) -> impl Future<Output = Answers<R::Reply>> + use<R, J>
where
    R::Reply: MayReject,
{
    let env = env.clone();
    let mut answers = Answers { slots: requests.iter().map(|(node, _)| (*node, None)).collect() };
    let mut calls: Vec<Option<Call<R>>> = requests.into_iter().map(|(n, r)| Some(env.call(n, r))).collect();
    let mut end = env.sleep_until(until);
    let mut shortened = false;
    std::future::poll_fn(move |cx| {
        let mut news = false;
        for (call, slot) in calls.iter_mut().zip(&mut answers.slots) {
            if let Some(c) = call
                && let Poll::Ready(answer) = Pin::new(c).poll(cx)
            {
                slot.1 = Some(answer);
                *call = None;
                news = true;
            }
        }
        let verdict = if news { judge(&answers) } else { RoundStep::Wait };
        if verdict == RoundStep::Soon && !shortened {
            shortened = true;
            end = env.sleep_until(until.min(env.now().after(grace)));
        }
        let over = verdict == RoundStep::Done || answers.outstanding() == 0;
        if over || Pin::new(&mut end).poll(cx).is_ready() {
            return Poll::Ready(Answers { slots: std::mem::take(&mut answers.slots) });
        }
        Poll::Pending
    })
}

/// Returns a request to each member of a group, under its own identity (rmw-T9).
pub(super) fn to_all<R>(group: &GroupConfig, make: impl Fn(Address) -> R) -> Vec<(NodeId, R)> {
    let mark = group.mark();
    let address = |m: &Member| Address { epoch: group.epoch, mark, storage: m.storage };
    group.members.iter().map(|m| (m.node, make(address(m)))).collect()
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Setback {
    /// This node learned of a newer group. Continue there at once.
    NewGroup,
    /// The register, or the group, is handing over to this group. Make sure that the hand-over completes.
    HandingOver(GroupConfig),
    /// Another proposer is active. Back off.
    Contended,
    /// A vote was refused, so the outcome of the write is unknown (rmw-W9).
    VoteRefused,
    /// Too few acceptors answered in time.
    NoQuorum,
    /// Without the acceptors that have no room for another register, or for a longer value, there is no majority.
    Full,
    /// The journals of a majority are closed.
    StorageFailed,
}

/// Learns from the rejections of a round: adopts a newer group, and notifies a lagging member that its group serves.
pub(super) fn learn<T: MayReject>(
    shared: &Shared,
    group: &GroupConfig,
    answers: &Answers<T>,
) -> Option<Setback> {
    let mut handing_over = None;
    let (mut full, mut failed) = (0, 0);
    for (node, why) in answers.rejections() {
        match why {
            Reject::Moved { to } => {
                shared.adopt(to);
            }
            Reject::WrongEpoch { known: Some(known) } if known.epoch > group.epoch => {
                shared.adopt(known);
            }
            Reject::WrongEpoch { .. } | Reject::NotOpen {} => help(shared, group, node),
            Reject::Fenced { next } => handing_over = Some(next.clone()),
            Reject::WrongIdentity { .. } => hit("rmw.proposer.wrong_identity"),
            Reject::Full {} => full += 1,
            Reject::StorageFailed {} => failed += 1,
            Reject::Invalid {} => {}
        }
    }
    let blocked = |n: usize| n > group.members.len() - group.majority();
    if shared.group().epoch > group.epoch {
        Some(Setback::NewGroup)
    } else if let Some(next) = handing_over {
        Some(Setback::HandingOver(next))
    } else if blocked(full) {
        Some(Setback::Full)
    } else if blocked(failed) {
        Some(Setback::StorageFailed)
    } else {
        None
    }
}

/// Notifies a member that does not know that its group serves, because the mover died or its message was lost. Any node may do this (§9a,
/// rmw-H6).
fn help(shared: &Shared, group: &GroupConfig, node: NodeId) {
    if let Some(member) = group.members.iter().find(|m| m.node == node) {
        hit("rmw.proposer.opens_laggard");
        drop(shared.env.call(node, Open { storage: member.storage, group: group.clone() }));
    }
}

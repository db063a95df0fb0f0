//! One round of requests to the acceptors of a group, and what their refusals say.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use atoll_contract::keyspace::{Replica, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{NodeId, Tick};
use bytes::Bytes;

use crate::ballot::Ballot;
use crate::message::{Answer, GroupConfig, Reject, Request, Step};
use crate::space::Shared;

/// Whether a round is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Wait for more answers.
    Wait,
    /// The result will probably not improve: wait only a little longer.
    Soon,
    /// The round is over.
    Done,
}

#[derive(Clone, Debug)]
enum Slot {
    Open,
    Silent,
    Got(Answer),
}

/// The answers of one round, one slot for each acceptor: each counts once, and only with its answer to this request (rmw-T14, rmw-T15).
#[derive(Clone, Debug)]
pub(crate) struct Round {
    slots: Vec<(NodeId, Slot)>,
}

/// A vote that an acceptor has shown.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The ballot that it promises.
    pub(crate) ballot: Option<Ballot>,
    /// The ballot of its vote.
    pub(crate) voted: Ballot,
    /// The clock above which a key without a vote begins.
    pub(crate) clock: u64,
    /// The state that it voted for.
    pub(crate) state: Bytes,
}

impl Round {
    /// Returns the answers so far that are not refusals.
    pub(crate) fn taken(&self) -> impl Iterator<Item = &Answer> {
        self.slots.iter().filter_map(|(_, slot)| match slot {
            Slot::Got(Answer::Rejected { .. }) => None,
            Slot::Got(answer) => Some(answer),
            _ => None,
        })
    }

    fn rejections(&self) -> impl Iterator<Item = (NodeId, &Reject)> {
        self.slots.iter().filter_map(|(node, slot)| match slot {
            Slot::Got(Answer::Rejected { why }) => Some((*node, why)),
            _ => None,
        })
    }

    /// Returns the votes that acceptors have shown.
    pub(crate) fn shown(&self) -> impl Iterator<Item = Shown> {
        self.taken().filter_map(|answer| match answer {
            Answer::Promise { ballot, voted, clock, state } => {
                Some(Shown { ballot: *ballot, voted: *voted, clock: *clock, state: state.clone() })
            }
            _ => None,
        })
    }

    /// Returns how many votes were given, and how many were refused for a higher promise.
    pub(crate) fn votes(&self) -> (usize, usize) {
        let count = |is: fn(&&Answer) -> bool| self.taken().filter(is).count();
        (count(|a| matches!(a, Answer::Vote { .. })), count(|a| matches!(a, Answer::Nack { .. })))
    }

    /// Returns how many acceptors may still answer.
    pub(crate) fn open(&self) -> usize {
        self.slots.iter().filter(|(_, slot)| matches!(slot, Slot::Open)).count()
    }

    /// Returns whether `good` answers can no longer become `wanted`.
    pub(crate) fn hopeless(&self, good: usize, wanted: usize) -> bool {
        good + self.open() < wanted
    }

    /// Returns the highest ballot in any answer.
    pub(crate) fn highest(&self) -> Ballot {
        let ballots = self.taken().map(|answer| match answer {
            Answer::Promise { ballot, voted, .. } => ballot.unwrap_or(Ballot::ZERO).max(*voted),
            Answer::Nack { promised, .. } => *promised,
            _ => Ballot::ZERO,
        });
        ballots.max().unwrap_or(Ballot::ZERO)
    }

    /// Returns the ballot for which acceptors have refused something: the highest promise, or the vote that has come with it.
    pub(crate) fn rival(&self) -> Option<Ballot> {
        let ballots = self.taken().filter_map(|answer| match answer {
            Answer::Nack { promised, voted } if voted.next() == *promised => Some(*voted),
            Answer::Nack { promised, .. } => Some(*promised),
            _ => None,
        });
        ballots.max()
    }

    /// Returns the ballot that most acceptors promised, and how many did.
    pub(crate) fn agreed(&self) -> (Ballot, usize) {
        let mut counts: BTreeMap<Ballot, usize> = BTreeMap::new();
        for ballot in self.shown().filter_map(|shown| shown.ballot) {
            *counts.entry(ballot).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(ballot, n)| (*n, *ballot)).unwrap_or((Ballot::ZERO, 0))
    }
}

/// Sends a step to every acceptor of a group, and collects answers until `judge` ends the round, all have answered, or `until` has come.
/// The requests are queued before this returns.
pub(crate) fn ask<J: FnMut(&Round) -> Progress>(
    shared: &Shared,
    group: &GroupConfig,
    key: &Bytes,
    step: &Step,
    until: Tick,
    mut judge: J,
) -> impl Future<Output = Round> + use<J> {
    let env = shared.env.clone();
    let grace = shared.options.grace;
    let request = |replica: &Replica| Request {
        group: group.key,
        identity: replica.identity,
        key: key.clone(),
        step: step.clone(),
    };
    let mut waits: Vec<_> =
        group.replicas.iter().map(|r| Some(shared.courier.send(r.node, request(r)))).collect();
    let mut round = Round { slots: group.replicas.iter().map(|r| (r.node, Slot::Open)).collect() };
    let mut end = env.sleep_until(until);
    let mut shortened = false;
    std::future::poll_fn(move |cx| {
        let mut news = false;
        for (wait, slot) in waits.iter_mut().zip(&mut round.slots) {
            if let Some(ticket) = wait
                && let Poll::Ready(answer) = Pin::new(ticket).poll(cx)
            {
                slot.1 = match answer {
                    Ok(Some(answer)) => Slot::Got(answer),
                    _ => Slot::Silent,
                };
                *wait = None;
                news = true;
            }
        }
        let verdict = if news { judge(&round) } else { Progress::Wait };
        if verdict == Progress::Soon && !shortened {
            shortened = true;
            end = env.sleep_until(until.min(env.now().after(grace)));
        }
        let over = verdict == Progress::Done || round.open() == 0;
        if over || Pin::new(&mut end).poll(cx).is_ready() {
            return Poll::Ready(Round { slots: std::mem::take(&mut round.slots) });
        }
        Poll::Pending
    })
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setback {
    /// Acceptors did not know the group, and know it now. Try again at once.
    Created,
    /// Another proposer is active. Back off.
    Contended,
    /// A vote was refused, so the outcome of the write is unknown (rmw-W9).
    VoteRefused,
    /// Without the acceptors that have no room there is no majority.
    Full,
    /// There is no majority, for this reason.
    Short(Unavailability),
}

/// Learns from the refusals of a round. None if they are no reason for its failure.
pub(crate) fn learn(shared: &Shared, group: &GroupConfig, round: &Round) -> Option<Setback> {
    let (mut room, mut disk, mut failed, mut created) = (0, 0, 0, false);
    let mut sealed = Vec::new();
    for (node, why) in round.rejections() {
        match why {
            Reject::Unknown {} => created = true,
            Reject::WrongIdentity {} => shared.lost(group, node),
            Reject::Dropped {} => return Some(Setback::Short(Unavailability::Gone)),
            Reject::Moved {} => sealed.push(node),
            Reject::Full {} => room += 1,
            Reject::DiskFull {} => disk += 1,
            Reject::StorageFailed {} => failed += 1,
            Reject::Invalid {} | Reject::Busy {} => {}
        }
    }
    let blocked = |n: usize| n > group.replicas.len() - group.majority();
    match () {
        // As long as a majority is not sealed, the others may continue. Of those, the ones that are gone for good count as sealed ones do:
        // what is left chooses nothing here any more, and the seal shows that another group takes over. One that is only silent may return.
        () if blocked(sealed.len()) => Some(Setback::Short(Unavailability::Gone)),
        () if shared.is_lost(group) => Some(Setback::Short(Unavailability::LostMajority)),
        () if !sealed.is_empty() && shared.is_over(group, &sealed) => {
            hit("in-place.round.sealed_and_lost");
            Some(Setback::Short(Unavailability::Gone))
        }
        () if created => Some(Setback::Created),
        () if room > 0 && blocked(room + disk) => Some(Setback::Full),
        () if blocked(disk) => Some(Setback::Short(Unavailability::DiskFull)),
        () if blocked(failed) => Some(Setback::Short(Unavailability::StorageFailed)),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use atoll_contract::keyspace::{Durability, KeyspaceId, Layout, LayoutState, ShardPlacement};
    use atoll_core::{Incarnation, NodeCore};

    use super::*;
    use crate::space::{InPlaceSpace, Options};

    fn space(replicas: u32) -> InPlaceSpace {
        let replicas = (1..=replicas).map(|n| Replica { node: NodeId(n), identity: n.into() }).collect();
        let layout = Layout {
            engine: crate::ENGINE.to_owned(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability: Durability::Disk,
            buckets: 1,
            shards: vec![ShardPlacement { replicas }],
            options: Bytes::new(),
        };
        let env = NodeCore::new(NodeId(9), Incarnation(1), 1).env();
        InPlaceSpace::new(env, layout, Options::default())
    }

    /// What a proposer learns from rounds, each with one letter for each acceptor: it has voted, is sealed (moved), gone (lost), silent,
    /// or has not answered yet.
    fn learns(rounds: &[&str]) -> Option<Setback> {
        let space = space(rounds[0].len() as u32);
        let group = space.0.group(0);
        let mut learned = None;
        for answers in rounds {
            let slot = |letter| match letter {
                'v' => Slot::Got(Answer::Vote { next: Ballot::ZERO }),
                'm' => Slot::Got(Answer::Rejected { why: Reject::Moved {} }),
                'l' => Slot::Got(Answer::Rejected { why: Reject::WrongIdentity {} }),
                's' => Slot::Silent,
                _ => Slot::Open,
            };
            let slots = group.replicas.iter().zip(answers.chars()).map(|(r, letter)| (r.node, slot(letter)));
            learned = learn(&space.0, &group, &Round { slots: slots.collect() });
        }
        learned
    }

    #[test]
    fn sealed_acceptors_count_with_those_that_are_gone_and_not_with_silent_ones() {
        let gone = Some(Setback::Short(Unavailability::Gone));
        let lost = Some(Setback::Short(Unavailability::LostMajority));
        // A majority is sealed.
        assert_eq!(learns(&["mmv"]), gone);
        assert_eq!(learns(&["mms"]), gone);
        // The one that is silent may return, and choose with the other that is not sealed.
        for may_return in ["msv", "mss", "mov", "ssv", "lsv", "lss", "mvv", "lvv"] {
            assert_eq!(learns(&[may_return]), None, "{may_return}");
        }
        // What is left can choose nothing, and a seal shows that another group takes over.
        for over in ["mlv", "mls", "lmo"] {
            assert_eq!(learns(&[over]), gone, "{over}");
        }
        // An acceptor that is gone stays gone, whatever it answers later. One that was sealed is asked again.
        assert_eq!(learns(&["lvv", "smv"]), gone);
        assert_eq!(learns(&["mvv", "slv"]), None);
        // Nobody can seal a majority any more, so no other group takes over.
        assert_eq!(learns(&["mll"]), lost);
        assert_eq!(learns(&["lvv", "vlv"]), lost);
        for (five, learned) in
            [("mlvvv", None), ("mlsvv", None), ("mlmvv", gone), ("mllsv", gone), ("mlllv", lost)]
        {
            assert_eq!(learns(&[five]), learned, "{five}");
        }
    }
}

//! Checks the protocol from outside the nodes: requests and answers as they are sent. Of the protocol, the oracle uses only the messages,
//! the states, and the types in them.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | rmw-I1, rmw-I8 | an answer shows at least what the acceptor had shown before its request was sent; only a tombstone goes that all have voted for |
//! | rmw-I2 | each ballot has one state, in all writes and in all votes that are shown |
//! | rmw-I3, rmw-I4 | a state that is proposed above a chosen ballot contains the commands of the chosen state, with the same clocks |
//! | rmw-I3, hand-over | the state with which a key begins in a group contains what was chosen in the group before it |
//! | rmw-I5 | a command is recorded at one clock of its key |
//! | rmw-I7 | a majority promised the ballot of each write, in answers to a prepare or with votes for the ballot before |
//! | rmw-T9 | no life uses the identity of another one, and no disk that of another one |

use std::collections::{BTreeMap, BTreeSet};

use atoll_contract::OpId;
use atoll_contract::keyspace::{Durability, Replica};
use atoll_contract::testing::{OnWire, Oracle, Violations, Who, digest};
use atoll_core::{Exchange, Message, NodeId};
use bytes::Bytes;

use crate::message::{self as msg, Answer, GroupConfig, GroupKey, Mode, Request, Step};
use crate::roles::ACCEPTOR;
use crate::{Ballot, KeyState};

/// A key of a group.
type Place = (GroupKey, Bytes);
/// A message with requests: its sender and the life of it, the receiver, and the number.
type AskedKey = (NodeId, u64, NodeId, u64);

#[derive(Debug, Default)]
struct Proposal {
    digest: Option<u64>,
    state: Option<KeyState>,
    promises: BTreeSet<u128>,
    votes: BTreeSet<u128>,
    sent: bool,
    chosen: bool,
}

/// What an acceptor has shown of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    promised: Ballot,
    voted: Ballot,
}

#[derive(Debug, Default)]
struct Ghost {
    proposals: BTreeMap<Ballot, Proposal>,
    acceptors: BTreeMap<u128, Shown>,
    /// The highest chosen ballot.
    chosen: Option<Ballot>,
    /// The clock at which each command is recorded in chosen states.
    recorded: BTreeMap<OpId, u64>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct InPlaceOracle {
    configs: BTreeMap<GroupKey, GroupConfig>,
    keys: BTreeMap<Place, Ghost>,
    /// The groups that some proposer has used. One that was copied to and then given up for another may hold what was never chosen.
    used: BTreeSet<GroupKey>,
    /// The requests of each message, with what the acceptor had shown before.
    asked: BTreeMap<AskedKey, Vec<(Request, Shown)>>,
    /// The life and disk that uses each identity.
    users: BTreeMap<(GroupKey, u128), (NodeId, u128)>,
}

impl Oracle for InPlaceOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        let frame = wire.frame();
        match wire.envelope.exchange {
            Exchange::Request(number) if frame.target == ACCEPTOR => match frame.kind {
                msg::Create::KIND => {
                    if let Ok(m) = msg::Create::from_frame(frame.clone()) {
                        m.groups.into_iter().for_each(|config| self.created(config));
                    }
                }
                msg::Seal::KIND => {
                    if let Ok(m) = msg::Seal::from_frame(frame.clone()) {
                        self.created(m.config);
                    }
                }
                msg::Raise::KIND => {
                    if let Ok(m) = msg::Raise::from_frame(frame.clone()) {
                        self.created(m.config);
                    }
                }
                msg::Retire::KIND => {
                    if let Ok(m) = msg::Retire::from_frame(frame.clone()) {
                        self.created(m.config);
                    }
                }
                msg::Ask::KIND => match msg::Ask::from_frame(frame.clone()) {
                    Ok(m) => {
                        let key = (wire.from.node, wire.from.life, wire.to, number);
                        self.asks(key, m, verdict);
                    }
                    Err(e) => verdict.fail(format!("HARNESS: a request does not decode: {e}")),
                },
                _ => {}
            },
            Exchange::Reply(number) if frame.kind == msg::Answers::KIND => {
                let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
                let Some(asked) = self.asked.get(&key).cloned() else { return };
                let Ok(m) = msg::Answers::from_frame(frame.clone()) else { return };
                if m.items.len() != asked.len() {
                    verdict.fail(format!("rmw-T14: {} answers to {} requests", m.items.len(), asked.len()));
                }
                for ((request, before), answer) in asked.iter().zip(&m.items) {
                    self.answer(&wire.from, request, *before, answer, verdict);
                }
            }
            _ => {}
        }
    }
}

impl InPlaceOracle {
    /// An acceptor makes a group when it hears of it first, whichever message that is.
    fn created(&mut self, config: GroupConfig) {
        self.configs.entry(config.key).or_insert(config);
    }

    fn majority(&self, group: GroupKey) -> usize {
        self.configs.get(&group).map_or(usize::MAX, GroupConfig::majority)
    }

    /// Returns the last chosen state of a key in the groups that had its shard before.
    fn chosen_before(&self, (group, key): &Place) -> Option<KeyState> {
        let before = self.keys.iter().filter(|((other, name), ghost)| {
            (other.keyspace, other.shard) == (group.keyspace, group.shard)
                && other.epoch < group.epoch
                && name == key
                && ghost.chosen.is_some()
                && self.used.contains(other)
        });
        let (_, ghost) = before.max_by_key(|((other, _), _)| other.epoch)?;
        ghost.proposals.get(&ghost.chosen?)?.state.clone()
    }

    fn asks(&mut self, asked: AskedKey, m: msg::Ask, verdict: &mut Violations) {
        let mut items = Vec::new();
        for request in m.items {
            let place = (request.group, request.key.clone());
            let majority = self.majority(request.group);
            let former = self.chosen_before(&place);
            let is_copy = matches!(request.step, Step::Write { ballot: Ballot::GENESIS, .. });
            if !is_copy {
                self.used.insert(request.group);
            }
            let ghost = self.keys.entry(place).or_default();
            if let Step::Write { ballot, state, .. } = &request.step {
                ghost.proposed(&request.key, *ballot, state, verdict);
                if is_copy {
                    ghost.check_handed_over(&request.key, former.as_ref(), verdict);
                } else {
                    ghost.check_promised(&request.key, *ballot, majority, verdict);
                }
            }
            let shown = ghost.acceptors.get(&request.identity).copied().unwrap_or_default();
            items.push((request, shown));
        }
        self.asked.insert(asked, items);
    }

    fn answer(
        &mut self,
        who: &Who,
        request: &Request,
        before: Shown,
        answer: &Answer,
        verdict: &mut Violations,
    ) {
        if let Answer::Rejected { .. } = answer {
            return;
        }
        let Some(config) = self.configs.get(&request.group) else {
            return verdict.fail("HARNESS: a group answers that nobody has created");
        };
        let (identity, majority, all) = (request.identity, config.majority(), config.replicas.len());
        let user = match config.durability {
            Durability::Disk => who.storage.0,
            Durability::Memory => u128::from(who.life),
        };
        let first = *self.users.entry((request.group, identity)).or_insert((who.node, user));
        if first != (who.node, user) || !config.has(Replica { node: who.node, identity }) {
            verdict.fail(format!("rmw-T9 identity: node {} answers under the identity of another", who.node));
        }
        let ghost = self.keys.entry((request.group, request.key.clone())).or_default();
        let name = request.key.escape_ascii();
        match answer {
            Answer::Promise { ballot, voted, state, .. } => {
                if *voted < before.voted && !(*voted == Ballot::ZERO && ghost.may_be_gone(before.voted, all))
                {
                    verdict.fail(format!(
                        "rmw-I8 amnesia: an acceptor of key {name} shows the vote {voted} after {}",
                        before.voted
                    ));
                }
                if *voted != Ballot::ZERO {
                    ghost.proposed(&request.key, *voted, state, verdict);
                    ghost.voted(&request.key, *voted, identity, majority, verdict);
                }
                if let Some(ballot) = ballot {
                    if *ballot < before.promised {
                        verdict.fail(format!(
                            "rmw-I1 promise back: an acceptor of key {name} promises {ballot} after {}",
                            before.promised
                        ));
                    }
                    if !matches!(&request.step, Step::Prep { mode: Mode::ReadOnly {}, .. }) {
                        ghost.proposals.entry(*ballot).or_default().promises.insert(identity);
                    }
                }
                ghost.shows(identity, ballot.unwrap_or(Ballot::ZERO), *voted);
            }
            Answer::Vote { next } => {
                let Step::Write { ballot, .. } = &request.step else { return };
                let is_copy = ghost.proposals.get(ballot).is_some_and(|p| p.votes.contains(&identity));
                if !is_copy && *ballot < before.promised {
                    verdict.fail(format!(
                        "rmw-I1 promise broken: an acceptor of key {name} votes for {ballot} after it promised {}",
                        before.promised
                    ));
                }
                ghost.voted(&request.key, *ballot, identity, majority, verdict);
                ghost.shows(identity, *next, *ballot);
            }
            Answer::Nack { promised, voted } => {
                // The answer to the write itself may be lost with its connection, and then nobody has seen this vote.
                if *voted != Ballot::ZERO {
                    ghost.voted(&request.key, *voted, identity, majority, verdict);
                }
                ghost.shows(identity, *promised, *voted);
            }
            Answer::Forgotten {} | Answer::Rejected { .. } => {}
        }
    }
}

impl Ghost {
    fn shows(&mut self, identity: u128, promised: Ballot, voted: Ballot) {
        let shown = self.acceptors.entry(identity).or_default();
        shown.promised = shown.promised.max(promised).max(voted);
        shown.voted = shown.voted.max(voted);
    }

    /// rmw-T11: returns whether a vote may be forgotten: it is a deletion, or older than one, that all acceptors have voted for.
    fn may_be_gone(&self, voted: Ballot, all: usize) -> bool {
        let is_gone =
            |p: &Proposal| p.votes.len() >= all && p.state.as_ref().is_some_and(KeyState::is_tombstone);
        self.proposals.range(voted..).any(|(_, proposal)| is_gone(proposal))
    }

    /// rmw-I2 and rmw-I3: a state is proposed in a ballot, or shown as a vote in it.
    fn proposed(&mut self, key: &Bytes, ballot: Ballot, state: &Bytes, verdict: &mut Violations) {
        let name = key.escape_ascii();
        let proposal = self.proposals.entry(ballot).or_default();
        let content = digest(state);
        if *proposal.digest.get_or_insert(content) != content {
            verdict.fail(format!("rmw-I2 two states: key {name} in ballot {ballot}"));
        }
        if proposal.state.is_none() {
            match KeyState::read(state, 0) {
                Ok(read) => proposal.state = Some(read),
                Err(e) => {
                    return verdict.fail(format!("rmw-I2 unreadable: key {name} in ballot {ballot}: {e}"));
                }
            }
            if let Some(chosen) = self.chosen.filter(|chosen| *chosen < ballot) {
                self.check_follows(key, chosen, ballot, verdict);
            }
        }
    }

    /// A key begins in a group that has taken over its shard.
    fn check_handed_over(&mut self, key: &Bytes, former: Option<&KeyState>, verdict: &mut Violations) {
        let genesis = self.proposals.entry(Ballot::GENESIS).or_default();
        let (Some(former), Some(state), false) = (former, &genesis.state, genesis.sent) else { return };
        genesis.sent = true;
        let lost = former.done.iter().any(|done| done.clock > state.forgotten && !state.done.contains(done));
        if lost || state.clock < former.clock {
            verdict.fail(format!(
                "rmw-I3 lost in a hand-over: key {} begins with clock {} after clock {} was chosen",
                key.escape_ascii(),
                state.clock,
                former.clock
            ));
        }
    }

    /// rmw-I7: a write is sent.
    fn check_promised(&mut self, key: &Bytes, ballot: Ballot, majority: usize, verdict: &mut Violations) {
        let before = Ballot { n: ballot.n.saturating_sub(1), pid: ballot.pid };
        let voted = self.proposals.get(&before).map_or(0, |p| p.votes.len());
        let proposal = self.proposals.entry(ballot).or_default();
        if !proposal.sent && proposal.promises.len().max(voted) < majority {
            verdict.fail(format!(
                "rmw-I7 not promised: key {} is written in {ballot} with {} promises and {voted} votes before it",
                key.escape_ascii(),
                proposal.promises.len()
            ));
        }
        proposal.sent = true;
    }

    /// An acceptor has voted in a ballot.
    fn voted(
        &mut self,
        key: &Bytes,
        ballot: Ballot,
        identity: u128,
        majority: usize,
        verdict: &mut Violations,
    ) {
        let proposal = self.proposals.entry(ballot).or_default();
        proposal.votes.insert(identity);
        if proposal.chosen || proposal.votes.len() < majority {
            return;
        }
        proposal.chosen = true;
        let done = proposal.state.as_ref().map(|state| state.done.clone()).unwrap_or_default();
        for done in done {
            let clock = *self.recorded.entry(done.op).or_insert(done.clock);
            if clock != done.clock {
                verdict.fail(format!(
                    "rmw-I5 twice: key {} has {:?} at the clocks {clock} and {}",
                    key.escape_ascii(),
                    done.op,
                    done.clock
                ));
            }
        }
        self.chosen = self.chosen.max(Some(ballot));
        let later: Vec<Ballot> = self
            .proposals
            .range(ballot..)
            .filter(|(other, p)| **other > ballot && p.state.is_some())
            .map(|(other, _)| *other)
            .collect();
        for other in later {
            self.check_follows(key, ballot, other, verdict);
        }
    }

    /// rmw-I3, rmw-I4: the state of a later proposal contains what was chosen.
    fn check_follows(&self, key: &Bytes, chosen: Ballot, later: Ballot, verdict: &mut Violations) {
        let state = |ballot: Ballot| self.proposals.get(&ballot).and_then(|p| p.state.as_ref());
        let (Some(base), Some(next)) = (state(chosen), state(later)) else { return };
        let lost = base.done.iter().find(|done| done.clock > next.forgotten && !next.done.contains(done));
        let same = next.clock > base.clock || next == base;
        if let Some(done) = lost {
            verdict.fail(format!(
                "rmw-I3 lost: key {} in {later} lacks {:?} at clock {}, which was chosen in {chosen}",
                key.escape_ascii(),
                done.op,
                done.clock
            ));
        } else if !same {
            verdict.fail(format!(
                "rmw-I4 clock: key {} has clock {} in {later} after {} was chosen in {chosen}",
                key.escape_ascii(),
                next.clock,
                base.clock
            ));
        }
    }
}

//! Checks RMWPaxos from outside the nodes: promises and votes as they are synced, proposals as they are sent. Of the
//! protocol, the oracle uses only the messages, the records, the types in them, and the number of the acceptor's role.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | rmw-I1 | the synced promises and votes of each acceptor rise; an answer shows at least what was synced before its request was sent |
//! | rmw-I2 | each ballot has one state, in all Writes and votes |
//! | rmw-I3, rmw-I4 | a state proposed above a chosen ballot contains the writes of the chosen state, with the same versions |
//! | rmw-I7 | a majority promised the ballot of each Write, in answers to Prep or with votes for the ballot before |
//! | rmw-I8, rmw-T9 | only data directories that the group names keep promises and votes |

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use atoll_contract::testing::{Chosen, Group, Member, OnWire, Oracle, Violations, Who, digest};
use atoll_core::{Decode, Exchange, Frame, Lsn, Message, NodeId, Record, RecordKind, RoleKind, StorageId};

use crate::roles::ACCEPTOR;
use crate::{Ballot, GroupConfig, RegisterState, message as msg};

/// Group epoch and name of a register.
type Key = (u64, String);

#[derive(Debug, Default)]
struct Proposal {
    digest: u64,
    state: Option<RegisterState>,
    /// The disks that have voted for it.
    votes: BTreeSet<StorageId>,
    /// The disks that have promised it.
    promises: BTreeSet<StorageId>,
    chosen: bool,
    sent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Acceptor {
    promised: Ballot,
    voted: Ballot,
}

#[derive(Debug, Default)]
struct Ghost {
    proposals: BTreeMap<Ballot, Proposal>,
    acceptors: BTreeMap<StorageId, Acceptor>,
    /// The highest chosen ballot.
    chosen: Option<Ballot>,
}

#[derive(Clone, Debug)]
struct Asked {
    key: Key,
    storage: Option<StorageId>,
    synced: Acceptor,
    ballot: Option<Ballot>,
}

/// All registers of a run.
#[derive(Debug, Default)]
pub(super) struct RmwOracle {
    groups: BTreeMap<u64, GroupConfig>,
    /// The epoch of the newest group that was opened.
    opened: u64,
    registers: BTreeMap<Key, Ghost>,
    asked: BTreeMap<(NodeId, u64, NodeId, u64), Asked>,
    storages: BTreeMap<NodeId, StorageId>,
    chosen: Vec<Chosen>,
    known: BTreeMap<String, u64>,
}

impl Oracle for RmwOracle {
    fn booted(&mut self, who: &Who) {
        self.storages.insert(who.node, who.storage);
    }

    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        match wire.envelope.exchange {
            Exchange::Request(number) => self.request(wire, number, verdict),
            Exchange::Reply(number) => {
                let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
                if let Some(asked) = self.asked.remove(&key) {
                    self.reply(&wire.from, asked, wire.frame(), verdict);
                }
            }
            Exchange::Post => {}
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == ACCEPTOR) {
            if record.kind != RecordKind::Fact {
                continue;
            }
            match msg::Fact::from_bytes(record.head.clone()) {
                Ok(fact) => self.fact(who, fact, &record.payload, verdict),
                Err(e) => verdict.fail(format!("HARNESS: an acceptor's record does not decode: {e}")),
            }
        }
    }

    fn found(&mut self, who: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        if role != ACCEPTOR || state.is_empty() {
            return;
        }
        let Ok(image) = msg::AcceptorImage::from_bytes(state.clone()) else {
            return verdict.fail("HARNESS: an acceptor's checkpoint does not decode");
        };
        for group in image.groups {
            let epoch = group.group.epoch;
            for slot in group.slots {
                let key = (epoch, slot.name);
                let ghost = self.registers.entry(key.clone()).or_default();
                let acceptor = ghost.acceptors.entry(who.storage).or_default();
                acceptor.promised = acceptor.promised.max(slot.promised);
                if slot.voted > acceptor.voted {
                    self.voted(who, key, slot.voted, &slot.state, verdict);
                }
            }
        }
    }

    fn take_chosen(&mut self) -> Vec<Chosen> {
        std::mem::take(&mut self.chosen)
    }

    fn group(&self) -> Option<Group> {
        let group = self.groups.get(&self.opened)?;
        let members = group.members.iter().map(|m| Member { node: m.node, storage: m.storage }).collect();
        Some(Group { epoch: group.epoch, members })
    }

    fn is_handing_over(&self) -> bool {
        self.groups.keys().next_back().is_some_and(|newest| *newest != self.opened)
    }

    fn may_be_handing_over(&self) -> bool {
        let root = self.registers.get(&(self.opened, String::new()));
        let is_move = |p: &Proposal| p.state.as_ref().is_some_and(|s| s.moved.is_some());
        self.is_handing_over() || root.is_some_and(|ghost| ghost.proposals.values().any(is_move))
    }

    /// Returns how many groups took over so far.
    fn reconfigurations(&self) -> u64 {
        (self.groups.len() as u64).saturating_sub(1)
    }
}

impl RmwOracle {
    fn learn(&mut self, group: &GroupConfig, verdict: &mut Violations) {
        match self.groups.get(&group.epoch) {
            Some(other) if other != group => {
                verdict.fail(format!("§9a two groups: epoch {} is {other} and {group}", group.epoch));
            }
            Some(_) => {}
            None => {
                self.groups.insert(group.epoch, group.clone());
            }
        }
    }

    fn fact(&mut self, who: &Who, fact: msg::Fact, payload: &Bytes, verdict: &mut Violations) {
        match fact {
            msg::Fact::First { group } | msg::Fact::Opened { group } => {
                self.learn(&group, verdict);
                self.opened = self.opened.max(group.epoch);
            }
            msg::Fact::Fenced { next, .. } => self.learn(&next, verdict),
            msg::Fact::Installed { group, name } => {
                self.learn(&group, verdict);
                self.voted(who, (group.epoch, name), Ballot::GENESIS, payload, verdict);
            }
            msg::Fact::Promised { epoch, name, ballot } => {
                self.member(who, epoch, "promise", verdict);
                let acceptor = self
                    .registers
                    .entry((epoch, name))
                    .or_default()
                    .acceptors
                    .entry(who.storage)
                    .or_default();
                if ballot < acceptor.promised {
                    verdict.fail(format!(
                        "rmw-I1 promise back: node {} to {ballot} after {}",
                        who.node, acceptor.promised
                    ));
                }
                acceptor.promised = acceptor.promised.max(ballot);
            }
            msg::Fact::Voted { epoch, name, ballot, .. } => {
                self.member(who, epoch, "vote", verdict);
                self.voted(who, (epoch, name), ballot, payload, verdict);
            }
        }
    }

    fn member(&self, who: &Who, epoch: u64, what: &str, verdict: &mut Violations) {
        if let Some(group) = self.groups.get(&epoch)
            && !group.contains(who.node, who.storage)
        {
            verdict.fail(format!(
                "T9/I8 foreign disk: node {} gives a {what} in epoch {epoch} from a data directory that the group does not name",
                who.node
            ));
        }
    }

    fn voted(&mut self, who: &Who, key: Key, ballot: Ballot, payload: &Bytes, verdict: &mut Violations) {
        let ghost = self.registers.entry(key.clone()).or_default();
        let acceptor = ghost.acceptors.entry(who.storage).or_default();
        if ballot < acceptor.voted {
            verdict.fail(format!(
                "rmw-I1 vote back: node {} votes for {ballot} after {}",
                who.node, acceptor.voted
            ));
        }
        acceptor.voted = acceptor.voted.max(ballot);
        acceptor.promised = acceptor.promised.max(ballot.next());
        self.proposed(&key, ballot, payload, "a vote", verdict);
        let majority = self.groups.get(&key.0).map(GroupConfig::majority);
        let Some(ghost) = self.registers.get_mut(&key) else { return };
        let Some(proposal) = ghost.proposals.get_mut(&ballot) else { return };
        proposal.votes.insert(who.storage);
        let Some(majority) = majority else { return };
        if proposal.votes.len() >= majority && !proposal.chosen {
            proposal.chosen = true;
            self.choose(&key, ballot, verdict);
        }
    }

    /// rmw-I2: each ballot has one state.
    fn proposed(&mut self, key: &Key, ballot: Ballot, bytes: &Bytes, what: &str, verdict: &mut Violations) {
        let ghost = self.registers.entry(key.clone()).or_default();
        match ghost.proposals.get(&ballot) {
            Some(p) if p.state.is_some() => {
                if p.digest != digest(bytes) {
                    verdict.fail(format!(
                        "rmw-I2 two states: register {:?} ballot {ballot}: {what} differs from an earlier one",
                        key.1
                    ));
                }
            }
            _ => {
                let proposal = ghost.proposals.entry(ballot).or_default();
                proposal.digest = digest(bytes);
                proposal.state = RegisterState::read(bytes).ok();
                if proposal.state.is_none() {
                    return verdict.fail(format!("HARNESS: a state of {:?} does not decode", key.1));
                }
                if let Some(chosen) = ghost.chosen.filter(|c| *c < ballot) {
                    self.contains(key, chosen, ballot, verdict);
                }
            }
        }
    }

    /// rmw-I3, rmw-I4: the later state has all writes of the chosen state, with the same versions.
    fn contains(&mut self, key: &Key, chosen: Ballot, later: Ballot, verdict: &mut Violations) {
        let Some(ghost) = self.registers.get(key) else { return };
        let state = |b| ghost.proposals.get(&b).and_then(|p| p.state.as_ref());
        let (Some(old), Some(new)) = (state(chosen), state(later)) else { return };
        let lost = if new.version < old.version {
            true
        } else if new.version == old.version {
            old.value != new.value || old.nonces != new.nonces
        } else {
            match old.nonces.last() {
                Some(nonce) => {
                    let remembered = new.version - (new.nonces.len() as u64).min(new.version);
                    old.version > remembered && new.made_by(*nonce) != Some(old.version)
                }
                None => false,
            }
        };
        if lost {
            verdict.fail(format!(
                "rmw-I3 lost update: register {:?}: version {} was chosen at {chosen}, {later} proposes version {} without it",
                key.1, old.version, new.version
            ));
        }
    }

    fn choose(&mut self, key: &Key, ballot: Ballot, verdict: &mut Violations) {
        let Some(ghost) = self.registers.get_mut(key) else { return };
        let later: Vec<Ballot> = ghost
            .proposals
            .range(ballot..)
            .skip(1)
            .filter(|(_, p)| p.state.is_some())
            .map(|(b, _)| *b)
            .collect();
        let newest = ghost.chosen.is_none_or(|c| c < ballot);
        if newest {
            ghost.chosen = Some(ballot);
        }
        if let Some(state) = ghost.proposals.get(&ballot).and_then(|p| p.state.as_ref())
            && state.version > self.known.get(&key.1).copied().unwrap_or(0)
        {
            self.known.insert(key.1.clone(), state.version);
            let chosen = Chosen { name: key.1.clone(), version: state.version, value: state.value.clone() };
            self.chosen.push(chosen);
        }
        for b in later {
            self.contains(key, ballot, b, verdict);
        }
    }

    fn request(&mut self, wire: OnWire<'_>, number: u64, verdict: &mut Violations) {
        let frame = wire.frame();
        let (key, ballot) = match frame.kind {
            msg::Prep::KIND => {
                let Ok(m) = msg::Prep::from_frame(frame.clone()) else { return };
                ((m.to.epoch, m.name), None)
            }
            msg::Write::KIND => {
                let Ok(m) = msg::Write::from_frame(frame.clone()) else { return };
                let key = (m.to.epoch, m.name);
                self.proposed(&key, m.ballot, &m.state, "a Write", verdict);
                self.promised(&key, m.ballot, verdict);
                (key, Some(m.ballot))
            }
            _ => return,
        };
        let storage = self.storages.get(&wire.to).copied();
        let synced =
            storage.and_then(|s| self.registers.get(&key)?.acceptors.get(&s).copied()).unwrap_or_default();
        self.asked.insert(
            (wire.from.node, wire.from.life, wire.to, number),
            Asked { key, storage, synced, ballot },
        );
    }

    /// rmw-I7: a majority has promised the ballot.
    fn promised(&mut self, key: &Key, ballot: Ballot, verdict: &mut Violations) {
        let Some(majority) = self.groups.get(&key.0).map(GroupConfig::majority) else { return };
        let proposal = self.registers.entry(key.clone()).or_default().proposals.entry(ballot).or_default();
        if !proposal.sent && proposal.promises.len() < majority {
            verdict.fail(format!(
                "rmw-I7 not promised: register {:?}: a Write at {ballot}, which {} of at least {majority} have promised",
                key.1,
                proposal.promises.len()
            ));
        }
        proposal.sent = true;
    }

    fn reply(&mut self, who: &Who, asked: Asked, frame: &Frame, verdict: &mut Violations) {
        match frame.kind {
            msg::PrepReply::KIND => {
                let Ok(m) = msg::PrepReply::from_frame(frame.clone()) else { return };
                let (promised, voted) = match m.answer {
                    msg::PrepAnswer::Ack { ballot, voted } => {
                        if let Some(b) = ballot {
                            self.promise(&asked.key, b, who);
                        }
                        (ballot, Some(voted))
                    }
                    msg::PrepAnswer::Nack { promised } => (Some(promised), None),
                    msg::PrepAnswer::Rejected { .. } => return,
                };
                self.compare(who, &asked, promised, voted, verdict);
            }
            msg::WriteReply::KIND => {
                let Ok(m) = msg::WriteReply::from_frame(frame.clone()) else { return };
                match m.answer {
                    msg::WriteAnswer::Ack { next } => {
                        self.promise(&asked.key, next, who);
                        self.acknowledged(who, &asked, verdict);
                    }
                    msg::WriteAnswer::Nack { promised, voted } => {
                        self.compare(who, &asked, Some(promised), Some(voted), verdict);
                    }
                    msg::WriteAnswer::Rejected { .. } => {}
                }
            }
            _ => {}
        }
    }

    fn promise(&mut self, key: &Key, ballot: Ballot, who: &Who) {
        let ghost = self.registers.entry(key.clone()).or_default();
        ghost.proposals.entry(ballot).or_default().promises.insert(who.storage);
    }

    /// X1: an acknowledged vote is durable.
    fn acknowledged(&mut self, who: &Who, asked: &Asked, verdict: &mut Violations) {
        let Some(ballot) = asked.ballot else { return };
        let ghost = self.registers.entry(asked.key.clone()).or_default();
        let voted = ghost.proposals.get(&ballot).is_some_and(|p| p.votes.contains(&who.storage));
        if !voted {
            verdict.fail(format!(
                "X1, rmw-I8 acknowledged before it was synced: node {} acknowledges {ballot} of {:?}",
                who.node, asked.key.1
            ));
        }
    }

    fn compare(
        &mut self,
        who: &Who,
        asked: &Asked,
        promised: Option<Ballot>,
        voted: Option<Ballot>,
        verdict: &mut Violations,
    ) {
        if asked.storage != Some(who.storage) {
            return;
        }
        if voted.is_some_and(|v| v < asked.synced.voted) {
            verdict.fail(format!(
                "I1/I8 vote forgotten: node {} shows a vote below {} on {:?}",
                who.node, asked.synced.voted, asked.key.1
            ));
        }
        if promised.is_some_and(|p| p < asked.synced.promised) {
            verdict.fail(format!(
                "I1/I8 promise forgotten: node {} shows a promise below {} on {:?}",
                who.node, asked.synced.promised, asked.key.1
            ));
        }
    }
}

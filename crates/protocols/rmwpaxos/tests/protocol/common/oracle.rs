//! Oracles (rmwpaxos §11): [`Protocol`] sees every message that leaves a node and every fact that becomes durable; [`History`] sees what
//! clients requested and what they were answered.

use std::collections::BTreeMap;

use atoll_contract::{RegisterError, Versioned, Written};
use atoll_core::{Checkpoint, Decode, Envelope, Exchange, Lsn, Message, NodeId, Record, StorageId};
use atoll_rmwpaxos::message::{
    AcceptorImage, Fact, Mode, Prep, PrepAnswer, PrepReply, Write, WriteAnswer, WriteReply,
};
use atoll_rmwpaxos::{Ballot, GroupConfig, RegisterState};
use bytes::Bytes;

type Register = (u64, String);

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    promised: Ballot,
    voted: Ballot,
}

impl Held {
    fn raise(&mut self, promised: Ballot, voted: Ballot) {
        self.promised = self.promised.max(promised);
        self.voted = self.voted.max(voted);
    }
}

enum Asked {
    Prep(Prep),
    Write(Write),
}

/// Checks rmw-I1, rmw-I2, rmw-I3, rmw-I5, rmw-I8, and records what was chosen.
#[derive(Default)]
pub struct Protocol {
    /// What each acceptor has on disk, in the journal and in checkpoints.
    held: BTreeMap<(NodeId, StorageId, u64, String), Held>,
    /// What is in the journal alone. A checkpoint may be ahead of it.
    journaled: BTreeMap<(NodeId, StorageId, u64, String), Held>,
    states: BTreeMap<Register, BTreeMap<Ballot, Bytes>>,
    votes: BTreeMap<Register, BTreeMap<Ballot, Vec<NodeId>>>,
    groups: BTreeMap<u64, GroupConfig>,
    asked: BTreeMap<(NodeId, NodeId, u64), Asked>,
    pub violations: Vec<String>,
}

impl Protocol {
    fn violated(&mut self, what: String) {
        if self.violations.len() < 20 {
            self.violations.push(what);
        }
    }

    /// Notes records that are durable from now on.
    pub fn facts(&mut self, node: NodeId, storage: StorageId, records: &[(Lsn, Record)]) {
        for (_, record) in records {
            match Fact::from_bytes(record.head.clone()).unwrap() {
                Fact::Promised { epoch, name, ballot } => {
                    self.hold(node, storage, epoch, name, ballot, Ballot::ZERO)
                }
                Fact::Voted { epoch, name, ballot, .. } => {
                    self.state(epoch, &name, ballot, &record.payload);
                    self.hold(node, storage, epoch, name.clone(), ballot.next(), ballot);
                    self.votes.entry((epoch, name)).or_default().entry(ballot).or_default().push(node);
                }
                Fact::Installed { group, name } => {
                    let epoch = group.epoch;
                    self.group(group);
                    self.state(epoch, &name, Ballot::GENESIS, &record.payload);
                    self.hold(node, storage, epoch, name.clone(), Ballot::GENESIS, Ballot::GENESIS);
                    self.votes
                        .entry((epoch, name))
                        .or_default()
                        .entry(Ballot::GENESIS)
                        .or_default()
                        .push(node);
                }
                Fact::First { group } | Fact::Opened { group } => self.group(group),
                Fact::Fenced { next, .. } => self.group(next),
            }
        }
    }

    /// Notes a checkpoint that is durable from now on. It may contain facts that are not in the journal yet.
    pub fn checkpoint(&mut self, n: NodeId, s: StorageId, checkpoint: &Checkpoint) {
        for (_, image) in checkpoint.states.iter().filter(|(_, image)| !image.is_empty()) {
            for group in AcceptorImage::from_bytes(image.clone()).unwrap().groups {
                for slot in group.slots {
                    let key = (n, s, group.group.epoch, slot.name);
                    self.held.entry(key).or_default().raise(slot.promised, slot.voted);
                }
            }
        }
    }

    fn group(&mut self, group: GroupConfig) {
        let known = self.groups.entry(group.epoch).or_insert_with(|| group.clone());
        if *known != group {
            let what = format!("two groups of one epoch: {known:?} and {group:?}");
            self.violated(what);
        }
    }

    fn hold(&mut self, n: NodeId, s: StorageId, epoch: u64, name: String, promised: Ballot, voted: Ballot) {
        let key = (n, s, epoch, name);
        self.held.entry(key.clone()).or_default().raise(promised, voted);
        let journaled = self.journaled.entry(key.clone()).or_default();
        let before = *journaled;
        journaled.raise(promised, voted);
        let back = promised < before.promised || (voted != Ballot::ZERO && voted < before.voted);
        if back {
            self.violated(format!("I1: acceptor {key:?} went back from {before:?} to {promised} / {voted}"));
        }
    }

    /// Checks that a ballot has one state, on the wire and on disk (rmw-I2).
    fn state(&mut self, epoch: u64, name: &str, ballot: Ballot, state: &Bytes) {
        let known = self.states.entry((epoch, name.to_owned())).or_default();
        match known.get(&ballot) {
            Some(s) if s != state => {
                self.violated(format!("I2: two states of {name:?} in ballot {ballot} of epoch {epoch}"));
            }
            Some(_) => {}
            None => {
                known.insert(ballot, state.clone());
            }
        }
    }

    /// Notes a frame that leaves a node.
    pub fn sent(&mut self, from: NodeId, storage: StorageId, to: NodeId, envelope: &Envelope) {
        let frame = envelope.frame.clone();
        match (envelope.exchange, frame.kind) {
            (Exchange::Request(n), Prep::KIND) => {
                self.asked.insert((from, to, n), Asked::Prep(Prep::from_frame(frame).unwrap()));
            }
            (Exchange::Request(n), Write::KIND) => {
                let write = Write::from_frame(frame).unwrap();
                self.state(write.to.epoch, &write.name, write.ballot, &write.state);
                self.asked.insert((from, to, n), Asked::Write(write));
            }
            (Exchange::Reply(n), PrepReply::KIND) => {
                let reply = PrepReply::from_frame(frame).unwrap();
                if let (Some(Asked::Prep(asked)), PrepAnswer::Ack { ballot, voted }) =
                    (self.asked.get(&(to, from, n)), &reply.answer)
                {
                    let promised = if matches!(asked.mode, Mode::ReadOnly {}) { None } else { *ballot };
                    let (epoch, name) = (asked.to.epoch, asked.name.clone());
                    self.shown(from, storage, epoch, name, promised, *voted);
                }
            }
            (Exchange::Reply(n), WriteReply::KIND) => {
                let reply = WriteReply::from_frame(frame).unwrap();
                if let (Some(Asked::Write(asked)), WriteAnswer::Ack { .. }) =
                    (self.asked.get(&(to, from, n)), &reply.answer)
                {
                    let (epoch, name, ballot) = (asked.to.epoch, asked.name.clone(), asked.ballot);
                    self.shown(from, storage, epoch, name, None, ballot);
                }
            }
            _ => {}
        }
    }

    /// Checks that everything an answer shows is on the disk of its sender (rmw-I8, X1).
    fn shown(
        &mut self,
        n: NodeId,
        s: StorageId,
        epoch: u64,
        name: String,
        promised: Option<Ballot>,
        voted: Ballot,
    ) {
        let held = self.held.get(&(n, s, epoch, name.clone())).copied().unwrap_or_default();
        if voted > held.voted || promised.is_some_and(|p| p > held.promised) {
            self.violated(format!(
                "X1: node {n} showed {promised:?}/{voted} of {name:?}, its disk has {held:?}"
            ));
        }
    }

    /// Checks over the whole run that each state after a chosen state contains it (rmw-I3, rmw-I5).
    pub fn check(&mut self) {
        let mut found = Vec::new();
        for ((epoch, name), states) in &self.states {
            let Some(group) = self.groups.get(epoch) else { continue };
            let votes = self.votes.get(&(*epoch, name.clone()));
            let mut chosen: Option<(Ballot, RegisterState)> = None;
            for (ballot, bytes) in states {
                let state = RegisterState::read(bytes).unwrap();
                let mut nonces = state.nonces.clone();
                nonces.sort_unstable();
                nonces.dedup();
                if nonces.len() != state.nonces.len() {
                    found.push(format!("I5: an operation is in {name:?} twice at {ballot}"));
                }
                if let Some((b, before)) = &chosen
                    && !contains(&state, before)
                {
                    let what = format!("version {} {:?}", state.version, state.nonces);
                    let lost = format!("version {} {:?}", before.version, before.nonces);
                    found.push(format!(
                        "I3: {name:?} at {ballot} of epoch {epoch} has {what}, not what {b} chose: {lost}"
                    ));
                }
                let mut voters = votes.and_then(|v| v.get(ballot)).cloned().unwrap_or_default();
                voters.sort();
                voters.dedup();
                if voters.len() >= group.majority() {
                    chosen = Some((*ballot, state));
                }
            }
        }
        found.into_iter().take(5).for_each(|v| self.violated(v));
    }
}

/// Returns whether a state's writes begin with those of an earlier state, as far back as both remember.
fn contains(state: &RegisterState, earlier: &RegisterState) -> bool {
    if state.version < earlier.version || (earlier.moved.is_some() && state.moved != earlier.moved) {
        return false;
    }
    let at = |s: &RegisterState, version: u64| -> Option<u128> {
        let back = s.version.checked_sub(version)? as usize;
        s.nonces.iter().rev().nth(back).copied()
    };
    (1..=earlier.version).rev().take(100).all(|v| match (at(state, v), at(earlier, v)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    })
}

/// A request of a client.
#[derive(Clone, Debug)]
pub enum Ask {
    Read,
    Write { expected: u64, value: Bytes, nonce: u128 },
}

/// The answer that the client got.
#[derive(Clone, Debug)]
pub enum Returned {
    Read(Result<Versioned, RegisterError>),
    Written(Result<Written, RegisterError>),
}

#[derive(Clone, Debug)]
pub struct Op {
    pub register: String,
    pub ask: Ask,
    pub called: u64,
    pub returned: Option<(u64, Returned)>,
}

/// Every call and return, in real-time order.
#[derive(Debug, Default)]
pub struct History {
    pub ops: Vec<Op>,
    clock: u64,
}

impl History {
    pub fn call(&mut self, register: &str, ask: Ask) -> usize {
        self.clock += 1;
        self.ops.push(Op { register: register.to_owned(), ask, called: self.clock, returned: None });
        self.ops.len() - 1
    }

    pub fn returned(&mut self, op: usize, told: Returned) {
        self.clock += 1;
        self.ops[op].returned = Some((self.clock, told));
    }

    pub fn done(&self) -> usize {
        let good = |op: &&Op| match &op.returned {
            Some((_, Returned::Read(r))) => r.is_ok(),
            Some((_, Returned::Written(r))) => r.is_ok(),
            None => false,
        };
        self.ops.iter().filter(good).count()
    }

    /// Checks that the registers were linearizable. This is easy to decide, because versions order everything.
    pub fn check(&self) -> Vec<String> {
        let mut registers: BTreeMap<&str, Vec<&Op>> = BTreeMap::new();
        for op in &self.ops {
            registers.entry(&op.register).or_default().push(op);
        }
        let mut found = Vec::new();
        for (name, ops) in registers {
            check_register(name, &ops, &mut found);
        }
        found
    }
}

/// The attempts with one nonce.
struct WriteSeen {
    expected: u64,
    value: Bytes,
    first_called: u64,
    conflict: bool,
    yes: Option<u64>,
    may_have_happened: bool,
}

fn check_register(name: &str, ops: &[&Op], found: &mut Vec<String>) {
    let mut writes: BTreeMap<u128, WriteSeen> = BTreeMap::new();
    // Version to nonce and value, as observed, and (returned, called, version) of each completed operation.
    let mut seen: BTreeMap<u64, (u128, Option<Bytes>)> = BTreeMap::new();
    let mut completed: Vec<(u64, u64, u64)> = Vec::new();
    let observe =
        |v: &Versioned, seen: &mut BTreeMap<u64, (u128, Option<Bytes>)>, found: &mut Vec<String>| {
            let entry = seen.entry(v.version.0).or_insert((v.nonce.0, Some(v.value.clone())));
            let same_value = entry.1.as_ref().is_none_or(|value| *value == v.value);
            if entry.0 != v.nonce.0 || !same_value {
                found.push(format!(
                    "{name}: version {} has two values: nonces {:x} and {:x}",
                    v.version, entry.0, v.nonce.0
                ));
            }
            entry.1 = Some(v.value.clone());
        };
    for op in ops {
        let returned = op.returned.as_ref();
        if let Ask::Write { expected, value, nonce } = &op.ask {
            let w = writes.entry(*nonce).or_insert(WriteSeen {
                expected: *expected,
                value: value.clone(),
                first_called: op.called,
                conflict: false,
                yes: None,
                may_have_happened: false,
            });
            match returned {
                Some((at, Returned::Written(Ok(Written::Yes(v))))) => {
                    if v.0 != expected + 1 {
                        found.push(format!("{name}: write at {expected} made version {v}"));
                    }
                    w.yes = Some(v.0);
                    let first = w.first_called;
                    completed.push((*at, first, v.0));
                    let entry = seen.entry(v.0).or_insert((*nonce, None));
                    if entry.0 != *nonce {
                        found.push(format!("{name}: version {v} was made by {:x} and by {nonce:x}", entry.0));
                    }
                }
                Some((at, Returned::Written(Ok(Written::Conflict(v))))) => {
                    w.conflict = true;
                    if v.version.0 == *expected {
                        found.push(format!("{name}: conflict at the expected version {expected}"));
                    }
                    observe(v, &mut seen, found);
                    completed.push((*at, op.called, v.version.0));
                }
                Some((
                    _,
                    Returned::Written(Err(
                        RegisterError::NotWritten(_)
                        | RegisterError::TooLarge(_)
                        | RegisterError::InvalidName(_),
                    )),
                )) => {}
                _ => w.may_have_happened = true,
            }
        } else if let Some((at, Returned::Read(Ok(v)))) = returned {
            observe(v, &mut seen, found);
            completed.push((*at, op.called, v.version.0));
        }
    }
    for (version, (nonce, value)) in seen.range(1..) {
        let Some(w) = writes.get(nonce) else {
            found.push(format!("{name}: version {version} by {nonce:x}, which nobody wrote"));
            continue;
        };
        if w.expected + 1 != *version || value.as_ref().is_some_and(|v| *v != w.value) {
            found.push(format!(
                "{name}: version {version} is not what {nonce:x} asked for (expected {})",
                w.expected
            ));
        }
        if w.conflict && w.yes.is_none() {
            found.push(format!("{name}: {nonce:x} was told conflict, and made version {version}"));
        }
        if !w.conflict && w.yes.is_none() && !w.may_have_happened {
            found.push(format!(
                "{name}: {nonce:x} was told that it did not happen, and made version {version}"
            ));
        }
        // Whatever was complete before the write began has a lower version.
        if let Some((_, _, v)) = completed.iter().find(|(at, _, v)| *at < w.first_called && v >= version) {
            found.push(format!("{name}: version {v} was seen before the write of version {version} began"));
        }
    }
    for (nonce, w) in &writes {
        if w.conflict && w.yes.is_some() {
            found.push(format!("{name}: {nonce:x} was told yes and conflict"));
        }
    }
    completed.sort_unstable();
    // Real time: an operation that begins later sees at least the same version.
    let mut highest = 0;
    let mut by_call = completed.clone();
    by_call.sort_by_key(|(_, called, _)| *called);
    let mut done = completed.iter().peekable();
    for (_, called, version) in by_call {
        while let Some((_, _, v)) = done.next_if(|(at, _, _)| *at < called) {
            highest = highest.max(*v);
        }
        if version < highest && !writes.values().any(|w| w.yes == Some(version) && w.first_called == called) {
            found.push(format!("{name}: version {version} after version {highest} was seen"));
        }
    }
}

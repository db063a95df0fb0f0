//! Commands on a key, and what they do. They are pure: the same state gives the same outcome (rmwpaxos §4, rmw-W5).

use atoll_contract::OpId;
use atoll_contract::keyspace::{Guard, Held, KeyVersion};
use atoll_core::testing::mutant;
use bytes::Bytes;

use crate::content::{
    Content, Kind, MAX_CONTENT_BYTES, MAX_MEMBERS, MAX_NAME_BYTES, MAX_TXN_KEYS, MAX_VALUE_BYTES, Stage,
};
use crate::mutants;
use crate::state::{Done, Intent, KeyState, Name, TxnId, TxnLock};

/// The longest time for which a lease is granted, in milliseconds.
pub const MAX_LEASE_MS: u64 = 3_600_000;

atoll_core::choice! {
    /// The condition of a put or a deletion.
    pub enum WireGuard {
        /// None.
        0 = Always {},
        /// The key is not there.
        1 = Absent {},
        /// The key is there.
        2 = Present {},
        /// The key has this version.
        3 = Version { version: u64 },
        /// The key has this value.
        4 = Value { value: Bytes },
    }
}

impl From<Guard> for WireGuard {
    fn from(guard: Guard) -> Self {
        match guard {
            Guard::Always => WireGuard::Always {},
            Guard::Absent => WireGuard::Absent {},
            Guard::Present => WireGuard::Present {},
            Guard::Version(version) => WireGuard::Version { version: version.0 },
            Guard::Value(value) => WireGuard::Value { value },
        }
    }
}

impl WireGuard {
    fn holds(&self, state: &KeyState) -> bool {
        let guard = match self {
            WireGuard::Always {} => Guard::Always,
            WireGuard::Absent {} => Guard::Absent,
            WireGuard::Present {} => Guard::Present,
            WireGuard::Version { version } => Guard::Version(KeyVersion(*version)),
            WireGuard::Value { value } => Guard::Value(value.clone()),
        };
        let held = state.held();
        guard.holds(held.as_ref().map(|held| (held.version, &held.value[..])))
    }
}

atoll_core::choice! {
    /// A command on one key. Each type of content is made by the first command for it on a key that is not there.
    pub enum Command {
        /// Reads the key. It changes nothing.
        0 = Get {},
        /// Gives the key this value, if the condition holds. It replaces a content of any type.
        1 = Put { guard: WireGuard, value: Bytes },
        /// Deletes the key, if the condition holds and the key is there.
        2 = Delete { guard: WireGuard },
        /// Adds to a counter. Its number is the sum.
        3 = Add { amount: u64 },
        /// Subtracts from a counter, unless it would fall below zero. Its number is the difference.
        4 = Subtract { amount: u64 },
        /// Adds a member to a set. Its number is how many there are.
        5 = Insert { member: Bytes },
        /// Removes a member from a set. Its number is how many are left.
        6 = Remove { member: Bytes },
        /// Takes a lock for an owner, if it is free. Its number is the fencing number: what the lock protects refuses lower ones.
        7 = Acquire { owner: Bytes },
        /// Frees a lock, if this is the fencing number of its owner.
        8 = Release { fence: u64 },
        /// Takes or renews a lease for an owner. `expired` names the last grant, by `Content::Lease::renewed`, if the caller has watched it
        /// not change for longer than it was granted for, by its own clock. Its number is the fencing number.
        9 = Lease { owner: Bytes, for_ms: u64, expired: Option<u64> },
        /// Gives up a lease, if this is the fencing number of its owner.
        10 = EndLease { fence: u64 },
        /// Arrives at a barrier, which opens when this many parties are there. Its number counts the openings: the barrier has opened for
        /// the caller once it has opened so often.
        11 = Arrive { party: Bytes, parties: u32 },
        /// Stands for an office, and gets it if there is no leader. Its number is the term, which is a fencing number.
        12 = Stand { candidate: Bytes },
        /// Resigns from an office, if this is the current term.
        13 = Resign { term: u64 },
        /// Sets a field of a map. Its number is how many fields there are.
        14 = SetField { field: Bytes, value: Bytes },
        /// Removes a field of a map. Its number is how many fields are left.
        15 = RemoveField { field: Bytes },
        /// Locks the key for a transaction if it has this version, which is 0 if it was never written.
        16 = Lock { lock: TxnLock, version: u64 },
        /// Ends the lock of a transaction, if the key has it, and does what the transaction intended if it was committed.
        17 = Unlock { txn: TxnId, commit: bool },
        /// The register of a transaction: it begins with these keys.
        18 = Begin { keys: Vec<Bytes> },
        /// The register of a transaction: it is committed if it is pending, or aborted if it is not committed.
        19 = Decide { commit: bool },
    }
}

/// A command beyond a limit. Nothing was replicated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say it.
pub enum InvalidCommand {
    #[error("{what} has {bytes} bytes; 1 to {most} are allowed")]
    Name { what: &'static str, bytes: usize, most: usize },
    #[error("the value has {bytes} bytes; at most {most} are allowed")]
    Value { bytes: usize, most: usize },
    #[error("{what} is {value}; {allowed} is allowed")]
    Number { what: &'static str, value: u64, allowed: &'static str },
}

/// Why a command did not happen, although it is well formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The messages say it.
pub enum Refusal {
    #[error("the condition does not hold")]
    Condition,
    #[error("the key holds {held}, and the command is for {wanted}")]
    OtherKind { held: Kind, wanted: Kind },
    #[error("held by {}, with fencing number {fence}", by.escape_ascii())]
    Taken { by: Bytes, fence: u64 },
    #[error("{given} is not the number of the present holder; the last one is {last}")]
    NotHolder { given: u64, last: u64 },
    #[error("the counter is {value}, and would leave the range of 0 to 2^64 - 1")]
    OutOfRange { value: u64 },
    #[error("{what} has no room: {most} {unit} are allowed")]
    NoRoom { what: Kind, most: usize, unit: &'static str },
    #[error("the barrier is for {parties} parties, and the command says {given}")]
    OtherParties { parties: u32, given: u32 },
    #[error("it was refused at an earlier attempt")]
    Earlier,
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The documentation of a variant covers its fields.
pub enum Outcome {
    /// It took effect, now or at an earlier attempt. Contains the version of the key that it made, and the number of the command.
    Done { version: u64, number: u64 },
    /// Nothing had to change: it was a read, or what it asks for was so already. Contains the number of the command.
    Same { number: u64 },
    /// It did not happen, and will not happen.
    Refused(Refusal),
    /// An earlier attempt may have happened, too long ago to be remembered. Nothing was done. Contains the clock of the key.
    Forgotten { clock: u64 },
    /// A transaction has locked the key, and decides what it holds. Nothing was done yet, unless there were attempts before: then the
    /// floor is known.
    Locked { txn: TxnId, floor: Option<u64> },
}

/// The outcome of a command, and what the key held when it was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The outcome.
    pub outcome: Outcome,
    /// What users of the keyspace see of the key, after the command.
    pub held: Option<Held>,
    /// The content of the key, after the command.
    pub content: Content,
    /// The clock of the key, after the command: a floor for later commands.
    pub clock: u64,
    /// The version of the key, after the command, also if it is not there. 0 if it was never written.
    pub version: u64,
    /// The transaction that has locked the key: what the key holds may be out of date already.
    pub lock: Option<TxnLock>,
    /// Only for reads: commands that were recorded at this clock or before may be forgotten.
    pub forgotten: u64,
    /// Only for reads: the commands that the key remembers. The last ones come last.
    pub done: Vec<Done>,
}

impl Reply {
    /// Returns the reply that shows a state.
    pub(crate) fn of(outcome: Outcome, state: &KeyState) -> Reply {
        let (held, content, lock) = (state.held(), state.content.clone(), state.lock.clone());
        let (clock, version, forgotten) = (state.clock, state.version, state.forgotten);
        Reply { outcome, held, content, clock, version, lock, forgotten, done: Vec::new() }
    }

    /// Returns the reply to a read.
    pub(crate) fn shows(state: &KeyState) -> Reply {
        let done = state.repeats.iter().chain(&state.done).cloned().collect();
        Reply { done, ..Reply::of(Outcome::Same { number: 0 }, state) }
    }

    /// Returns the clock at which a command with this name was done, if it is remembered.
    pub(crate) fn done_at(&self, op: OpId) -> Option<u64> {
        self.done.iter().rev().find(|done| done.op == op && !done.refused).map(|done| done.clock)
    }
}

/// What a command does to a content.
enum Effect {
    Becomes(Content, u64),
    Same(u64),
    Refused(Refusal),
}
use Effect::{Becomes, Refused, Same};

/// A command with its name, and what is known about earlier attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name.
    pub op: OpId,
    /// The command.
    pub command: Command,
    /// If there may have been attempts before: a clock that the key had before the first of them, or 0.
    pub floor: Option<u64>,
    /// Whether there may have been attempts by another node or another call, which know nothing of this one.
    pub repeat: bool,
}

impl Named {
    fn name(&self) -> Name {
        Name { op: self.op, repeat: self.repeat }
    }

    /// Returns the outcome on this state, and the new state if it is another one (rmw-W5).
    ///
    /// If an earlier attempt may still be under way, a refusal is recorded, too, because that attempt must find it: otherwise the command
    /// could happen after its caller was told that it did not (rmw-T8).
    pub fn apply(&self, base: &KeyState) -> (Option<KeyState>, Reply) {
        let reply = Reply::of;
        if self.command == (Command::Get {}) {
            return (None, Reply::shows(base));
        }
        // An earlier attempt may have been chosen, and even overwritten since. Look for it on every attempt (rmw-T2).
        if let Some(done) = base.outcome_of(self.op)
            && !mutant(mutants::IN_PLACE_T2)
        {
            let outcome = match done.refused {
                true => Outcome::Refused(Refusal::Earlier),
                false => Outcome::Done { version: done.clock, number: done.number },
            };
            return (None, reply(outcome, base));
        }
        if self.floor.is_some_and(|floor| floor < base.forgotten) && !mutant(mutants::IN_PLACE_T2) {
            return (None, reply(Outcome::Forgotten { clock: base.clock }, base));
        }
        if let Some(lock) = &base.lock
            && self.command.waits_for(lock)
        {
            return (None, reply(Outcome::Locked { txn: lock.txn, floor: self.floor }, base));
        }
        match self.effect_of_transaction(base) {
            Some((Some(next), outcome)) => {
                let reply = reply(outcome, &next);
                return (Some(next), reply);
            }
            Some((None, outcome)) => return (None, reply(outcome, base)),
            None => {}
        }
        match effect(&self.command, &base.content, base) {
            Becomes(content, number) => {
                let next = base.record(self.name(), number, Some(content));
                let outcome = Outcome::Done { version: next.version, number };
                let reply = reply(outcome, &next);
                (Some(next), reply)
            }
            Same(number) => (None, reply(Outcome::Same { number }, base)),
            Refused(why) if self.floor.is_some() && !mutant(mutants::IN_PLACE_DENIES) => {
                let next = base.record(self.name(), 0, None);
                let reply = reply(Outcome::Refused(why), &next);
                (Some(next), reply)
            }
            Refused(why) => (None, reply(Outcome::Refused(why), base)),
        }
    }
}

impl Named {
    /// Returns the outcome of a command on the lock of a key, and the new state if it is another one. None for other commands.
    fn effect_of_transaction(&self, base: &KeyState) -> Option<(Option<KeyState>, Outcome)> {
        let done = |next: KeyState| {
            let outcome = Outcome::Done { version: next.version, number: 0 };
            Some((Some(next), outcome))
        };
        match &self.command {
            Command::Lock { lock, .. } if base.lock.as_ref() == Some(lock) => {
                Some((None, Outcome::Same { number: 0 }))
            }
            Command::Lock { lock, version } if base.version == *version => {
                done(base.locked(self.name(), lock.clone()))
            }
            Command::Lock { .. } => match self.floor {
                Some(_) => {
                    Some((Some(base.record(self.name(), 0, None)), Outcome::Refused(Refusal::Condition)))
                }
                None => Some((None, Outcome::Refused(Refusal::Condition))),
            },
            Command::Unlock { txn, commit } if base.lock.as_ref().is_some_and(|lock| lock.txn == *txn) => {
                done(base.unlocked(self.name(), *commit))
            }
            Command::Unlock { .. } => Some((None, Outcome::Same { number: 0 })),
            _ => None,
        }
    }
}

fn other(held: &Content, wanted: Kind) -> Effect {
    match held.kind() {
        Some(held) => Refused(Refusal::OtherKind { held, wanted }),
        None => Same(0),
    }
}

/// Returns what a command does to a content. The number of a new owner is the next clock of the key, which was never used before.
fn effect(command: &Command, now: &Content, state: &KeyState) -> Effect {
    let next = state.clock + 1;
    match command {
        Command::Get {} => Same(0),
        Command::Put { guard, .. } | Command::Delete { guard } if !guard.holds(state) => {
            Refused(Refusal::Condition)
        }
        Command::Put { value, .. } => Becomes(Content::Register { value: value.clone() }, 0),
        Command::Delete { .. } if state.is_tombstone() => Refused(Refusal::Condition),
        Command::Delete { .. } => Becomes(Content::Absent {}, 0),
        Command::Add { .. } | Command::Subtract { .. } => count(command, now),
        Command::Insert { member } | Command::Remove { member } => {
            change_set(matches!(command, Command::Insert { .. }), member, now)
        }
        Command::Acquire { owner } => acquire(owner, now, next),
        Command::Release { fence } => match now {
            Content::Lock { owner, fence: last } if !owner.is_empty() && fence == last => {
                Becomes(Content::Lock { owner: Bytes::new(), fence: *last }, *last)
            }
            Content::Lock { fence: last, .. } => Refused(Refusal::NotHolder { given: *fence, last: *last }),
            held => none_held(held, Kind::Lock, *fence),
        },
        Command::Lease { owner, for_ms, expired } => lease(owner, *for_ms, *expired, now, next),
        Command::EndLease { fence } => match now {
            Content::Lease { owner, for_ms, fence: last, .. } if !owner.is_empty() && fence == last => {
                let (owner, for_ms) = (Bytes::new(), *for_ms);
                Becomes(Content::Lease { owner, for_ms, fence: *last, renewed: next }, *last)
            }
            Content::Lease { fence: last, .. } => Refused(Refusal::NotHolder { given: *fence, last: *last }),
            held => none_held(held, Kind::Lease, *fence),
        },
        Command::Arrive { party, parties } => arrive(party, *parties, now),
        Command::Stand { candidate } => match now {
            Content::Election { leader, term } if leader == candidate => Same(*term),
            Content::Election { leader, term } if !leader.is_empty() => {
                Refused(Refusal::Taken { by: leader.clone(), fence: *term })
            }
            Content::Election { .. } | Content::Absent {} => {
                Becomes(Content::Election { leader: candidate.clone(), term: next }, next)
            }
            held => other(held, Kind::Election),
        },
        Command::Resign { term } => match now {
            Content::Election { leader, term: last } if !leader.is_empty() && term == last => {
                Becomes(Content::Election { leader: Bytes::new(), term: *last }, *last)
            }
            Content::Election { term: last, .. } => Refused(Refusal::NotHolder { given: *term, last: *last }),
            held => none_held(held, Kind::Election, *term),
        },
        Command::SetField { .. } | Command::RemoveField { .. } => change_map(command, now),
        Command::Begin { .. } | Command::Decide { .. } => change_transaction(command, now),
        // These have had their effect already.
        Command::Lock { .. } | Command::Unlock { .. } => Same(0),
    }
}

/// The register of a transaction: absent, pending, and then committed or aborted for good (§12).
fn change_transaction(command: &Command, now: &Content) -> Effect {
    let becomes = |stage, keys: &[Bytes]| Becomes(Content::Transaction { stage, keys: keys.to_vec() }, 0);
    match (command, now) {
        (Command::Begin { keys }, Content::Absent {}) => becomes(Stage::Pending {}, keys),
        (Command::Decide { commit: false }, Content::Absent {}) => becomes(Stage::Aborted {}, &[]),
        (Command::Decide { commit }, Content::Transaction { stage: Stage::Pending {}, keys }) => {
            becomes(if *commit { Stage::Committed {} } else { Stage::Aborted {} }, keys)
        }
        (Command::Decide { commit: true }, Content::Transaction { stage: Stage::Committed {}, .. })
        | (Command::Decide { commit: false }, Content::Transaction { stage: Stage::Aborted {}, .. }) => {
            Same(0)
        }
        (_, Content::Absent {} | Content::Transaction { .. }) => Refused(Refusal::Condition),
        (_, held) => other(held, Kind::Transaction),
    }
}

/// Nobody holds what was never taken.
fn none_held(held: &Content, wanted: Kind, given: u64) -> Effect {
    match held {
        Content::Absent {} => Refused(Refusal::NotHolder { given, last: 0 }),
        held => other(held, wanted),
    }
}

fn count(command: &Command, now: &Content) -> Effect {
    let value = match now {
        Content::Absent {} => 0,
        Content::Counter { value } => *value,
        held => return other(held, Kind::Counter),
    };
    let after = match command {
        Command::Add { amount } => value.checked_add(*amount),
        Command::Subtract { amount } => value.checked_sub(*amount),
        _ => Some(value),
    };
    match after {
        Some(after) => Becomes(Content::Counter { value: after }, after),
        None => Refused(Refusal::OutOfRange { value }),
    }
}

fn change_set(insert: bool, member: &Bytes, now: &Content) -> Effect {
    let mut members = match now {
        Content::Absent {} => Vec::new(),
        Content::Set { members } => members.clone(),
        held => return other(held, Kind::Set),
    };
    match (members.binary_search(member), insert) {
        (Ok(_), true) | (Err(_), false) => return Same(members.len() as u64),
        (Ok(at), false) => drop(members.remove(at)),
        (Err(_), true) if members.len() >= MAX_MEMBERS => {
            return Refused(Refusal::NoRoom { what: Kind::Set, most: MAX_MEMBERS, unit: "members" });
        }
        (Err(at), true) => members.insert(at, member.clone()),
    }
    let number = members.len() as u64;
    becomes_if_it_fits(Content::Set { members }, number)
}

fn becomes_if_it_fits(content: Content, number: u64) -> Effect {
    match (content.check(), content.kind()) {
        (Err(_), Some(what)) => Refused(Refusal::NoRoom { what, most: MAX_CONTENT_BYTES, unit: "bytes" }),
        _ => Becomes(content, number),
    }
}

fn acquire(owner: &Bytes, now: &Content, next: u64) -> Effect {
    match now {
        Content::Lock { owner: held, fence } if held == owner => Same(*fence),
        Content::Lock { owner: held, fence } if !held.is_empty() => {
            Refused(Refusal::Taken { by: held.clone(), fence: *fence })
        }
        Content::Lock { .. } | Content::Absent {} => {
            Becomes(Content::Lock { owner: owner.clone(), fence: next }, next)
        }
        held => other(held, Kind::Lock),
    }
}

fn lease(owner: &Bytes, for_ms: u64, expired: Option<u64>, now: &Content, next: u64) -> Effect {
    let fence = match now {
        // The holder renews its lease and keeps its number.
        Content::Lease { owner: held, fence, .. } if held == owner => *fence,
        Content::Lease { owner: held, fence, renewed, .. }
            if !held.is_empty() && expired != Some(*renewed) =>
        {
            return Refused(Refusal::Taken { by: held.clone(), fence: *fence });
        }
        Content::Lease { .. } | Content::Absent {} => next,
        held => return other(held, Kind::Lease),
    };
    Becomes(Content::Lease { owner: owner.clone(), for_ms, fence, renewed: next }, fence)
}

fn arrive(party: &Bytes, parties: u32, now: &Content) -> Effect {
    let (mut arrived, opened) = match now {
        Content::Absent {} => (Vec::new(), 0),
        Content::Barrier { parties: wanted, .. } if *wanted != parties => {
            return Refused(Refusal::OtherParties { parties: *wanted, given: parties });
        }
        Content::Barrier { arrived, opened, .. } => (arrived.clone(), *opened),
        held => return other(held, Kind::Barrier),
    };
    match arrived.binary_search(party) {
        Ok(_) => return Same(opened + 1),
        Err(at) => arrived.insert(at, party.clone()),
    }
    let number = opened + 1;
    let content = match arrived.len() as u64 >= u64::from(parties) {
        true => Content::Barrier { parties, arrived: Vec::new(), opened: number },
        false => Content::Barrier { parties, arrived, opened },
    };
    Becomes(content, number)
}

fn change_map(command: &Command, now: &Content) -> Effect {
    let mut entries = match now {
        Content::Absent {} => Vec::new(),
        Content::Map { entries } => entries.clone(),
        held => return other(held, Kind::Map),
    };
    match command {
        Command::SetField { field, value } => match entries.binary_search_by(|(other, _)| other.cmp(field)) {
            Ok(at) => entries[at].1 = value.clone(),
            Err(_) if entries.len() >= MAX_MEMBERS => {
                return Refused(Refusal::NoRoom { what: Kind::Map, most: MAX_MEMBERS, unit: "fields" });
            }
            Err(at) => entries.insert(at, (field.clone(), value.clone())),
        },
        Command::RemoveField { field } => match entries.binary_search_by(|(other, _)| other.cmp(field)) {
            Ok(at) => drop(entries.remove(at)),
            Err(_) => return Same(entries.len() as u64),
        },
        _ => {}
    }
    let number = entries.len() as u64;
    becomes_if_it_fits(Content::Map { entries }, number)
}

impl Command {
    /// Returns whether the command has to wait until the transaction with this lock has ended.
    fn waits_for(&self, lock: &TxnLock) -> bool {
        match self {
            Command::Lock { lock: own, .. } => own.txn != lock.txn,
            Command::Unlock { .. } => false,
            _ => true,
        }
    }

    /// Checks the limits, before anything is replicated.
    pub fn check(&self) -> Result<(), InvalidCommand> {
        let name = |what, name: &Bytes| match name.len() {
            1..=MAX_NAME_BYTES => Ok(()),
            bytes => Err(InvalidCommand::Name { what, bytes, most: MAX_NAME_BYTES }),
        };
        let value = |value: &Bytes| match value.len() {
            0..=MAX_VALUE_BYTES => Ok(()),
            bytes => Err(InvalidCommand::Value { bytes, most: MAX_VALUE_BYTES }),
        };
        let guard = |guard: &WireGuard| match guard {
            WireGuard::Value { value: wanted } => value(wanted),
            _ => Ok(()),
        };
        match self {
            Command::Put { guard: when, value: new } => guard(when).and_then(|()| value(new)),
            Command::Delete { guard: when } => guard(when),
            Command::Insert { member } | Command::Remove { member } => name("the member", member),
            Command::Acquire { owner } => name("the owner", owner),
            Command::Lease { owner, for_ms, .. } => match *for_ms {
                1..=MAX_LEASE_MS => name("the owner", owner),
                value => {
                    let (what, allowed) = ("the time of a lease", "1 to 3600000 ms");
                    Err(InvalidCommand::Number { what, value, allowed })
                }
            },
            Command::Arrive { party, parties } => match *parties as usize {
                1..=MAX_MEMBERS => name("the party", party),
                value => {
                    let (what, allowed, value) = ("the number of parties", "1 to 256", value as u64);
                    Err(InvalidCommand::Number { what, value, allowed })
                }
            },
            Command::Stand { candidate } => name("the candidate", candidate),
            Command::SetField { field, value: new } => name("the field", field).and_then(|()| value(new)),
            Command::RemoveField { field } => name("the field", field),
            Command::Lock { lock: TxnLock { intent: Intent::Put { value: new }, .. }, .. } => value(new),
            Command::Begin { keys } => match keys.len() {
                1..=MAX_TXN_KEYS => Ok(()),
                count => {
                    let (what, allowed, value) = ("the number of keys", "1 to 64", count as u64);
                    Err(InvalidCommand::Number { what, value, allowed })
                }
            },
            Command::Get {}
            | Command::Lock { .. }
            | Command::Unlock { .. }
            | Command::Decide { .. }
            | Command::Add { .. }
            | Command::Subtract { .. }
            | Command::Release { .. }
            | Command::EndLease { .. }
            | Command::Resign { .. } => Ok(()),
        }
    }
}

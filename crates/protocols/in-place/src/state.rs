//! The state of a key, on which acceptors vote as a whole (rmw-T10): its content, and the outcomes of its last commands.

use atoll_contract::OpId;
use atoll_contract::keyspace::{Held, KeyVersion};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode};
use bytes::Bytes;

use crate::ballot::Ballot;
use crate::content::{Content, MAX_CONTENT_BYTES, MAX_VALUE_BYTES};
use crate::mutants;

/// How many commands of a key are remembered with their outcomes (rmw-T2). With them, a small content fits into one block of a cell.
pub const REMEMBERED: usize = 32;
/// How many commands of a key that were repeats are remembered beyond [`REMEMBERED`].
pub const REMEMBERED_REPEATS: usize = 32;
/// Of how many nodes a key knows the last proposal.
pub const MAX_PROPOSERS: usize = 16;
/// The longest state, in bytes.
pub const MAX_STATE_BYTES: usize = MAX_CONTENT_BYTES
    + MAX_VALUE_BYTES
    + (REMEMBERED + REMEMBERED_REPEATS) * DONE_BYTES
    + MAX_PROPOSERS * BALLOT_BYTES
    + 192;
/// The length of a [`Done`], in bytes.
const DONE_BYTES: usize = 33;
/// The length of a [`Ballot`], in bytes.
const BALLOT_BYTES: usize = 20;

atoll_core::record! {
    /// The outcome of a command.
    pub struct Done {
        /// Its name.
        pub op: OpId,
        /// The clock of the key once it was done.
        pub clock: u64,
        /// The number that it was answered with, such as the value of a counter.
        pub number: u64,
        /// Whether it was refused. A refusal is recorded only if another attempt of the command may still be under way.
        pub refused: bool,
    }
}

/// The name of one attempt of a transaction. It is drawn at random, and never used again.
pub type TxnId = u128;

atoll_core::choice! {
    /// What a transaction does to a key if it is committed.
    pub enum Intent {
        /// Nothing: the key is only checked. It is locked nevertheless, or two transactions could each rely on what the other changes
        /// (rmw-TX6).
        0 = Check {},
        /// The key gets this value.
        1 = Put { value: Bytes },
        /// The key is deleted.
        2 = Delete {},
    }
}

atoll_core::record! {
    /// The lock of a transaction on a key (§12).
    pub struct TxnLock {
        /// The attempt of the transaction.
        pub txn: TxnId,
        /// The name of the transaction, under which the key remembers that it was committed.
        pub op: OpId,
        /// What it does to the key if it is committed. Everybody can do it then (rmw-TX3).
        pub intent: Intent,
        /// Whether other calls may have tried the transaction before.
        pub repeat: bool,
    }
}

atoll_core::record! {
    /// See the module documentation.
    pub struct KeyState {
        /// How many commands the key has recorded, counted from where it began.
        pub clock: u64,
        /// The clock at the last change of the content. 0 if there was none.
        pub version: u64,
        /// Commands that were recorded at this clock or before may be forgotten. All later ones are in `done`.
        pub forgotten: u64,
        /// What the key holds.
        pub content: Content,
        /// The transaction that has locked the key.
        pub lock: Option<TxnLock>,
        /// The last commands, oldest first, at most [`REMEMBERED`].
        pub done: Vec<Done>,
        /// The last commands that had been sent through another node before, or by another call, oldest first, at most
        /// [`REMEMBERED_REPEATS`]. The attempt before may be held up, and it knows no floor: it finds here that the command was done,
        /// however many commands have followed (rmw-T2).
        pub repeats: Vec<Done>,
        /// Of each node that has proposed a state after the clock `known_since`, the ballot of its last proposal that this state contains;
        /// the latest last, at most [`MAX_PROPOSERS`]. A proposer that was overtaken learns from it whether its proposal was chosen before,
        /// however many commands the others have recorded since.
        pub proposals: Vec<Ballot>,
        /// Proposals on a base with a lower clock than this may be missing in `proposals`.
        pub known_since: u64,
    }
}

/// The name of a command that is recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) op: OpId,
    /// Whether an attempt before this one, of another node or call, may still be under way.
    pub(crate) repeat: bool,
}

impl KeyState {
    /// Returns the state of a key without a vote. `clock` is above every clock that the key ever had (rmw-T11).
    pub fn absent(clock: u64) -> Self {
        KeyState {
            clock,
            version: 0,
            forgotten: clock,
            content: Content::Absent {},
            lock: None,
            done: Vec::new(),
            repeats: Vec::new(),
            proposals: Vec::new(),
            known_since: clock,
        }
    }

    /// Decodes a state from a message or a cell. Empty bytes stand for a key without a vote.
    pub fn read(bytes: &Bytes, clock: u64) -> Result<Self, DecodeError> {
        if bytes.is_empty() {
            return Ok(KeyState::absent(clock));
        }
        let state = KeyState::from_bytes(bytes.clone())?;
        let remembered = state.done.len();
        if remembered > REMEMBERED || state.version > state.clock || state.forgotten > state.clock {
            let allowed = "at most REMEMBERED commands, none after the clock";
            return Err(DecodeError::Invalid { what: "state of a key", value: remembered as u64, allowed });
        }
        let repeats = state.repeats.len();
        if repeats > REMEMBERED_REPEATS {
            let allowed = "at most REMEMBERED_REPEATS";
            return Err(DecodeError::Invalid { what: "repeats of a key", value: repeats as u64, allowed });
        }
        let proposers = state.proposals.len();
        if proposers > MAX_PROPOSERS || state.known_since > state.clock {
            let allowed = "at most MAX_PROPOSERS proposals, known since the clock or before";
            return Err(DecodeError::Invalid {
                what: "proposers of a key",
                value: proposers as u64,
                allowed,
            });
        }
        state.content.check()?;
        if let Some(TxnLock { intent: Intent::Put { value }, .. }) = &state.lock
            && value.len() > MAX_VALUE_BYTES
        {
            let (what, value) = ("value of a transaction", value.len() as u64);
            return Err(DecodeError::Invalid { what, value, allowed: "at most MAX_VALUE_BYTES" });
        }
        Ok(state)
    }

    /// Returns whether the key was deleted, and no transaction has locked it.
    pub fn is_tombstone(&self) -> bool {
        self.content == Content::Absent {} && self.lock.is_none()
    }

    /// Returns what users see of the key.
    pub fn held(&self) -> Option<Held> {
        self.content.value().map(|value| Held { version: KeyVersion(self.version), value })
    }

    /// Returns the outcome of a command, if it is remembered.
    pub fn outcome_of(&self, op: OpId) -> Option<&Done> {
        self.done.iter().rev().chain(&self.repeats).find(|done| done.op == op)
    }

    /// Returns what became of a proposal on a base with this clock or a later one. None if it cannot be told any more.
    pub(crate) fn contains(&self, ballot: Ballot, base_clock: u64) -> Option<bool> {
        if self.proposals.contains(&ballot) {
            return Some(true);
        }
        // Another proposer of the same node may have taken its place, such as one that was made after it was given up.
        let is_other = |b: &Ballot| b.pid.node == ballot.pid.node && b.pid != ballot.pid;
        if self.proposals.iter().any(is_other) {
            return None;
        }
        let knows = base_clock >= self.known_since || mutant(mutants::IN_PLACE_MISSES);
        knows.then_some(false)
    }

    /// Notes the ballot in which this state is proposed. `base_clock` is the clock of the state that it was made from.
    pub(crate) fn proposed_in(&mut self, ballot: Ballot, base_clock: u64) {
        self.proposals.retain(|other| other.pid.node != ballot.pid.node);
        if self.proposals.len() >= MAX_PROPOSERS {
            self.proposals.remove(0);
            self.known_since = base_clock;
        }
        self.proposals.push(ballot);
    }

    /// Returns this state after it has recorded a command that has changed the content, or was refused.
    pub(crate) fn record(&self, name: Name, number: u64, content: Option<Content>) -> KeyState {
        let mut next = self.remember(name, number, content.is_none());
        if let Some(content) = content {
            (next.content, next.version) = (content, next.clock);
        }
        next
    }

    /// Returns this state after a transaction has locked it. The version stays: the content has not changed.
    pub(crate) fn locked(&self, name: Name, lock: TxnLock) -> KeyState {
        KeyState { lock: Some(lock), ..self.remember(name, 0, false) }
    }

    /// Returns this state after its transaction has ended. A change is recorded under the name of the transaction.
    pub(crate) fn unlocked(&self, name: Name, commit: bool) -> KeyState {
        let lock = self.lock.clone().filter(|_| commit);
        let mut next = match lock {
            Some(TxnLock { op, intent: Intent::Put { value }, repeat, .. }) => {
                self.record(Name { op, repeat }, 0, Some(Content::Register { value }))
            }
            Some(TxnLock { op, intent: Intent::Delete {}, repeat, .. }) => {
                self.record(Name { op, repeat }, 0, Some(Content::Absent {}))
            }
            _ => self.remember(name, 0, false),
        };
        next.lock = None;
        next
    }

    fn remember(&self, Name { op, repeat }: Name, number: u64, refused: bool) -> KeyState {
        let mut next = self.clone();
        next.clock += 1;
        if next.done.len() >= REMEMBERED {
            next.forgotten = next.forgotten.max(next.done.remove(0).clock);
        }
        let done = Done { op, clock: next.clock, number, refused };
        if repeat && !mutant(mutants::IN_PLACE_FORGETS_REPEATS) {
            hit("in-place.state.repeat");
            if next.repeats.len() >= REMEMBERED_REPEATS {
                next.repeats.remove(0);
            }
            next.repeats.push(done.clone());
        }
        next.done.push(done);
        next
    }

    /// Returns the bytes for a message.
    pub fn written(&self) -> Bytes {
        self.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use atoll_core::NodeId;

    use super::*;
    use crate::ballot::ProposerId;

    fn ballot(n: u64, node: u32) -> Ballot {
        Ballot { n, pid: ProposerId { node: NodeId(node), life: 1 } }
    }

    #[test]
    fn a_key_knows_the_last_proposal_of_each_of_so_many_nodes() {
        let mut state = KeyState::absent(5);
        assert_eq!(state.contains(ballot(1, 1), 5), Some(false));
        assert_eq!(state.contains(ballot(1, 1), 4), None, "it may be from before the key was forgotten");
        for node in 1..=MAX_PROPOSERS as u32 {
            state.proposed_in(ballot(u64::from(node), node), state.clock);
            state.clock += 1;
        }
        state.proposed_in(ballot(50, 1), state.clock);
        state.clock += 1;
        assert_eq!(
            (state.contains(ballot(50, 1), 5), state.contains(ballot(60, 1), 5)),
            (Some(true), Some(false))
        );
        let of_another = Ballot { n: 60, pid: ProposerId { node: NodeId(1), life: 2 } };
        assert_eq!(state.contains(of_another, 5), None, "the node has had two proposers");
        assert_eq!((state.contains(ballot(2, 2), 5), state.known_since), (Some(true), 5));
        // One more node: what the node said that has been silent for longest is lost.
        let lost_at = state.clock;
        state.proposed_in(ballot(70, 99), state.clock);
        state.clock += 1;
        assert_eq!(state.proposals.len(), MAX_PROPOSERS);
        assert_eq!(
            (state.contains(ballot(2, 2), lost_at - 1), state.contains(ballot(2, 2), lost_at)),
            (None, Some(false))
        );
        assert_eq!(state.contains(ballot(3, 3), 5), Some(true));
        assert_eq!(KeyState::read(&state.written(), 0), Ok(state));
    }
}

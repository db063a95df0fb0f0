//! The state of a key, on which acceptors vote as a whole (rmw-T10): its content, and the outcomes of its last commands.

use atoll_contract::OpId;
use atoll_contract::keyspace::{Held, KeyVersion};
use atoll_core::{Decode, DecodeError, Encode};
use bytes::Bytes;

use crate::content::{Content, MAX_CONTENT_BYTES};

/// How many commands of a key are remembered with their outcomes (rmw-T2). With them, a small content fits into one block of a cell.
pub const REMEMBERED: usize = 32;
/// The longest state, in bytes.
pub const MAX_STATE_BYTES: usize = MAX_CONTENT_BYTES + REMEMBERED * DONE_BYTES + 64;
/// The length of a [`Done`], in bytes.
const DONE_BYTES: usize = 33;

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
        /// The last commands, oldest first, at most [`REMEMBERED`].
        pub done: Vec<Done>,
    }
}

impl KeyState {
    /// Returns the state of a key without a vote. `clock` is above every clock that the key ever had (rmw-T11).
    pub fn absent(clock: u64) -> Self {
        KeyState { clock, version: 0, forgotten: clock, content: Content::Absent {}, done: Vec::new() }
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
        state.content.check()?;
        Ok(state)
    }

    /// Returns whether the key was deleted.
    pub fn is_tombstone(&self) -> bool {
        self.content == Content::Absent {}
    }

    /// Returns what users see of the key.
    pub fn held(&self) -> Option<Held> {
        self.content.value().map(|value| Held { version: KeyVersion(self.version), value })
    }

    /// Returns the outcome of a command, if it is remembered.
    pub fn outcome_of(&self, op: OpId) -> Option<&Done> {
        self.done.iter().rev().find(|done| done.op == op)
    }

    /// Returns this state after it has recorded a command.
    pub(crate) fn record(&self, op: OpId, number: u64, content: Option<Content>) -> KeyState {
        let mut next = self.clone();
        next.clock += 1;
        let refused = content.is_none();
        if let Some(content) = content {
            (next.content, next.version) = (content, next.clock);
        }
        if next.done.len() >= REMEMBERED {
            next.forgotten = next.forgotten.max(next.done.remove(0).clock);
        }
        next.done.push(Done { op, clock: next.clock, number, refused });
        next
    }

    /// Returns the bytes for a message.
    pub fn written(&self) -> Bytes {
        self.to_bytes()
    }
}

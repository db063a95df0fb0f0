//! The state of a register, and the commands on it. Commands are pure: the same base gives the same outcome.

use atoll_contract::register::MAX_VALUE_BYTES;
use atoll_contract::{Nonce, Version, Versioned, Written};
use atoll_core::testing::mutant;
use atoll_core::{Decode, DecodeError, Encode};
use bytes::Bytes;

use crate::mutants;

use super::group::GroupConfig;

/// Number of last writes that a register remembers by nonce (rmw-T2). A writer that asks after more writes gets the answer "unknown".
pub const REMEMBERED_WRITES: usize = 128;

atoll_core::record! {
    /// The state of a register, on which acceptors vote as a whole (rmw-T10).
    pub struct RegisterState {
        /// Number of writes that led to this state; 0: never written.
        pub version: u64,
        /// The value that the last write wrote.
        pub value: Bytes,
        /// Nonces of the last writes, at most [`REMEMBERED_WRITES`], oldest first: the last one belongs to `version`, the one before it to
        /// `version - 1`, and so on. They show a retry that its write happened (rmw-T2).
        pub nonces: Vec<u128>,
        /// If set, the state is final: the register continues in this group, and nothing more is written here (§9a).
        pub moved: Option<GroupConfig>,
    }
}

impl RegisterState {
    /// Returns the state of a register that was never written.
    pub fn empty() -> Self {
        RegisterState { version: 0, value: Bytes::new(), nonces: Vec::new(), moved: None }
    }

    /// Decodes a state from a message; empty bytes stand for a register without a vote.
    pub fn read(bytes: &Bytes) -> Result<Self, DecodeError> {
        if bytes.is_empty() {
            return Ok(RegisterState::empty());
        }
        let state = RegisterState::from_bytes(bytes.clone())?;
        state.check()?;
        Ok(state)
    }

    /// Checks the limits of a state that comes from outside.
    pub fn check(&self) -> Result<(), DecodeError> {
        let (nonces, value) = (self.nonces.len(), self.value.len());
        if nonces > REMEMBERED_WRITES || nonces as u64 > self.version {
            let allowed = "as many as writes, at most REMEMBERED_WRITES";
            return Err(DecodeError::Invalid { what: "nonces of a state", value: nonces as u64, allowed });
        }
        if value > MAX_VALUE_BYTES {
            let allowed = "at most MAX_VALUE_BYTES";
            return Err(DecodeError::Invalid { what: "length of a value", value: value as u64, allowed });
        }
        Ok(())
    }

    /// Returns the byte form for a message; see [`RegisterState::read`].
    pub fn written(&self) -> Bytes {
        if *self == RegisterState::empty() { Bytes::new() } else { self.to_bytes() }
    }

    /// Returns the value and version that a reader sees.
    pub fn versioned(&self) -> Versioned {
        Versioned {
            version: Version(self.version),
            value: self.value.clone(),
            nonce: Nonce(self.nonces.last().copied().unwrap_or(0)),
        }
    }

    /// Returns the version that the write with this nonce made, if it is remembered.
    pub fn made_by(&self, nonce: u128) -> Option<u64> {
        let back = self.nonces.iter().rev().position(|n| *n == nonce)?;
        Some(self.version - back as u64)
    }

    /// Returns the oldest version whose nonce is remembered.
    fn remembered_from(&self) -> u64 {
        self.version + 1 - self.nonces.len() as u64
    }
}

/// A command on a register.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// Write if the version is `expected`.
    WriteIf { expected: u64, value: Bytes, nonce: u128 },
    /// Read (rmw-R4).
    Query,
    /// Make the state final (§9a), in the group of this epoch only.
    Move { epoch: u64, next: GroupConfig },
}

/// The outcome of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandOutcome {
    /// The outcome of a write.
    Written(Written),
    /// The write may have happened: the version that it would have made is older than all remembered ones.
    Forgotten,
    /// The outcome of a query or a move: the state.
    State(RegisterState),
}

impl Command {
    /// Returns the outcome on this base, and the new state if it changes.
    pub(super) fn apply(&self, base: &RegisterState) -> (Option<RegisterState>, CommandOutcome) {
        match self {
            Command::Query => (None, CommandOutcome::State(base.clone())),
            Command::Move { next, .. } if base.moved.is_none() => {
                let state = RegisterState { moved: Some(next.clone()), ..base.clone() };
                (Some(state.clone()), CommandOutcome::State(state))
            }
            Command::Move { .. } => (None, CommandOutcome::State(base.clone())),
            Command::WriteIf { expected, value, nonce } => {
                let (state, written) = base.write_if(Version(*expected), value, Nonce(*nonce));
                (state, written.map_or(CommandOutcome::Forgotten, CommandOutcome::Written))
            }
        }
    }
}

impl RegisterState {
    /// Applies a conditional write. Returns the new state if it changes, and the answer; None if the write may have happened before
    /// everything remembered.
    pub fn write_if(
        &self,
        expected: Version,
        value: &Bytes,
        nonce: Nonce,
    ) -> (Option<RegisterState>, Option<Written>) {
        // An earlier attempt may have been chosen, and even overwritten since. Check this before the guard, on every attempt (rmw-T2).
        if let Some(version) = self.made_by(nonce.0)
            && !mutant(mutants::RMW_T2)
        {
            return (None, Some(Written::Yes(Version(version))));
        }
        if expected.0 == self.version {
            let mut nonces = self.nonces.clone();
            if nonces.len() == REMEMBERED_WRITES {
                nonces.remove(0);
            }
            nonces.push(nonce.0);
            let version = expected.0 + 1;
            let state = RegisterState { version, value: value.clone(), nonces, moved: None };
            return (Some(state), Some(Written::Yes(Version(version))));
        }
        // The version that this write would have made belongs to a nonce that is no longer remembered, perhaps this one.
        if expected.0 < self.version && expected.0 + 1 < self.remembered_from() {
            return (None, None);
        }
        (None, Some(Written::Conflict(self.versioned())))
    }
}

//! What a key holds: one of a few small data types. Acceptors vote on the whole of it (rmw-T10), so each has a strict limit.

use std::fmt;

use atoll_core::{DecodeError, Encode};
use bytes::Bytes;

/// The longest key, in bytes. With the group before it, it is the key of a cell.
pub const MAX_KEY_BYTES: usize = 200;
/// The longest value of a register, in bytes.
pub const MAX_VALUE_BYTES: usize = 32 * 1024;
/// The longest content of a key, in bytes, when it is encoded.
pub const MAX_CONTENT_BYTES: usize = MAX_VALUE_BYTES + 64;
/// The longest name of an owner, a candidate, a party or a member of a set, and the longest field of a map, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// The most members of a set, entries of a map, and parties of a barrier.
pub const MAX_MEMBERS: usize = 256;

/// The longest name of a register that the engine keeps for itself, in bytes. All of them are longer than any key, so no user can name one.
pub const MAX_RECORD_BYTES: usize = MAX_KEY_BYTES + 16;
/// The most keys of a transaction.
pub const MAX_TXN_KEYS: usize = 64;

/// The type of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A value.
    Register,
    /// A number that never falls below zero.
    Counter,
    /// A set of names.
    Set,
    /// A lock with fencing numbers.
    Lock,
    /// A lock that its contenders may judge to have expired.
    Lease,
    /// A meeting point of a fixed number of parties, again and again.
    Barrier,
    /// An office that one candidate holds.
    Election,
    /// A bounded map of fields.
    Map,
    /// How far a transaction is. Only the engine makes these.
    Transaction,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Register => "a register",
            Kind::Counter => "a counter",
            Kind::Set => "a set",
            Kind::Lock => "a lock",
            Kind::Lease => "a lease",
            Kind::Barrier => "a barrier",
            Kind::Election => "an election",
            Kind::Map => "a map",
            Kind::Transaction => "a transaction",
        })
    }
}

atoll_core::choice! {
    /// How far a transaction is (§12).
    pub enum Stage {
        /// It locks its keys.
        0 = Pending {},
        /// It has happened.
        1 = Committed {},
        /// It will never happen.
        2 = Aborted {},
    }
}

atoll_core::choice! {
    /// What a key holds. Lists are in rising order without repetitions, so that equal contents have equal bytes.
    pub enum Content {
        /// Nothing: the key was never written, or it was deleted.
        0 = Absent {},
        /// A value.
        1 = Register { value: Bytes },
        /// A number.
        2 = Counter { value: u64 },
        /// A set of names.
        3 = Set { members: Vec<Bytes> },
        /// A lock. It is free if the owner is empty. `fence` is the number of the last owner, and rises with each new one.
        4 = Lock { owner: Bytes, fence: u64 },
        /// A lease for this many milliseconds. It is free if the owner is empty. `fence` as in a lock. `renewed` is the clock of the key at
        /// the last grant: whoever watches it not change for long enough may judge that the lease has expired.
        5 = Lease { owner: Bytes, for_ms: u64, fence: u64, renewed: u64 },
        /// The parties that have arrived since the barrier opened last, and how often it has opened.
        6 = Barrier { parties: u32, arrived: Vec<Bytes>, opened: u64 },
        /// The leader of a term. There is none if the name is empty.
        7 = Election { leader: Bytes, term: u64 },
        /// Fields and their values.
        8 = Map { entries: Vec<(Bytes, Bytes)> },
        /// How far a transaction is, and its keys in order. They are unknown if it was aborted before anybody knew that it had begun.
        9 = Transaction { stage: Stage, keys: Vec<Bytes> },
    }
}

impl Content {
    /// Returns the type; None if there is nothing.
    pub fn kind(&self) -> Option<Kind> {
        Some(match self {
            Content::Absent {} => return None,
            Content::Register { .. } => Kind::Register,
            Content::Counter { .. } => Kind::Counter,
            Content::Set { .. } => Kind::Set,
            Content::Lock { .. } => Kind::Lock,
            Content::Lease { .. } => Kind::Lease,
            Content::Barrier { .. } => Kind::Barrier,
            Content::Election { .. } => Kind::Election,
            Content::Map { .. } => Kind::Map,
            Content::Transaction { .. } => Kind::Transaction,
        })
    }

    /// Returns what users of a keyspace see as the value of the key: the value of a register, or the encoded content of another type. None
    /// if there is nothing.
    pub fn value(&self) -> Option<Bytes> {
        match self {
            Content::Absent {} => None,
            Content::Register { value } => Some(value.clone()),
            other => Some(other.to_bytes()),
        }
    }

    /// Checks the limits of a content that comes from outside.
    pub fn check(&self) -> Result<(), DecodeError> {
        let invalid =
            |what, value: usize, allowed| Err(DecodeError::Invalid { what, value: value as u64, allowed });
        let bytes = self.to_bytes().len();
        if bytes > MAX_CONTENT_BYTES {
            return invalid("length of a content", bytes, "at most MAX_CONTENT_BYTES");
        }
        let rises = |names: &[Bytes]| names.windows(2).all(|pair| pair[0] < pair[1]);
        let (count, in_order) = match self {
            Content::Set { members: names }
            | Content::Barrier { arrived: names, .. }
            | Content::Transaction { keys: names, .. } => (names.len(), rises(names)),
            Content::Map { entries } => (entries.len(), entries.windows(2).all(|pair| pair[0].0 < pair[1].0)),
            _ => (0, true),
        };
        match () {
            () if count > MAX_MEMBERS => invalid("members of a content", count, "at most MAX_MEMBERS"),
            () if !in_order => invalid("order of a content", count, "rising, without repetitions"),
            () => Ok(()),
        }
    }
}

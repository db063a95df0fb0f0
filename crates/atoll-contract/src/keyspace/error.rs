//! Why an operation on a keyspace failed, and whether it took effect.

use bytes::Bytes;

use super::{Ability, Floor};

/// Whether a failed operation happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It happened; only its answer is lost.
    Yes,
    /// It did not happen and will not happen.
    No,
    /// It may have happened, or may still happen.
    Unknown,
}

/// Why a keyspace cannot answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    /// Too many requests are under way; try again when some of them are done.
    #[error("too many requests are under way")]
    Busy,
    /// Not enough replicas answered in time.
    #[error("not enough replicas answered")]
    NoQuorum,
    /// The keyspace is held in memory, and a majority of its replicas has restarted since. What it held is lost: only a new epoch of the
    /// keyspace can serve again.
    #[error(
        "a majority of the replicas, which hold the keyspace in memory, has restarted: its content is lost"
    )]
    LostMajority,
    /// A disk is full. The keyspace works again once there is space.
    #[error("a disk is full")]
    DiskFull,
    /// The journal is closed after a failed write or sync.
    #[error("storage failed")]
    StorageFailed,
    /// The keyspace was deleted, or replaced by a newer epoch.
    #[error("the keyspace was deleted or replaced by a newer epoch")]
    Gone,
    /// The replicas of a shard are moving to other nodes, and the new ones do not serve yet.
    #[error("a shard is moving to other nodes, and has not arrived yet")]
    Moving,
    /// This process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

/// Why an operation on a keyspace has no answer. [`KeyspaceError::happened`] says whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyspaceError {
    /// The operation did not happen. A read fails only with this error, or because it was refused.
    #[error("not done: {0}")]
    NotDone(Unavailability),
    /// The write may have happened, or may still happen. To find out, repeat it with the same name and this floor.
    #[error("unknown outcome: {why}")]
    Unknown {
        /// Why there is no answer.
        why: Unavailability,
        /// The floor for a repeat.
        floor: Floor,
    },
    /// An earlier attempt may have happened, too long ago to be remembered. Nothing was done this time. To find out, read the key.
    #[error("an earlier attempt may have happened, too long ago to be remembered; read the key to find out")]
    Forgotten,
    /// The write happened, and its answer is no longer known.
    #[error("done; the answer is no longer known")]
    AnswerLost,
    /// The condition of the write did not hold at an earlier attempt. What the key held then is no longer known.
    #[error("not done: the condition did not hold at an earlier attempt")]
    ConditionFailed,
    /// The key is empty or too long. Nothing was done.
    #[error("the key has {bytes} bytes; 1 to {most} are allowed")]
    InvalidKey {
        /// Its length.
        bytes: usize,
        /// The longest key.
        most: usize,
    },
    /// The value is too long. Nothing was done.
    #[error("the value has {bytes} bytes; at most {most} are allowed")]
    ValueTooLong {
        /// Its length.
        bytes: usize,
        /// The longest value.
        most: usize,
    },
    /// The request names too many keys. Nothing was done.
    #[error("the request names {keys} keys; at most {most} are allowed")]
    TooManyKeys {
        /// How many it names.
        keys: usize,
        /// The most keys of a request.
        most: usize,
    },
    /// The transaction names no key. Nothing was done.
    #[error("the transaction names no key; it must name at least one")]
    NoKeys,
    /// The transaction names a key twice. Nothing was done.
    #[error("the transaction names the key {:?} twice; each key may be named once", key.escape_ascii().to_string())]
    KeyTwice {
        /// The key.
        key: Bytes,
    },
    /// The keys and values of the transaction are too long together. Nothing was done.
    #[error("the keys and values of the transaction have {bytes} bytes; at most {most} are allowed")]
    TooManyBytes {
        /// Their length.
        bytes: usize,
        /// The most bytes of a transaction.
        most: usize,
    },
    /// There is no room for this value: neither for a new key nor for a longer value. Values that replace others of the same length are
    /// accepted, and so are deletions. Nothing was done.
    #[error("no room: {}; delete keys, or write shorter values", full(what, *most))]
    Full {
        /// What is full.
        what: &'static str,
        /// How many bytes it holds at most; 0 if that is not known.
        most: usize,
    },
    /// The engine of this keyspace cannot do this. Nothing was done.
    #[error("keyspaces of the engine {engine:?} have no {what}")]
    Unsupported {
        /// The engine.
        engine: &'static str,
        /// What it lacks.
        what: Ability,
    },
}

fn full(what: &str, most: usize) -> String {
    match most {
        0 => format!("{what} can hold no more"),
        most => format!("{what} holds at most {most} bytes"),
    }
}

impl KeyspaceError {
    /// Returns the same error with another reason, if it has one.
    #[must_use]
    pub fn because(self, why: Unavailability) -> Self {
        match self {
            KeyspaceError::NotDone(_) => KeyspaceError::NotDone(why),
            KeyspaceError::Unknown { floor, .. } => KeyspaceError::Unknown { why, floor },
            other => other,
        }
    }

    /// Returns whether the operation happened.
    pub fn happened(&self) -> Happened {
        match self {
            KeyspaceError::Unknown { .. } | KeyspaceError::Forgotten => Happened::Unknown,
            KeyspaceError::AnswerLost => Happened::Yes,
            _ => Happened::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_room_names_a_limit_only_if_it_is_known() {
        let words = |what, most| KeyspaceError::Full { what, most }.to_string();
        assert!(words("the bucket of this key", 49_152).contains("holds at most 49152 bytes"));
        let replicas = words("a majority of the replicas", 0);
        assert!(replicas.contains("a majority of the replicas can hold no more; delete keys"), "{replicas}");
    }
}

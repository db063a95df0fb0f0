//! The records of CORFU-Store.

use bytes::Bytes;

use atoll_contract::OpId;

use crate::sessions::Stamp;

/// The longest key.
pub const MAX_KEY_BYTES: usize = 4 << 10;
/// The longest value.
pub const MAX_VALUE_BYTES: usize = 512 << 10;
/// The most keys in one multi-put or multi-get.
pub const MAX_KEYS: usize = 100;

atoll_core::choice! {
    /// A record of the store's log.
    pub enum StoreRecord {
        /// A value that a multi-put will commit. Alone it changes nothing.
        1 = Value { op: OpId, key: Bytes, value: Bytes },
        /// Commits a multi-put: each key takes the value at its position, or none if it is deleted. All at once.
        2 = Commit { stamp: Stamp, writes: Vec<(Bytes, Option<u64>)> },
        /// Gives every key the value that it had at an index. What happened since stays in the history.
        3 = Rollback { stamp: Stamp, to: u64 },
        /// A copy of the value at `old`, which takes its place wherever the key still has it.
        4 = Move { key: Bytes, old: u64, value: Bytes },
        /// From here on, a commit must not name a position below `below`, unless a key has its value there; and no index below `keep`
        /// can be read, or rolled back to.
        5 = Collect { below: u64, keep: u64 },
    }
}

impl StoreRecord {
    /// Returns the value that a position holds for a key. None if the record is none of that key.
    pub fn value_of(self, wanted: &[u8]) -> Option<Bytes> {
        match self {
            StoreRecord::Value { key, value, .. } | StoreRecord::Move { key, value, .. } => {
                (key == wanted).then_some(value)
            }
            _ => None,
        }
    }
}

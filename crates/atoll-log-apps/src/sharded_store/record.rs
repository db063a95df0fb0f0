//! The records of Scalog-Store.

use bytes::Bytes;

use crate::sessions::Stamp;

atoll_core::choice! {
    /// A record of the store's log.
    pub enum PutRecord {
        /// Gives a key a value, or deletes it. The value stays here: the map names this record.
        1 = Put { stamp: Stamp, key: Bytes, value: Option<Bytes> },
        /// A copy of the value at position `old`, which takes its place if the key still has it.
        2 = Move { key: Bytes, old: u64, value: Bytes },
    }
}

impl PutRecord {
    /// Returns the value that the record gives a key. None if the record is none of that key, or deletes it.
    pub fn value_of(self, wanted: &[u8]) -> Option<Bytes> {
        match self {
            PutRecord::Put { key, value, .. } => value.filter(|_| key == wanted),
            PutRecord::Move { key, value, .. } => (key == wanted).then_some(value),
        }
    }
}

//! The entries in a run.

use atoll_contract::OpId;
use atoll_core::{Decode, Encode, record};
use bytes::{Bytes, BytesMut};

use crate::error::Damaged;

record! {
    /// An entry as the replicas apply it.
    pub struct Entry {
        /// The name under which it was appended.
        pub op: OpId,
        /// Its time, in milliseconds since the Unix epoch; 0 if it has none.
        pub time_ms: u64,
        /// What an operator has done to it; the source knows the numbers.
        pub operated: u8,
        /// Its contents.
        pub payload: Bytes,
    }
}

/// The bytes of an entry beside its contents, at most.
pub(crate) const HEAD_BYTES: usize = 32;

pub(crate) fn encode(entries: &[Entry]) -> BytesMut {
    let bytes = entries.iter().map(|entry| HEAD_BYTES + entry.payload.len()).sum();
    let mut out = BytesMut::with_capacity(bytes);
    entries.iter().for_each(|entry| entry.encode(&mut out));
    out
}

/// Decodes this many entries.
pub(crate) fn decode(bytes: Bytes, count: u64) -> Result<Vec<Entry>, Damaged> {
    let mut from = atoll_core::Reader::new(bytes);
    let mut entries = Vec::new();
    while from.left() > 0 {
        entries.push(Entry::decode(&mut from).map_err(|_| Damaged("an entry is malformed"))?);
    }
    if entries.len() as u64 == count { Ok(entries) } else { Err(Damaged("it has another number of entries")) }
}

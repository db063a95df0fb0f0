//! The keys of the store. The first byte of a key identifies its kind. Tables and indices are identified by number.

use atoll_contract::application::KeyRange;
use bytes::{BufMut, Bytes, BytesMut};

const COUNTERS: u8 = 0;
const NAME: u8 = 1;
const SCHEMA: u8 = 2;
const ROW: u8 = 3;
const ENTRY: u8 = 4;
const PENDING: u8 = 5;
const CLIENT: u8 = 6;
const OUTCOME: u8 = 7;
const QUIET: u8 = 8;

/// The key of the [`crate::application::Counters`].
pub(crate) const COUNTERS_KEY: [u8; 1] = [COUNTERS];

fn key(kind: u8, f: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(32);
    out.put_u8(kind);
    f(&mut out);
    out.freeze()
}

/// Returns the key that holds the number of a table.
pub(crate) fn name(name: &str) -> Bytes {
    key(NAME, |out| out.put_slice(name.as_bytes()))
}

/// Returns the range of the names of all tables.
pub(crate) fn names() -> KeyRange {
    KeyRange::prefix(&[NAME])
}

/// Returns the key of a [`crate::Schema`].
pub(crate) fn schema(table: u32) -> Bytes {
    key(SCHEMA, |out| out.put_u32(table))
}

/// Returns the prefix of the keys of all rows of a table.
pub(crate) fn row_prefix(table: u32) -> Bytes {
    key(ROW, |out| out.put_u32(table))
}

/// Returns the key of a [`crate::row::StoredRow`].
pub(crate) fn row(table: u32, row_key: &[u8]) -> Bytes {
    joined(&row_prefix(table), row_key)
}

/// Returns the prefix of all index entries of a table.
pub(crate) fn entries_prefix(table: u32) -> Bytes {
    key(ENTRY, |out| out.put_u32(table))
}

/// Returns the prefix of all entries of an index.
pub(crate) fn entry_prefix(table: u32, index: u16) -> Bytes {
    key(ENTRY, |out| {
        out.put_u32(table);
        out.put_u16(index);
    })
}

/// Returns the key of an index entry, whose value is the row's key. If equal column values may occur more than once, the row's key
/// follows them in the entry's key.
pub(crate) fn entry(table: u32, index: u16, columns: &[u8], row_key: Option<&[u8]>) -> Bytes {
    let prefix = entry_prefix(table, index);
    let mut out = BytesMut::with_capacity(prefix.len() + columns.len() + row_key.map_or(0, <[u8]>::len));
    out.put_slice(&prefix);
    out.put_slice(columns);
    out.put_slice(row_key.unwrap_or_default());
    out.freeze()
}

/// Returns the key of pending background work on an index, or on a dropped table (index 0).
pub(crate) fn pending(table: u32, index: u16) -> Bytes {
    key(PENDING, |out| {
        out.put_u32(table);
        out.put_u16(index);
    })
}

/// Returns the range of all pending background work.
pub(crate) fn all_pending() -> KeyRange {
    KeyRange::prefix(&[PENDING])
}

/// Returns the key of a [`crate::clients::Client`].
pub(crate) fn client(id: u64) -> Bytes {
    key(CLIENT, |out| out.put_u64(id))
}

/// Returns the key of the outcome of a client's write.
pub(crate) fn outcome(id: u64, seq: u64) -> Bytes {
    key(OUTCOME, |out| {
        out.put_u64(id);
        out.put_u64(seq);
    })
}

/// Returns the range of all outcomes of a client.
pub(crate) fn outcomes(id: u64) -> KeyRange {
    KeyRange::prefix(&key(OUTCOME, |out| out.put_u64(id)))
}

/// Returns a key that orders the clients by their last writes. `last` is the version of that write.
pub(crate) fn quiet(last: u64) -> Bytes {
    key(QUIET, |out| out.put_u64(last))
}

/// Returns the version in a key of [`quiet`].
pub(crate) fn version_of_quiet(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.try_into().ok().map(u64::from_be_bytes)
}

/// Returns the range of all keys of [`quiet`].
pub(crate) fn all_quiet() -> KeyRange {
    KeyRange::prefix(&[QUIET])
}

/// Concatenates `head` and `tail`.
pub(crate) fn joined(head: &[u8], tail: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(head.len() + tail.len());
    out.put_slice(head);
    out.put_slice(tail);
    out.freeze()
}

//! Which key of the store holds what. The first byte identifies the kind; tables and indices are identified by number.

use atoll_db::KeyRange;
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

/// [`crate::application::Counters`].
pub(crate) const COUNTERS_KEY: [u8; 1] = [COUNTERS];

fn key(kind: u8, f: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut out = BytesMut::with_capacity(32);
    out.put_u8(kind);
    f(&mut out);
    out.freeze()
}

/// The table's number.
pub(crate) fn name(name: &str) -> Bytes {
    key(NAME, |out| out.put_slice(name.as_bytes()))
}

/// All names.
pub(crate) fn names() -> KeyRange {
    KeyRange::prefix(&[NAME])
}

/// A [`crate::Schema`].
pub(crate) fn schema(table: u32) -> Bytes {
    key(SCHEMA, |out| out.put_u32(table))
}

/// Before every key of a row.
pub(crate) fn row_prefix(table: u32) -> Bytes {
    key(ROW, |out| out.put_u32(table))
}

/// A [`crate::row::StoredRow`].
pub(crate) fn row(table: u32, row_key: &[u8]) -> Bytes {
    joined(&row_prefix(table), row_key)
}

/// Before every entry of all indices of a table.
pub(crate) fn entries_prefix(table: u32) -> Bytes {
    key(ENTRY, |out| out.put_u32(table))
}

/// Before every entry of an index.
pub(crate) fn entry_prefix(table: u32, index: u16) -> Bytes {
    key(ENTRY, |out| {
        out.put_u32(table);
        out.put_u16(index);
    })
}

/// An entry of an index; its value is the row's key. Where equal values may occur more than once, the row's key follows them.
pub(crate) fn entry(table: u32, index: u16, columns: &[u8], row_key: Option<&[u8]>) -> Bytes {
    let prefix = entry_prefix(table, index);
    let mut out = BytesMut::with_capacity(prefix.len() + columns.len() + row_key.map_or(0, <[u8]>::len));
    out.put_slice(&prefix);
    out.put_slice(columns);
    out.put_slice(row_key.unwrap_or_default());
    out.freeze()
}

/// Work in the background: on an index, or on a table that was dropped (index 0).
pub(crate) fn pending(table: u32, index: u16) -> Bytes {
    key(PENDING, |out| {
        out.put_u32(table);
        out.put_u16(index);
    })
}

/// All such work.
pub(crate) fn all_pending() -> KeyRange {
    KeyRange::prefix(&[PENDING])
}

/// A [`crate::clients::Client`].
pub(crate) fn client(id: u64) -> Bytes {
    key(CLIENT, |out| out.put_u64(id))
}

/// What became of a client's write.
pub(crate) fn outcome(id: u64, seq: u64) -> Bytes {
    key(OUTCOME, |out| {
        out.put_u64(id);
        out.put_u64(seq);
    })
}

/// All outcomes of a client.
pub(crate) fn outcomes(id: u64) -> KeyRange {
    KeyRange::prefix(&key(OUTCOME, |out| out.put_u64(id)))
}

/// Clients in the order of their last writes, keyed by the version of that write.
pub(crate) fn quiet(last: u64) -> Bytes {
    key(QUIET, |out| out.put_u64(last))
}

/// The version in such a key.
pub(crate) fn version_of_quiet(key: &[u8]) -> Option<u64> {
    key.get(1..9)?.try_into().ok().map(u64::from_be_bytes)
}

/// All clients in that order.
pub(crate) fn all_quiet() -> KeyRange {
    KeyRange::prefix(&[QUIET])
}

/// Concatenates both.
pub(crate) fn joined(head: &[u8], tail: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(head.len() + tail.len());
    out.put_slice(head);
    out.put_slice(tail);
    out.freeze()
}

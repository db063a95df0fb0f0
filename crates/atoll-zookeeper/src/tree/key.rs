//! The layout of the store. A znode's key consists of its parent's path and its name. The children of a node therefore form one
//! range, in the order of their names, and listing them reads nothing else.
//!
//! | key | value |
//! | --- | --- |
//! | `n` parent `\0` name | the node; the root is `n` alone |
//! | `d` path | data that is too long to be stored in the node; of longer data, the first piece |
//! | `d` path `\0` number | a further piece of data that is longer than a value of the store may be |
//! | `e` session path | an ephemeral of the session |
//! | `t` path | a container, or a node with a time to live |
//! | `s` session | the session |
//! | `h` node incarnation session | marks the holder of the session |
//! | `c` node | the addresses at which a node serves clients |
//! | `z` | the counters |
//! | `r` | the zxid of the last restore |
//! | `u` | the upload of a tree snapshot: its number, and the pieces and bytes so far |
//! | `u` number | a piece of that upload |

use std::ops::Range;

use atoll_db::{KeyRange, Proposer};
use smallvec::SmallVec;

use crate::path;

/// A key. Every command makes several, so short ones are not allocated.
pub type Key = SmallVec<[u8; 128]>;

/// The key of the counters: the newest zxid, the number of sessions opened so far, and others.
pub const COUNTERS: &[u8] = b"z";

/// The key of the zxid of the last restore, 8 bytes.
pub const RESTORED: &[u8] = b"r";

/// The key of the current upload of a tree snapshot.
pub const STAGED: &[u8] = b"u";

/// The id of a session.
pub type SessionId = i64;

fn joined(parts: &[&[u8]]) -> Key {
    let mut key = Key::new();
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

/// Returns the parent as it appears in keys. The root is empty there; otherwise its children would have two slashes.
fn parent_part(path: &str) -> &str {
    if path == path::ROOT { "" } else { path }
}

/// Returns the key of a znode. The empty path also means the root, as in ZooKeeper. A path that no node can have yields a key that
/// no node has.
pub fn node(of: &str) -> Key {
    match path::split(of) {
        None if of.is_empty() || of == path::ROOT => joined(&[b"n"]),
        None => joined(&[b"n", of.as_bytes()]),
        Some((parent, name)) => joined(&[b"n", parent_part(parent).as_bytes(), b"\0", name.as_bytes()]),
    }
}

/// Returns the range of a znode's children, in the order of their names.
pub fn children(of: &str) -> KeyRange {
    KeyRange::prefix(&joined(&[b"n", parent_part(of).as_bytes(), b"\0"]))
}

/// Returns the name of a child from its key.
pub fn child_name<'k>(parent: &str, key: &'k [u8]) -> &'k [u8] {
    key.get(2 + parent_part(parent).len()..).unwrap_or_default()
}

/// Returns the range of all nodes whose parent is below `of`. Together with the children, these are all nodes below `of`.
pub fn deeper(of: &str) -> KeyRange {
    KeyRange::prefix(&joined(&[b"n", parent_part(of).as_bytes(), b"/"]))
}

/// Returns the path from the key of a znode.
pub fn path_of_node(key: &[u8]) -> Option<String> {
    let rest = std::str::from_utf8(key.strip_prefix(b"n")?).ok()?;
    match rest.split_once('\0') {
        None => Some(path::ROOT.to_owned()),
        Some((parent, name)) => Some(format!("{parent}/{name}")),
    }
}

/// A path and data of this many bytes together are one entry of the store, which fits into a chunk that replicas send to each other.
/// This is part of the format: whether data is in pieces follows from its length.
pub const WHOLE_BYTES: usize = 1_000_000;
/// The size of the pieces of longer data, in bytes, except for the last one.
pub const PIECE_BYTES: usize = 512 * 1024;

/// Returns whether data of this many bytes that is not stored in the node is stored in pieces.
pub fn is_in_pieces(of: &str, length: usize) -> bool {
    of.len() + length > WHOLE_BYTES
}

/// Returns the keys of data that is not stored in the node, each with the part of the data under it. Data that is not in pieces has one.
pub fn data_pieces(of: &str, length: usize) -> impl Iterator<Item = (Key, Range<usize>)> + '_ {
    let each = if is_in_pieces(of, length) { PIECE_BYTES } else { length.max(1) };
    (0..length.div_ceil(each).max(1)).map(move |number| {
        let key = match number {
            0 => data(of),
            // Data has less than 4 GiB.
            _ => joined(&[&data(of), b"\0", &(number as u32).to_be_bytes()]),
        };
        (key, number * each..((number + 1) * each).min(length))
    })
}

/// Returns the key of data that is not stored in the node, or of its first piece. The empty path means the root, as in [`node`].
pub fn data(of: &str) -> Key {
    let of = if of.is_empty() { path::ROOT } else { of };
    joined(&[b"d", of.as_bytes()])
}

/// Returns the key of an ephemeral.
pub fn ephemeral(session: SessionId, of: &str) -> Key {
    joined(&[b"e", &session.to_be_bytes(), of.as_bytes()])
}

/// Returns the range of a session's ephemerals.
pub fn ephemerals(session: SessionId) -> KeyRange {
    KeyRange::prefix(&joined(&[b"e", &session.to_be_bytes()]))
}

/// Returns the path that follows the first `head` bytes of a key.
pub fn path_behind(key: &[u8], head: usize) -> Option<&str> {
    std::str::from_utf8(key.get(head..)?).ok()
}

/// The number of bytes before the path in the key of an ephemeral.
pub const EPHEMERAL_HEAD: usize = 9;
/// The number of bytes before the path in the key of a container or a node with a time to live.
pub const TRANSIENT_HEAD: usize = 1;

/// Returns the key of a container, or of a node with a time to live.
pub fn transient(of: &str) -> Key {
    joined(&[b"t", of.as_bytes()])
}

/// Returns the range of all containers and nodes with a time to live.
pub fn transients() -> KeyRange {
    KeyRange::prefix(b"t")
}

/// Returns the key of the addresses at which a node serves clients.
pub fn server(node: u32) -> Key {
    joined(&[b"c", &node.to_be_bytes()])
}

/// Returns the range of all these addresses, in the order of the nodes' ids.
pub fn servers() -> KeyRange {
    KeyRange::prefix(b"c")
}

/// Returns the key of a session.
pub fn session(id: SessionId) -> Key {
    joined(&[b"s", &id.to_be_bytes()])
}

/// Returns the range of all sessions.
pub fn sessions() -> KeyRange {
    KeyRange::prefix(b"s")
}

/// Returns the key that marks a session's holder.
pub fn held(by: Proposer, id: SessionId) -> Key {
    joined(&[b"h", &by.node.0.to_be_bytes(), &by.incarnation.0.to_be_bytes(), &id.to_be_bytes()])
}

/// Returns the range of the sessions of one holder.
pub fn held_by(by: Proposer) -> KeyRange {
    KeyRange::prefix(&joined(&[b"h", &by.node.0.to_be_bytes(), &by.incarnation.0.to_be_bytes()]))
}

/// Returns the key of a piece of the current upload.
pub fn staged_piece(number: i32) -> Key {
    joined(&[STAGED, &number.to_be_bytes()])
}

/// Returns the session id at the end of a key.
pub fn session_at_end(key: &[u8]) -> Option<SessionId> {
    key.last_chunk::<8>().map(|id| SessionId::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn children_and_what_is_deeper_are_ranges() {
        for (parent, child) in [("/", "/a"), ("/a", "/a/b"), ("/a", "/a/\u{10000}")] {
            assert!(children(parent).contains(&node(child)), "{parent} {child}");
            assert_eq!(child_name(parent, &node(child)), path::split(child).unwrap().1.as_bytes());
        }
        for (parent, other) in
            [("/", "/a/b"), ("/a", "/a"), ("/a", "/ab"), ("/a", "/ab/c"), ("/a", "/a/b/c"), ("/", "/")]
        {
            assert!(!children(parent).contains(&node(other)), "{parent} {other}");
        }
        assert!(deeper("/a").contains(&node("/a/b/c")) && deeper("/").contains(&node("/a/b")));
        for other in ["/a", "/a/b", "/ab/c", "/ab/c/d"] {
            assert!(!deeper("/a").contains(&node(other)), "{other}");
        }
    }

    #[test]
    fn the_pieces_of_data_are_all_of_it_and_in_order() {
        assert_eq!(data_pieces("/a", 2_000).collect::<Vec<_>>(), [(data("/a"), 0..2_000)]);
        assert_eq!(data_pieces("/a", WHOLE_BYTES - 2).count(), 1);
        for length in [WHOLE_BYTES - 1, 2 * PIECE_BYTES, 2 * PIECE_BYTES + 1, 16 << 20] {
            let pieces: Vec<_> = data_pieces("/a", length).collect();
            assert!(pieces.is_sorted_by(|a, b| a.0 < b.0 && a.1.end == b.1.start));
            assert_eq!((pieces[0].1.start, pieces.last().map(|p| p.1.end)), (0, Some(length)));
            assert!(pieces.iter().all(|p| p.1.len() <= PIECE_BYTES && p.0 < data("/a/b")));
        }
    }

    #[test]
    fn paths_come_back() {
        assert_eq!((node(""), data("")), (node("/"), data("/")));
        assert!(!children("/").contains(&node("a")) && !deeper("/").contains(&node("a")));
        for path in ["/", "/a", "/a/b"] {
            assert_eq!(path_of_node(&node(path)).as_deref(), Some(path));
        }
        assert_eq!(path_behind(&ephemeral(7, "/a"), EPHEMERAL_HEAD), Some("/a"));
        assert_eq!(path_behind(&transient("/a"), TRANSIENT_HEAD), Some("/a"));
        assert_eq!(session_at_end(&session(-5)), Some(-5));
    }
}

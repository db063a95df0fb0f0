//! Reads of a published view.

use atoll_db::{Direction, StoreError, View};
use bytes::Bytes;

use super::key;
use super::node::{Data, Node};
use super::restore::Staged;
use super::state::Counters;
use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::{ErrorCode, perms};
use crate::jute::records::Id;
use crate::session::state::Session;

/// Why a read has no result. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// What the client is told.
    #[error("{0:?}")]
    Refused(ErrorCode),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What the store holds cannot be understood.
    #[error("what is kept under {what} cannot be read: the store is damaged, or a later version wrote it")]
    Damaged {
        /// Which part.
        what: String,
    },
}

impl From<ErrorCode> for ReadError {
    fn from(code: ErrorCode) -> Self {
        ReadError::Refused(code)
    }
}

fn damaged(what: &str) -> ReadError {
    ReadError::Damaged { what: what.to_owned() }
}

/// What is counted, the newest change among it.
///
/// # Errors
/// The store cannot be read.
pub fn counters(view: &View) -> Result<Counters, ReadError> {
    let Some(bytes) = view.get(key::COUNTERS)? else { return Ok(Counters::FIRST) };
    Counters::parse(&bytes).map_err(|_| damaged("the counters"))
}

/// A node, if there is one.
///
/// # Errors
/// The store cannot be read.
pub fn node(view: &View, path: &str) -> Result<Option<Node>, ReadError> {
    let Some(bytes) = view.get(&key::node(path))? else { return Ok(None) };
    Node::of_bytes(&bytes).map(Some).map_err(|_| damaged(path))
}

/// A node that a client may read. Paths that no node can have are those of nodes that are not there, but for the empty one: the
/// root, as ZooKeeper has it.
///
/// # Errors
/// There is no such node, or the client may not.
pub fn readable(view: &View, path: &str, client: &[Id<'_>], wanted: i32) -> Result<Node, ReadError> {
    let node = node(view, path)?.ok_or(ErrorCode::NoNode)?;
    if !acl::stored_allows(&node.acl, client, wanted) {
        return Err(ErrorCode::NoAuth.into());
    }
    Ok(node)
}

/// A node with its data.
///
/// # Errors
/// As [`readable`].
pub fn data(view: &View, path: &str, client: &[Id<'_>]) -> Result<(Node, Option<Bytes>), ReadError> {
    let node = readable(view, path, client, perms::READ)?;
    let data = match &node.data {
        Data::Null => None,
        Data::Here(bytes) => Some(bytes.clone()),
        Data::Apart(_) => Some(view.get(&key::data(path))?.ok_or_else(|| damaged(path))?),
    };
    Ok((node, data))
}

/// A node whose children a client may list.
///
/// # Errors
/// As [`readable`].
pub fn listable(view: &View, path: &str, client: &[Id<'_>]) -> Result<Node, ReadError> {
    readable(view, path, client, perms::READ)
}

/// The name of a child in its key.
///
/// # Errors
/// The key is none.
pub fn name_of_child<'k>(parent: &str, key: &'k [u8]) -> Result<&'k str, ReadError> {
    std::str::from_utf8(key::child_name(parent, key)).map_err(|_| damaged(parent))
}

/// The path of an ephemeral in its key.
///
/// # Errors
/// The key is none.
pub fn path_of_ephemeral(key: &[u8]) -> Result<&str, ReadError> {
    key::path_behind(key, key::EPHEMERAL_HEAD).ok_or_else(|| damaged("an ephemeral"))
}

/// Gives the path of each ephemeral of a session whose path begins with `top` to `each`, in order.
///
/// # Errors
/// The store cannot be read.
pub fn ephemerals(view: &View, session: i64, top: &str, mut each: impl FnMut(&str)) -> Result<(), ReadError> {
    for found in view.scan(&key::ephemerals(session), Direction::Forward) {
        let (key, _) = found?;
        let path = path_of_ephemeral(&key)?;
        if path.starts_with(top) {
            each(path);
        }
    }
    Ok(())
}

/// The zxid of the last restore; 0 if there was none.
///
/// # Errors
/// The store cannot be read.
pub fn restored(view: &View) -> Result<i64, ReadError> {
    let Some(bytes) = view.get(key::RESTORED)? else { return Ok(0) };
    i64::parse(&bytes).map_err(|_| damaged("the last restore"))
}

/// The upload of a snapshot that is in the state and how many pieces it has, if there is one.
///
/// # Errors
/// The store cannot be read.
pub fn staged(view: &View) -> Result<Option<(i64, i32)>, ReadError> {
    let Some(bytes) = view.get(key::STAGED)? else { return Ok(None) };
    let staged = Staged::parse(&bytes).map_err(|_| damaged("an upload"))?;
    Ok(Some((staged.upload, staged.pieces)))
}

/// A session, if there is one.
///
/// # Errors
/// The store cannot be read.
pub fn session(view: &View, id: i64) -> Result<Option<Session>, ReadError> {
    let Some(bytes) = view.get(&key::session(id))? else { return Ok(None) };
    Session::of_bytes(&bytes).map(Some).map_err(|_| damaged("a session"))
}

//! Reads of a published view.

use atoll_db::{Direction, InMemory, StoreError, View};
use bytes::{Bytes, BytesMut};

use super::key;
use super::node::{Data, Node};
use super::restore::Staged;
use super::state::Counters;
use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::{ErrorCode, perms};
use crate::jute::records::Id;
use crate::session::state::Session;

/// The reason why a read has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The client gets this error code.
    #[error("{0:?}")]
    Refused(ErrorCode),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record cannot be decoded.
    #[error(
        "the value stored under {what} cannot be read: the store is damaged, or a later version wrote it"
    )]
    Damaged {
        /// The record.
        what: String,
    },
    /// What is read is not in memory, and the source does not wait for the disk: [`OnlyInMemory`].
    #[error("it must be read from the disk, on another thread")]
    OnDisk,
}

impl From<ErrorCode> for ReadError {
    fn from(code: ErrorCode) -> Self {
        ReadError::Refused(code)
    }
}

/// Where the values of single keys are read.
pub trait Source {
    /// Returns the value of a key.
    ///
    /// # Errors
    /// The store cannot be read, or the value is not in memory and this source does not wait for the disk.
    fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError>;
}

impl Source for View {
    fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        Ok(self.get(key)?)
    }
}

/// A view for a thread that must not wait for the disk. Reads of anything that is not in memory fail with [`ReadError::OnDisk`].
#[derive(Clone, Copy, Debug)]
pub struct OnlyInMemory<'v>(pub &'v View);

impl Source for OnlyInMemory<'_> {
    fn value(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.0.get_in_memory(key) {
            InMemory::Known(value) => Ok(value),
            InMemory::OnDisk => Err(ReadError::OnDisk),
        }
    }
}

fn damaged(what: &str) -> ReadError {
    ReadError::Damaged { what: what.to_owned() }
}

/// Returns the counters, which include the zxid of the newest change.
///
/// # Errors
/// The store cannot be read.
pub fn counters(source: &dyn Source) -> Result<Counters, ReadError> {
    let Some(bytes) = source.value(key::COUNTERS)? else { return Ok(Counters::FIRST) };
    Counters::parse(&bytes).map_err(|_| damaged("the counters"))
}

/// Returns a node, if it exists.
///
/// # Errors
/// The store cannot be read.
pub fn node(source: &dyn Source, path: &str) -> Result<Option<Node>, ReadError> {
    let Some(bytes) = source.value(&key::node(path))? else { return Ok(None) };
    Node::of_bytes(&bytes).map(Some).map_err(|_| damaged(path))
}

/// Returns a node that the client may access with one of the wanted permissions. A path that no node can have is treated like that
/// of a missing node. The empty path means the root, as in ZooKeeper.
///
/// # Errors
/// NoNode, NoAuth, or the store cannot be read.
pub fn readable(source: &dyn Source, path: &str, client: &[Id<'_>], wanted: i32) -> Result<Node, ReadError> {
    let node = node(source, path)?.ok_or(ErrorCode::NoNode)?;
    if !acl::stored_allows(&node.acl, client, wanted) {
        return Err(ErrorCode::NoAuth.into());
    }
    Ok(node)
}

/// Returns a node with its data.
///
/// # Errors
/// As [`readable`].
pub fn data(source: &dyn Source, path: &str, client: &[Id<'_>]) -> Result<(Node, Option<Bytes>), ReadError> {
    let node = readable(source, path, client, perms::READ)?;
    let data = match &node.data {
        Data::Null => None,
        Data::Here(bytes) => Some(bytes.clone()),
        Data::Apart(length) => Some(apart(source, path, *length as usize)?),
    };
    Ok((node, data))
}

fn apart(source: &dyn Source, path: &str, length: usize) -> Result<Bytes, ReadError> {
    if !key::is_in_pieces(path, length) {
        return source.value(&key::data(path))?.ok_or_else(|| damaged(path));
    }
    let mut whole = BytesMut::with_capacity(length);
    for (key, place) in key::data_pieces(path, length) {
        let piece = source.value(&key)?.filter(|piece| piece.len() == place.len());
        whole.extend_from_slice(&piece.ok_or_else(|| damaged(path))?);
    }
    Ok(whole.freeze())
}

/// Returns a node whose children the client may list.
///
/// # Errors
/// As [`readable`].
pub fn listable(source: &dyn Source, path: &str, client: &[Id<'_>]) -> Result<Node, ReadError> {
    readable(source, path, client, perms::READ)
}

/// Returns the name of a child from its key.
///
/// # Errors
/// The key is not that of a child.
pub fn name_of_child<'k>(parent: &str, key: &'k [u8]) -> Result<&'k str, ReadError> {
    std::str::from_utf8(key::child_name(parent, key)).map_err(|_| damaged(parent))
}

/// Returns the path of an ephemeral from its key.
///
/// # Errors
/// The key is not that of an ephemeral.
pub fn path_of_ephemeral(key: &[u8]) -> Result<&str, ReadError> {
    key::path_behind(key, key::EPHEMERAL_HEAD).ok_or_else(|| damaged("an ephemeral"))
}

/// Passes the path of each ephemeral of a session to `each`, in order, if the path begins with `top`.
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

/// Returns the zxid of the last restore, or 0 if there was none.
///
/// # Errors
/// The store cannot be read.
pub fn restored(source: &dyn Source) -> Result<i64, ReadError> {
    let Some(bytes) = source.value(key::RESTORED)? else { return Ok(0) };
    i64::parse(&bytes).map_err(|_| damaged("the last restore"))
}

/// Returns the current upload of a tree snapshot, if there is one: its number, and its number of pieces so far.
///
/// # Errors
/// The store cannot be read.
pub fn staged(source: &dyn Source) -> Result<Option<(i64, i32)>, ReadError> {
    let Some(bytes) = source.value(key::STAGED)? else { return Ok(None) };
    let staged = Staged::parse(&bytes).map_err(|_| damaged("an upload"))?;
    Ok(Some((staged.upload, staged.pieces)))
}

/// Returns a session, if it exists.
///
/// # Errors
/// The store cannot be read.
pub fn session(source: &dyn Source, id: i64) -> Result<Option<Session>, ReadError> {
    let Some(bytes) = source.value(&key::session(id))? else { return Ok(None) };
    Session::of_bytes(&bytes).map(Some).map_err(|_| damaged("a session"))
}

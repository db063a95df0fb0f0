//! Znodes as they are stored.

use bytes::Bytes;

use crate::jute::records::Stat;
use crate::jute::{Jute, Reader};

/// Data of at most this many bytes is stored in the node, which is rewritten when its children change. Longer data has its own key.
pub const INLINE_BYTES: usize = 1024;
/// The version of the format.
const FORMAT: u8 = 1;
/// The stored owner of a container.
pub const CONTAINER_OWNER: i64 = i64::MIN;
/// The highest byte of the stored owner of a node with a time to live.
const TTL_MARK: u64 = 0xff << 56;
/// Longest time to live, in milliseconds.
pub const MAX_TTL_MS: i64 = 0xff_ffff_ffff;

/// When a node is deleted without a client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Never.
    Persistent,
    /// When this session ends.
    Ephemeral(i64),
    /// When its last child is gone.
    Container,
    /// When it has had no change for this many milliseconds, and has no children.
    Ttl(i64),
}

impl Lifetime {
    /// Returns the owner field as it is stored: the session, or a marker.
    pub fn owner(self) -> i64 {
        match self {
            Lifetime::Persistent => 0,
            Lifetime::Ephemeral(session) => session,
            Lifetime::Container => CONTAINER_OWNER,
            Lifetime::Ttl(ms) => (TTL_MARK as i64) | ms,
        }
    }

    /// Decodes the owner field.
    pub fn of_owner(owner: i64) -> Lifetime {
        match owner {
            0 => Lifetime::Persistent,
            CONTAINER_OWNER => Lifetime::Container,
            owner if (owner as u64) & TTL_MARK == TTL_MARK => Lifetime::Ttl(owner & !(TTL_MARK as i64)),
            session => Lifetime::Ephemeral(session),
        }
    }
}

/// The data of a znode, and where it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// There is no data. Clients can tell this from empty data.
    Null,
    /// The data is stored in the node.
    Here(Bytes),
    /// The data has its own key. This is its length in bytes.
    Apart(u32),
}

impl Data {
    /// Returns the length of the data in bytes.
    pub fn length(&self) -> usize {
        match self {
            Data::Null => 0,
            Data::Here(bytes) => bytes.len(),
            Data::Apart(length) => *length as usize,
        }
    }
}

/// A znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The zxid of its creation.
    pub czxid: i64,
    /// The zxid of the last change of its data.
    pub mzxid: i64,
    /// The zxid of the last change of its children.
    pub pzxid: i64,
    /// The time of its creation, in milliseconds since the Unix epoch.
    pub ctime: i64,
    /// The time of the last change of its data, in milliseconds since the Unix epoch.
    pub mtime: i64,
    /// The number of changes of its data.
    pub version: i32,
    /// The number of children ever created, which is also the number of the next sequential child. `cversion` is derived from it.
    pub created: i32,
    /// The number of changes of its ACL.
    pub aversion: i32,
    /// The number of its children.
    pub children: i32,
    /// When it is deleted without a client's request.
    pub lifetime: Lifetime,
    /// Its ACL, as `acl::stored` encodes it.
    pub acl: Bytes,
    /// Its data.
    pub data: Data,
}

/// The stored bytes are not a znode: the store is damaged, or a later version wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of a znode cannot be read: the store is damaged, or a later version wrote it")]
pub struct BadNode;

impl Node {
    /// Creates a node.
    pub fn new(zxid: i64, time_ms: i64, lifetime: Lifetime, acl: Bytes, data: Data) -> Node {
        Node {
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: time_ms,
            mtime: time_ms,
            version: 0,
            created: 0,
            aversion: 0,
            children: 0,
            lifetime,
            acl,
            data,
        }
    }

    /// Returns the Stat that clients see. `cversion` counts creations and deletions of children: a child that is gone counts twice.
    pub fn stat(&self) -> Stat {
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.created.wrapping_mul(2).wrapping_sub(self.children),
            aversion: self.aversion,
            ephemeral_owner: if let Lifetime::Ephemeral(session) = self.lifetime { session } else { 0 },
            data_length: i32::try_from(self.data.length()).unwrap_or(i32::MAX),
            num_children: self.children,
            pzxid: self.pzxid,
        }
    }

    /// Encodes the node for the store.
    pub fn to_bytes(&self) -> Vec<u8> {
        let inline = if let Data::Here(bytes) = &self.data { bytes.len() } else { 0 };
        let mut out = Vec::with_capacity(80 + self.acl.len() + inline);
        let place = match self.data {
            Data::Null => 0,
            Data::Here(_) => 1,
            Data::Apart(_) => 2,
        };
        out.extend_from_slice(&[FORMAT, place]);
        for long in [self.czxid, self.mzxid, self.pzxid, self.ctime, self.mtime, self.lifetime.owner()] {
            long.write(&mut out);
        }
        for int in [self.version, self.created, self.aversion, self.children] {
            int.write(&mut out);
        }
        Some(&self.acl[..]).write(&mut out);
        match &self.data {
            Data::Null => {}
            Data::Here(bytes) => out.extend_from_slice(bytes),
            Data::Apart(length) => out.extend_from_slice(&length.to_be_bytes()),
        }
        out
    }

    /// Decodes a stored node. Its ACL and inline data share the memory of `bytes`.
    ///
    /// # Errors
    /// The bytes are not a znode.
    pub fn of_bytes(bytes: &Bytes) -> Result<Node, BadNode> {
        let mut from = Reader::new(bytes);
        let head = from.take(2, "znode").map_err(|_| BadNode)?;
        let (format, place) = (head[0], head[1]);
        if format != FORMAT {
            return Err(BadNode);
        }
        let mut long = || i64::read(&mut from).map_err(|_| BadNode);
        let [czxid, mzxid, pzxid, ctime, mtime, owner] =
            [long()?, long()?, long()?, long()?, long()?, long()?];
        let mut int = || i32::read(&mut from).map_err(|_| BadNode);
        let [version, created, aversion, children] = [int()?, int()?, int()?, int()?];
        let acl: Option<&[u8]> = Option::read(&mut from).map_err(|_| BadNode)?;
        let rest = from.rest();
        let data = match place {
            0 => Data::Null,
            1 => Data::Here(bytes.slice_ref(rest)),
            2 => Data::Apart(u32::from_be_bytes(rest.try_into().map_err(|_| BadNode)?)),
            _ => return Err(BadNode),
        };
        let lifetime = Lifetime::of_owner(owner);
        let acl = bytes.slice_ref(acl.unwrap_or_default());
        Ok(Node {
            czxid,
            mzxid,
            pzxid,
            ctime,
            mtime,
            version,
            created,
            aversion,
            children,
            lifetime,
            acl,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn owners_tell_lifetimes() {
        for lifetime in [
            Lifetime::Persistent,
            Lifetime::Ephemeral(0x0100_0000_0000_0001),
            Lifetime::Container,
            Lifetime::Ttl(1),
            Lifetime::Ttl(MAX_TTL_MS),
        ] {
            assert_eq!(Lifetime::of_owner(lifetime.owner()), lifetime);
        }
        assert_eq!(Lifetime::Ttl(5).owner(), 0xff00_0000_0000_0005_u64 as i64);
    }

    #[test]
    fn nodes_come_back() {
        let data =
            [Data::Null, Data::Here(Bytes::new()), Data::Here(Bytes::from_static(b"x")), Data::Apart(70_000)];
        for data in data {
            let mut node = Node::new(7, 8, Lifetime::Ephemeral(9), Bytes::from_static(b"acl"), data);
            node.created = 5;
            node.children = 2;
            let bytes = Bytes::from(node.to_bytes());
            assert_eq!(Node::of_bytes(&bytes).as_ref(), Ok(&node));
            assert_eq!(node.stat().cversion, 8);
            for cut in 0..60 {
                assert_eq!(Node::of_bytes(&bytes.slice(..cut)), Err(BadNode));
            }
        }
    }
}

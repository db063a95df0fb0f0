//! The writes create, create2, createContainer and createTTL.

use atoll_core::testing::mutant;
use bytes::Bytes;

use super::key;
use super::node::{Data, Lifetime, MAX_TTL_MS, Node};
use super::state::{Keys, TreeState, length};
use crate::acl;
use crate::event::{Change, Event};
use crate::jute::codes::{CreateMode, ErrorCode, perms};
use crate::jute::records::{Acl, Id};
use crate::mutants;
use crate::path;

/// A node to create.
#[derive(Clone, Copy, Debug)]
pub struct Create<'r> {
    /// Its path. A sequential node's number is appended.
    pub path: &'r str,
    /// Its data.
    pub data: Option<&'r [u8]>,
    /// Its ACL.
    pub acl: &'r [Acl<'r>],
    /// Its mode.
    pub mode: CreateMode,
    /// Its time to live in milliseconds. None if the request has no such field.
    pub ttl_ms: Option<i64>,
    /// The session that creates it.
    pub session: i64,
    /// The client's ids.
    pub client: &'r [Id<'r>],
}

/// Returns when a new node is deleted without a client's request.
///
/// # Errors
/// BadArguments: the time to live is invalid, or it is given for a mode without one.
pub fn lifetime(mode: CreateMode, ttl_ms: Option<i64>, session: i64) -> Result<Lifetime, ErrorCode> {
    if mode.has_ttl() {
        return match ttl_ms {
            Some(ms) if (1..=MAX_TTL_MS).contains(&ms) => Ok(Lifetime::Ttl(ms)),
            _ => Err(ErrorCode::BadArguments),
        };
    }
    if ttl_ms.is_some_and(|ms| ms >= 0) {
        return Err(ErrorCode::BadArguments);
    }
    Ok(match mode {
        CreateMode::Container => Lifetime::Container,
        mode if mode.is_ephemeral() => Lifetime::Ephemeral(session),
        _ => Lifetime::Persistent,
    })
}

impl<K: Keys> TreeState<'_, K> {
    /// Creates a node; returns its path and the node.
    ///
    /// # Errors
    /// The same as in ZooKeeper, checked in the same order: an invalid request, a missing parent, a missing permission, an existing
    /// node, an ephemeral parent. QuotaExceeded, if a hard quota is enforced.
    pub fn create(&mut self, new: Create<'_>) -> Result<(String, Node), ErrorCode> {
        assert!(!(mutant(mutants::ZK_POISON) && new.path.ends_with("/poison")), "as the drill wants it");
        let lifetime = lifetime(new.mode, new.ttl_ms, new.session)?;
        let parent_path = path::parent(new.path)?;
        let acl = Bytes::from(acl::stored(&acl::made_whole(new.acl, new.client)?));
        let mut parent = self.need(parent_path)?;
        self.check_access(&parent, new.client, perms::CREATE)?;
        let path =
            if new.mode.is_sequential() { numbered(new.path, parent.created) } else { new.path.to_owned() };
        path::valid(&path)?;
        if self.keys.get(&key::node(&path)).is_some() {
            return Err(ErrorCode::NodeExists);
        }
        if matches!(parent.lifetime, Lifetime::Ephemeral(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        let bytes = length(new.data.map_or(0, <[u8]>::len));
        self.check_quota(&path, bytes, 1)?;
        self.weight.add_acl(acl.len());
        let data = self.place(&path, &Data::Null, new.data);
        let node = Node::new(self.zxid, self.time_ms, lifetime, acl.clone(), data);
        self.put_node(&path, &node);
        self.count(&path, &node, 1);
        match lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => self.keys.put(&key::ephemeral(session, &path), Vec::new()),
            Lifetime::Container | Lifetime::Ttl(_) => self.keys.put(&key::transient(&path), Vec::new()),
        }
        parent.created = parent.created.wrapping_add(1);
        parent.children += 1;
        parent.pzxid = self.zxid;
        self.put_node(parent_path, &parent);
        self.quota_changed(&path, bytes, 1);
        self.keys.emit(Event::Node {
            change: Change::Created,
            path: path.clone(),
            zxid: self.zxid,
            acl,
            parent_acl: parent.acl,
        });
        Ok((path, node))
    }
}

/// Appends the number of a sequential node: ten digits, or eleven characters with a minus sign.
fn numbered(path: &str, number: i32) -> String {
    format!("{path}{number:010}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_ten_digits() {
        assert_eq!(numbered("/a-", 7), "/a-0000000007");
        assert_eq!(numbered("/a/", i32::MAX), "/a/2147483647");
        assert_eq!(numbered("/", i32::MIN), "/-2147483648");
    }
}

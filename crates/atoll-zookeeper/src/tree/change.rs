//! The writes delete, setData and setACL, and check.

use bytes::Bytes;

use super::key;
use super::node::{Data, Lifetime, Node};
use super::state::{Keys, TreeState, length, next_version};
use crate::acl;
use crate::event::{Change, Event};
use crate::jute::codes::{ErrorCode, perms};
use crate::jute::records::{Acl, Id};
use crate::path;

impl<K: Keys> TreeState<'_, K> {
    /// Deletes a node without children.
    ///
    /// # Errors
    /// The same as in ZooKeeper, checked in the same order.
    pub fn delete(&mut self, path: &str, version: i32, client: &[Id<'_>]) -> Result<(), ErrorCode> {
        if path::is_special(path) {
            return Err(ErrorCode::BadArguments);
        }
        let parent_path = path::parent(path)?;
        let parent = self.need(parent_path)?;
        self.check_access(&parent, client, perms::DELETE)?;
        let node = self.need(path)?;
        next_version(node.version, version)?;
        if node.children > 0 {
            return Err(ErrorCode::NotEmpty);
        }
        self.remove(path, node, parent_path, parent);
        Ok(())
    }

    /// Removes a node without children from the tree, without any checks.
    pub fn remove(&mut self, path: &str, node: Node, parent_path: &str, mut parent: Node) {
        self.keys.delete(&key::node(path));
        self.count(path, &node, -1);
        if let Data::Apart(bytes) = node.data {
            self.weight.add_data(bytes);
            key::data_pieces(path, bytes as usize).for_each(|(key, _)| self.keys.delete(&key));
        }
        match node.lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => self.keys.delete(&key::ephemeral(session, path)),
            Lifetime::Container | Lifetime::Ttl(_) => self.keys.delete(&key::transient(path)),
        }
        parent.children -= 1;
        parent.pzxid = self.zxid;
        self.put_node(parent_path, &parent);
        self.quota_changed(path, -length(node.data.length()), -1);
        self.keys.emit(Event::Node {
            change: Change::Deleted,
            path: path.to_owned(),
            zxid: self.zxid,
            acl: node.acl,
            parent_acl: parent.acl,
        });
    }

    /// Sets a node's data; returns the node after the change.
    ///
    /// # Errors
    /// The same as in ZooKeeper, checked in the same order. QuotaExceeded, if a hard quota is enforced.
    pub fn set_data(
        &mut self,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
        client: &[Id<'_>],
    ) -> Result<Node, ErrorCode> {
        path::valid(path)?;
        let mut node = self.need(path)?;
        self.check_access(&node, client, perms::WRITE)?;
        let more = length(data.map_or(0, <[u8]>::len)) - length(node.data.length());
        self.check_quota(path, more, 0)?;
        node.version = next_version(node.version, version)?;
        node.data = self.place(path, &node.data, data);
        self.counters.bytes += more;
        node.mzxid = self.zxid;
        node.mtime = self.time_ms;
        self.put_node(path, &node);
        self.quota_changed(path, more, 0);
        self.keys.emit(Event::Node {
            change: Change::DataSet,
            path: path.to_owned(),
            zxid: self.zxid,
            acl: node.acl.clone(),
            parent_acl: Bytes::new(),
        });
        Ok(node)
    }

    /// Sets a node's ACL; returns the node after the change.
    ///
    /// # Errors
    /// The same as in ZooKeeper, checked in the same order.
    pub fn set_acl(
        &mut self,
        path: &str,
        list: &[Acl<'_>],
        version: i32,
        client: &[Id<'_>],
    ) -> Result<Node, ErrorCode> {
        path::valid(path)?;
        let list = acl::made_whole(list, client)?;
        let mut node = self.need(path)?;
        self.check_access(&node, client, perms::ADMIN)?;
        node.aversion = next_version(node.aversion, version)?;
        node.acl = acl::stored(&list).into();
        self.put_node(path, &node);
        self.keys.emit(Event::Node {
            change: Change::AclSet,
            path: path.to_owned(),
            zxid: self.zxid,
            acl: node.acl.clone(),
            parent_acl: Bytes::new(),
        });
        Ok(node)
    }

    /// Returns the node if it has the expected version.
    ///
    /// # Errors
    /// The same as in ZooKeeper, checked in the same order.
    pub fn check(&mut self, path: &str, version: i32, client: &[Id<'_>]) -> Result<Node, ErrorCode> {
        path::valid(path)?;
        let node = self.need(path)?;
        self.check_access(&node, client, perms::READ)?;
        next_version(node.version, version)?;
        Ok(node)
    }
}

//! Imports of znodes from another ensemble, with the Stat that they had there.
//!
//! All zxids of an import are below those of later changes here, because the first command of an import raises the epoch above the
//! other ensemble's. Therefore the whole Stat can be kept, and a client that was served by the other ensemble is never ahead of
//! this state (contracts X23).

use bytes::Bytes;

use super::key;
use super::node::{Data, Lifetime, MAX_TTL_MS, Node};
use super::state::{Keys, TreeState, length};
use crate::acl;
use crate::event::{Change, Event};
use crate::jute::codes::{ErrorCode, perms};
use crate::jute::records::Id;
use crate::jute::reply::ImportReply;
use crate::jute::request::{ImportNode, ImportRequest};
use crate::path;

/// The permissions on `/` that the client needs, as for a restore of a snapshot in ZooKeeper, because an import bypasses the ACLs
/// of the nodes.
const ALL: [i32; 5] = [perms::READ, perms::WRITE, perms::CREATE, perms::DELETE, perms::ADMIN];

enum Imported {
    Made,
    Replaced,
    Same,
}

fn lifetime(owner: i64) -> Result<Lifetime, ErrorCode> {
    match Lifetime::of_owner(owner) {
        Lifetime::Ephemeral(_) => Err(ErrorCode::BadArguments),
        Lifetime::Ttl(ms) if !(1..=MAX_TTL_MS).contains(&ms) => Err(ErrorCode::BadArguments),
        other => Ok(other),
    }
}

impl<K: Keys> TreeState<'_, K> {
    /// Imports znodes as they were in the other ensemble. Quotas do not apply.
    ///
    /// # Errors
    /// NoAuth: the client lacks a permission on `/`. NoNode: a parent is missing. NodeExists: a node exists with other contents,
    /// and replacing is not requested. NoChildrenForEphemerals: a parent is an ephemeral. InvalidACL: an ACL is too long.
    /// BadArguments: a path is not allowed or belongs to the system, a node is an ephemeral, a zxid is above the newest one of the
    /// import, or no epoch is left.
    pub fn import(&mut self, asked: &ImportRequest<'_>, client: &[Id<'_>]) -> Result<ImportReply, ErrorCode> {
        let root = self.need(path::ROOT)?;
        ALL.into_iter().try_for_each(|one| self.check_access(&root, client, one))?;
        if asked.newest >= self.zxid {
            self.raise_epoch(asked.newest)?;
        }
        let mut done = ImportReply::default();
        for node in &asked.nodes {
            let count = match self.import_one(node, asked)? {
                Imported::Made => &mut done.made,
                Imported::Replaced => &mut done.replaced,
                Imported::Same => &mut done.same,
            };
            *count += 1;
        }
        // Even if no node changed, the command uses up a zxid.
        self.keys.emit(Event::Counted { zxid: self.zxid });
        Ok(done)
    }

    fn import_one(
        &mut self,
        from: &ImportNode<'_>,
        asked: &ImportRequest<'_>,
    ) -> Result<Imported, ErrorCode> {
        let path = path::valid(from.path)?;
        let zxids = [from.czxid, from.mzxid, from.pzxid];
        if path::is_within(path, path::SYSTEM) || !zxids.iter().all(|z| (0..=asked.newest).contains(z)) {
            return Err(ErrorCode::BadArguments);
        }
        if from.acl.len() > acl::MAX_ENTRIES {
            return Err(ErrorCode::InvalidAcl);
        }
        let list = Bytes::from(acl::stored(&from.acl));
        let mut new = Node::new(from.czxid, from.ctime, lifetime(from.owner)?, list, Data::Null);
        (new.mzxid, new.pzxid, new.mtime) = (from.mzxid, from.pzxid, from.mtime);
        (new.version, new.created, new.aversion) = (from.version, from.created, from.aversion);
        match self.node(path) {
            None => self.import_new(path, new, from).map(|()| Imported::Made),
            Some(old) => self.import_over(path, new, &old, from.data, asked.replace),
        }
    }

    fn import_new(&mut self, path: &str, new: Node, from: &ImportNode<'_>) -> Result<(), ErrorCode> {
        let parent_path = path::parent(path)?;
        let mut parent = self.need(parent_path)?;
        if matches!(parent.lifetime, Lifetime::Ephemeral(_)) {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        parent.children += 1;
        if !from.counted {
            parent.created = parent.created.wrapping_add(1);
            parent.pzxid = self.zxid;
        }
        self.put_node(parent_path, &parent);
        self.import_at(path, new, &Data::Null, from.data, Change::Created, parent.acl);
        Ok(())
    }

    fn import_over(
        &mut self,
        path: &str,
        new: Node,
        old: &Node,
        data: Option<&[u8]>,
        replace: bool,
    ) -> Result<Imported, ErrorCode> {
        let there = self.data(path, &old.data);
        let new = Node { children: old.children, data: old.data.clone(), ..new };
        if new == *old && there.as_deref() == data {
            return Ok(Imported::Same);
        }
        if !replace {
            return Err(ErrorCode::NodeExists);
        }
        self.count(path, old, -1);
        match old.lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => self.keys.delete(&key::ephemeral(session, path)),
            Lifetime::Container | Lifetime::Ttl(_) => self.keys.delete(&key::transient(path)),
        }
        self.import_at(path, new, &old.data, data, Change::DataSet, Bytes::new());
        Ok(Imported::Replaced)
    }

    fn import_at(
        &mut self,
        path: &str,
        mut new: Node,
        before: &Data,
        data: Option<&[u8]>,
        change: Change,
        parent_acl: Bytes,
    ) {
        new.data = self.place(path, before, data);
        if matches!(new.lifetime, Lifetime::Container | Lifetime::Ttl(_)) {
            self.keys.put(&key::transient(path), Vec::new());
        }
        self.put_node(path, &new);
        self.count(path, &new, 1);
        let more = length(new.data.length()) - length(before.length());
        self.quota_changed(path, more, i64::from(change == Change::Created));
        let (path, zxid) = (path.to_owned(), self.zxid);
        self.keys.emit(Event::Node { change, path, zxid, acl: new.acl, parent_acl });
    }
}

//! setWatches: a client that reconnects registers its watches again. Events that it missed are sent at once, and the other watches
//! are registered as before.

use atoll_core::testing::mutant;
use atoll_db::View;

use super::outbox::Outbox;
use super::table::Kind;
use super::{ConnectionId, NotSet, Watches, WatchesSet};
use crate::acl::ReadersOf;
use crate::jute::codes::EventType;
use crate::mutants;
use crate::tree::read::{self, ReadError};

/// The reason why a client's watches were not registered again.
#[derive(Debug)]
pub enum ResetError {
    /// No watch was registered.
    NotSet(NotSet),
    /// The store cannot be read.
    Read(ReadError),
}

/// A watch that a client had on an earlier connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// Set by getData, or by exists on a node that existed.
    Data,
    /// Set by exists on a node that did not exist.
    Exist,
    /// Set by getChildren.
    Child,
    /// Stays, and covers the node and its children.
    Persistent,
    /// Stays, and covers the node and everything below it.
    Recursive,
}

impl Brought {
    fn kind(self) -> Kind {
        match self {
            Brought::Data | Brought::Exist => Kind::Data,
            Brought::Child => Kind::Child,
            Brought::Persistent => Kind::Persistent,
            Brought::Recursive => Kind::Recursive,
        }
    }

    /// Returns whether the node is compared with what the client knows of it.
    pub fn is_compared(self) -> bool {
        !matches!(self, Brought::Persistent | Brought::Recursive)
    }
}

impl Watches {
    /// Registers some of a client's watches again, and queues the events that it missed since `relative_zxid`. A path that no node
    /// can have is treated like that of a missing node. The watches of one request may be registered in several calls, each with
    /// its own view.
    ///
    /// # Errors
    /// Nothing was done, or, if the store cannot be read, only a part. The connection must then end.
    pub fn reset_watches(
        &self,
        (id, outbox): (ConnectionId, &Outbox),
        watches: &[(Brought, &str)],
        relative_zxid: i64,
        out: &mut Vec<u8>,
        view: impl FnOnce() -> View,
    ) -> Result<WatchesSet, ResetError> {
        let all = watches.iter().map(|(brought, path)| (brought.kind(), *path));
        // Register all of them before reading the view, so that later events trigger them. Watches that must report an earlier
        // change are removed again.
        let mut set = self.set(id, all, out, view).map_err(ResetError::NotSet)?;
        let view = &set.view;
        // A restore may have brought back a state older than what the client saw, so the client is notified of everything.
        let is_new = read::restored(view).map_err(ResetError::Read)? > relative_zxid;
        let since = match mutant(mutants::ZK_WATCHES_IGNORE_ZXID) {
            true => i64::MAX,
            false if is_new => -1,
            false => relative_zxid,
        };
        let mut readers = ReadersOf::default();
        for (brought, path) in watches {
            if !brought.is_compared() {
                continue;
            }
            let node = read::node(view, path).map_err(ResetError::Read)?;
            let (event, acl) = match (brought, node) {
                (Brought::Exist, Some(node)) => (EventType::NodeCreated, node.acl),
                (Brought::Data | Brought::Child, None) => (EventType::NodeDeleted, Default::default()),
                (Brought::Data, Some(node)) if node.mzxid > since => (EventType::NodeDataChanged, node.acl),
                (Brought::Child, Some(node)) if node.pzxid > since => {
                    (EventType::NodeChildrenChanged, node.acl)
                }
                _ => continue,
            };
            // If the watch is gone, a newer event was sent in place of this one.
            if self.take(id, [(brought.kind(), *path)]) {
                outbox.push(view.below(), event, path, since.max(0), &readers.list(&acl));
            }
        }
        // The client already knows of these watches, so newer events may also precede the reply.
        set.events += outbox.drain(out);
        Ok(set)
    }
}

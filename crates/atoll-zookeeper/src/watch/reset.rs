//! setWatches: a client that comes from another node, or back, brings its watches. Events that it missed are sent at once; the
//! other watches are set as before.

use atoll_core::testing::mutant;
use atoll_db::View;

use super::outbox::Outbox;
use super::table::Kind;
use super::{ConnectionId, Left, NotLeft, Watches};
use crate::jute::codes::EventType;
use crate::mutants;
use crate::tree::read::{self, ReadError};

/// Why a client's watches were not left.
#[derive(Debug)]
pub enum ResetError {
    /// Nothing was left.
    NotLeft(NotLeft),
    /// The store cannot be read.
    Read(ReadError),
}

/// A watch that a client brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brought {
    /// Of getData, and of exists on a node that was there.
    Data,
    /// Of exists on a node that was not there.
    Exist,
    /// Of getChildren.
    Child,
    /// Stays.
    Persistent,
    /// Stays, with all that lies below.
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
}

impl Watches {
    /// Sets some of a client's watches, and sends the events that it missed since `relative_zxid`. Paths that are not allowed are
    /// ignored. The watches of one request may be set in several calls: each is judged by its own view.
    ///
    /// # Errors
    /// Not done, or with a store that cannot be read, only in part: the connection must end.
    pub fn reset_watches(
        &self,
        (id, outbox): (ConnectionId, &Outbox),
        watches: &[(Brought, &str)],
        relative_zxid: i64,
        out: &mut Vec<u8>,
        view: impl FnOnce() -> View,
    ) -> Result<Left, ResetError> {
        let all = watches.iter().map(|(brought, path)| (brought.kind(), *path));
        // All are set before the view is read: a later event finds them. Watches that must report an earlier change are removed
        // again.
        let mut left = self.leave(id, all, out, view).map_err(ResetError::NotLeft)?;
        let view = &left.view;
        // The state that a restore has brought back may be older than what the client saw: it is notified of everything.
        let is_new = read::restored(view).map_err(ResetError::Read)? > relative_zxid;
        let since = match mutant(mutants::ZK_WATCHES_IGNORE_ZXID) {
            true => i64::MAX,
            false if is_new => -1,
            false => relative_zxid,
        };
        for (brought, path) in watches {
            if matches!(brought, Brought::Persistent | Brought::Recursive) {
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
            // If the watch is gone already, a newer event was sent, and stands for this one.
            if self.take(id, [(brought.kind(), *path)]) {
                outbox.tell(view.below(), event, path, since.max(0), &acl);
            }
        }
        // Clients know of these watches already: newer events may stand in front of the reply as well.
        left.events += outbox.drain(out);
        Ok(left)
    }
}

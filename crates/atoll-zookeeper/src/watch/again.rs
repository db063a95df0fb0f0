//! setWatches: a client that comes from another node, or back, brings its watches. What happened meanwhile is told at once; the rest is
//! left as before.

use atoll_core::testing::{Mutant, mutant};
use atoll_db::View;

use super::outbox::Outbox;
use super::table::Kind;
use super::{ConnectionId, Left, NotYet, Watches};
use crate::jute::codes::EventType;
use crate::jute::request::SetWatches2Request;
use crate::tree::read::{self, ReadError};

/// Why a client's watches were not left.
#[derive(Debug)]
pub enum AgainError {
    /// The view is not there yet; nothing was left.
    NotYet(NotYet),
    /// The store cannot be read.
    Read(ReadError),
}

impl Watches {
    /// Leaves a client's watches, and tells those events that it missed. Nothing for paths that are not allowed.
    ///
    /// # Errors
    /// Not done, or with a store that cannot be read, only in part: the connection must end.
    pub fn leave_again(
        &self,
        id: ConnectionId,
        outbox: &Outbox,
        asked: &SetWatches2Request<'_>,
        out: &mut Vec<u8>,
        view: impl FnOnce() -> View,
    ) -> Result<Left, AgainError> {
        let one_time = &asked.one_time;
        let all = || {
            let once = one_time.data.iter().chain(&one_time.exist).map(|p| (Kind::Data, *p));
            let child = one_time.child.iter().map(|p| (Kind::Child, *p));
            let stay = asked.persistent.iter().map(|p| (Kind::Persistent, *p));
            once.chain(child).chain(stay).chain(asked.recursive.iter().map(|p| (Kind::Recursive, *p)))
        };
        // All are left before the view is read: an event behind it finds them. Those that are told of something older go again.
        let mut left = self.leave(id, all(), out, view).map_err(AgainError::NotYet)?;
        let view = &left.view;
        // What a restore has brought back may be older than what the client saw: it is told of everything.
        let is_new = read::restored(view).map_err(AgainError::Read)? > one_time.relative_zxid;
        let since = match mutant(Mutant::ZkWatchesIgnoreZxid) {
            true => i64::MAX,
            false if is_new => -1,
            false => one_time.relative_zxid,
        };
        let mut missed = Vec::new();
        for path in &one_time.data {
            match read::node(view, path).map_err(AgainError::Read)? {
                None => missed.push((Kind::Data, EventType::NodeDeleted, *path, Default::default())),
                Some(node) if node.mzxid > since => {
                    missed.push((Kind::Data, EventType::NodeDataChanged, *path, node.acl));
                }
                Some(_) => {}
            }
        }
        for path in &one_time.exist {
            if let Some(node) = read::node(view, path).map_err(AgainError::Read)? {
                missed.push((Kind::Data, EventType::NodeCreated, *path, node.acl));
            }
        }
        for path in &one_time.child {
            match read::node(view, path).map_err(AgainError::Read)? {
                None => missed.push((Kind::Child, EventType::NodeDeleted, *path, Default::default())),
                Some(node) if node.pzxid > since => {
                    missed.push((Kind::Child, EventType::NodeChildrenChanged, *path, node.acl));
                }
                Some(_) => {}
            }
        }
        for (kind, event, path, acl) in missed {
            // If the watch is gone already, a newer event has been told, and it stands for this one.
            if self.take(id, [(kind, path)]) {
                outbox.tell(view.below(), event, path, since.max(0), &acl);
            }
        }
        // Clients know of these watches already: newer events may stand in front of the reply as well.
        left.events += outbox.drain(out);
        Ok(left)
    }
}

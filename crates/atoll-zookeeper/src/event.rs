//! The events that applied commands emit for the doors of each node.

use bytes::Bytes;

use atoll_db::Proposer;

/// How a znode changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was created. Its parent's children changed.
    Created,
    /// It was deleted. Its parent's children changed.
    Deleted,
    /// Its data was set.
    DataSet,
    /// Its ACL was set. No watch fires for that.
    AclSet,
}

/// An event that an applied command emits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A znode changed.
    Node {
        /// How it changed.
        change: Change,
        /// Its path.
        path: String,
        /// The zxid of the change.
        zxid: i64,
        /// Its ACL, as it is stored; empty for the open ACL. Clients that may not read the node are not notified.
        acl: Bytes,
        /// Its parent's ACL, if the parent's children changed.
        parent_acl: Bytes,
    },
    /// A session has a new holder, or a new move count.
    SessionHeld {
        /// The id of the session.
        session: i64,
        /// Its holder.
        by: Proposer,
        /// Its move count.
        moves: i64,
        /// Its timeout, in milliseconds; negative if the session is ending.
        timeout_ms: i32,
        /// Whether the client asked for this there. Otherwise it was a takeover, a restore, or the beginning of the session's end.
        by_client: bool,
        /// The zxid of the change.
        zxid: i64,
    },
    /// A write took a subtree above its quota and was not refused.
    OverQuota {
        /// The node at the top of the subtree.
        top: String,
        /// The zxid of the change.
        zxid: i64,
    },
    /// A change that no other event reports. It only used up a zxid.
    Counted {
        /// The zxid of the change.
        zxid: i64,
    },
    /// Another tree has replaced the previous one. Events about the sessions of the new tree follow this one.
    Restored {
        /// The zxid of the change.
        zxid: i64,
    },
    /// A session is gone: it was closed or it expired.
    SessionGone {
        /// The id of the session.
        session: i64,
        /// The zxid of the change.
        zxid: i64,
    },
}

impl Event {
    /// Returns the zxid of the change that the event reports.
    pub fn zxid(&self) -> i64 {
        match self {
            Event::Node { zxid, .. }
            | Event::SessionHeld { zxid, .. }
            | Event::Counted { zxid }
            | Event::Restored { zxid }
            | Event::OverQuota { zxid, .. }
            | Event::SessionGone { zxid, .. } => *zxid,
        }
    }
}

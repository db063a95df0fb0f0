//! What applied commands tell the doors of each node.

use bytes::Bytes;

use atoll_db::Proposer;

/// What happened to a znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there. Its parent's children changed.
    Created,
    /// It is gone. Its parent's children changed.
    Deleted,
    /// Its data was set.
    DataSet,
    /// Its list was set, which no watch tells.
    AclSet,
}

/// What an applied command tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A znode changed.
    Node {
        /// How.
        change: Change,
        /// Which.
        path: String,
        /// The change's.
        zxid: i64,
        /// Its list: who may not read it hears nothing of it. As the store has it, empty for the open one.
        acl: Bytes,
        /// Its parent's, where the parent's children changed.
        parent_acl: Bytes,
    },
    /// A session is held by somebody from here on.
    SessionHeld {
        /// Which.
        session: i64,
        /// By whom.
        by: Proposer,
        /// How often it has moved.
        moves: i64,
        /// Its timeout.
        timeout_ms: i32,
        /// A client asked for it there; else the node took it over.
        by_client: bool,
        /// The change's.
        zxid: i64,
    },
    /// A write took a subtree above its quota, and was not refused for it.
    OverQuota {
        /// The node with the limits.
        top: String,
        /// The change's.
        zxid: i64,
    },
    /// A change that no other event reports: a zxid was taken.
    Counted {
        /// The change's.
        zxid: i64,
    },
    /// Another tree has replaced the previous one. Events about the sessions that it brings follow this one.
    Restored {
        /// The change's.
        zxid: i64,
    },
    /// A session is gone: closed or expired.
    SessionGone {
        /// Which.
        session: i64,
        /// The change's.
        zxid: i64,
    },
}

impl Event {
    /// The zxid of the change that it tells.
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

//! What the protocol needs of a ZooKeeper ensemble. `session.rs` has the real one; `testing/` has one in memory, with faults.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::Ticket;

/// One operation of a [`Request::Write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fails unless the znode exists with this version of its data.
    Check {
        /// The znode.
        path: String,
        /// The version.
        version: i32,
    },
    /// Creates a persistent znode. Fails if it exists, or if its parent does not.
    Create {
        /// The znode.
        path: String,
        /// Its data.
        data: Bytes,
    },
    /// Replaces the data of a znode. Fails if it is at another version than this one, if there is one.
    Set {
        /// The znode.
        path: String,
        /// The new data.
        data: Bytes,
        /// The version that is expected.
        version: Option<i32>,
    },
    /// Deletes a znode without children, at any version.
    Delete {
        /// The znode.
        path: String,
    },
}

/// A request to the ensemble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Does all operations, or none of them. It goes through a quorum, even if it only checks.
    Write(Vec<Op>),
    /// Reads a znode at the server of this session, which may lag behind the others. It shows at least what earlier requests of this
    /// session wrote or found.
    Get(String),
    /// Lists the names of the children of a znode, with the same staleness.
    Children(String),
}

/// The data of a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The data.
    pub data: Bytes,
    /// How often the data was replaced since the znode was created.
    pub version: i32,
    /// The transaction that wrote the data.
    pub mzxid: i64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// All operations of a write are done.
    Written,
    /// A znode; None if it does not exist.
    Node(Option<Node>),
    /// The names of a znode's children in no particular order; None if the znode does not exist.
    Children(Option<Vec<String>>),
}

/// Why a write was refused. Nothing of it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A znode is at another version.
    Version,
    /// A znode, or the parent of one, does not exist.
    Missing,
    /// A znode exists already.
    Exists,
    /// A znode has children.
    NotEmpty,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The state of the znodes does not allow the write. It did not happen.
    #[error("refused: {0:?}")]
    Refused(Refusal),
    /// The ensemble does not let this client do it, or cannot do it. It did not happen.
    #[error("denied: {0}")]
    Denied(String),
    /// Too many requests are in flight. It was not sent.
    #[error("too many requests are in flight")]
    Busy,
    /// There is no connection to the ensemble. It was not sent.
    #[error("no connection to the ensemble")]
    NotConnected,
    /// The connection or the session was lost, or the answer did not come in time. The request may have been done, or may still be done.
    #[error("no answer; whether it happened is unknown")]
    Lost,
}

/// An ensemble, or one like it. Handles share it; each call uses the same session unless that has ended.
pub trait Ensemble: Send + Sync + fmt::Debug {
    /// Sends requests at once, in this order, over one session, and returns an answer to each. They are processed in their order, behind
    /// the requests of earlier calls. The ticket may be dropped; the requests are done nevertheless.
    fn send(&self, requests: Vec<Request>) -> Ticket<Vec<Result<Answer, Fault>>>;

    /// Waits until one of these znodes is at another version than the given one, does not exist, or the session ends; and for `patience` at
    /// most. A hint: it may return early.
    fn wait(&self, seen: Vec<(String, i32)>, patience: Duration) -> Ticket<Result<(), Fault>>;
}

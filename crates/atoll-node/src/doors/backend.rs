//! What a door needs of the node behind it.
//!
//! Every future here only waits for work that continues without it, so dropping the future stops nothing (contracts X8).

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use atoll_client::proto;
use atoll_client::{Failure, Outcome};
use atoll_contract::{ClientId, Entry, LogPos, LogletId, LogletSpec};
use atoll_core::BoxFuture;
use atoll_log::Busy;
use bytes::Bytes;

/// An operation that was not done, or not certainly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether it happened.
    pub happened: Outcome,
    /// Why, and what to do now.
    pub failure: Failure,
}

impl Refusal {
    /// It did not happen.
    pub fn no(reason: atoll_client::Reason, message: impl Into<String>, next: impl Into<String>) -> Self {
        Refusal { happened: Outcome::No, failure: Failure::new(reason, message, next) }
    }

    /// It may have happened, or may still.
    pub fn unknown(
        reason: atoll_client::Reason,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Refusal { happened: Outcome::Unknown, failure: Failure::new(reason, message, next) }
    }

    /// The node is stopping and took no part.
    pub fn stopping() -> Self {
        Refusal::no(atoll_client::Reason::Stopping, "this node is stopping", "go on at another node")
    }
}

impl From<Refusal> for tonic::Status {
    fn from(refusal: Refusal) -> Self {
        atoll_client::status(refusal.happened, &refusal.failure)
    }
}

/// The outcome of something under way.
pub type Pending<T> = BoxFuture<'static, Result<T, Refusal>>;

/// Records of one client to append, in order; their sequences are consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecords {
    /// Who appends.
    pub client: ClientId,
    /// Sequence of the first.
    pub first_seq: u64,
    /// At least one.
    pub payloads: Vec<Bytes>,
    /// Set if some of the records were sent before: the log is first searched for them from here on (contracts X16).
    pub floor: Option<LogPos>,
    /// For records without a floor: a tail that the sender knew before it first sent them. All copies that it has since sent through other
    /// nodes lie at or above this tail.
    pub known: Option<LogPos>,
}

impl LogRecords {
    /// Of all of them together.
    pub fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(Bytes::len).sum()
    }
}

/// See [`LogBackend::room`].
pub type Room = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What became of records handed in.
pub enum Submitted {
    /// They are in line: one position each, in order.
    Pending(Pending<Vec<LogPos>>),
    /// Too much is under way. Nothing happened: the records are returned, together with what is full.
    Busy(LogRecords, Busy),
}

/// What a read gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecords {
    /// Position of the first.
    pub first: LogPos,
    /// Consecutive, one at least.
    pub entries: Vec<Entry>,
    /// How many came from another node.
    pub remote: u64,
}

/// One log.
pub trait LogBackend: Send + Sync {
    /// Returns a tail that this node already knows. A record that is sent for the first time after this call has no copy below this tail.
    fn known_tail(&self) -> LogPos;

    /// Puts records in line, in the order of the calls.
    fn submit(&self, records: LogRecords) -> Submitted;

    /// Completes when the queue has had room for this many records and bytes. Another caller may use up the room first.
    fn room(&self, records: usize, payload_bytes: usize) -> Room;

    /// The tail: above every append acknowledged before the call.
    fn check_tail(&self) -> Pending<LogPos>;

    /// Waits until the tail may be above `above`, and returns a tail from then. May return early.
    fn wait_tail(&self, above: LogPos) -> Pending<LogPos>;

    /// The first position that can be read, as this node knows it.
    fn trim_point(&self) -> LogPos;

    /// Records from `range.start` on, one at least, not beyond `range.end` (not in it) or far beyond `max_bytes`. `range` is below a
    /// tail that was obtained.
    fn read(&self, range: Range<LogPos>, max_bytes: usize, local_only: bool) -> Pending<ReadRecords>;

    /// Gives up positions below `to`.
    fn trim(&self, to: LogPos) -> Pending<()>;

    /// The chain as its register holds it, with the segments that it has itself; or with those of the index page that holds `from`.
    fn chain(&self, from: Option<LogPos>) -> Pending<proto::Chain>;

    /// Ends the active segment, starts another.
    fn extend(&self, spec: LogletSpec) -> Pending<proto::Chain>;

    /// Takes trimmed segments off the front.
    fn truncate(&self) -> Pending<proto::Chain>;

    /// Rebuilds a sealed segment.
    fn modify(&self, loglet: LogletId, spec: LogletSpec) -> Pending<proto::Chain>;
}

/// Status and membership.
pub trait Operations: Send + Sync {
    /// Health, tails and lag as this node sees them.
    fn status(&self) -> Pending<proto::StatusReply>;

    /// The members, with what is known of them.
    fn nodes(&self) -> Pending<Vec<proto::NodeInfo>>;

    /// Adds a member, or changes the address of one that does not answer. Idempotent.
    fn add_node(&self, request: proto::NodeAddRequest) -> Pending<proto::NodeReply>;

    /// Moves all duties off a node; done when they are moved. Idempotent.
    fn drain_node(&self, node: atoll_core::NodeId) -> Pending<proto::NodeReply>;

    /// Forgets a node without duties. Idempotent.
    fn remove_node(&self, node: atoll_core::NodeId) -> Pending<proto::NodeReply>;

    /// The feature level, and what the programs of the members read.
    fn levels(&self) -> Pending<proto::LevelsReply>;

    /// Raises the feature level to `to`, or to the highest that all members read. Idempotent.
    fn upgrade(&self, to: Option<atoll_core::Level>) -> Pending<proto::LevelsReply>;
}

/// A node as its doors see it.
pub trait Backend: Send + Sync {
    /// Which node this is.
    fn node(&self) -> atoll_core::NodeId;

    /// An identity for appends whose client gave none. It belongs to this incarnation of the node only.
    fn client(&self) -> ClientId;

    /// A log by name, whether it exists or not.
    fn log(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal>;

    /// Like `log`, but the log exists on success: if necessary, it is created like the others.
    fn log_for_append(&self, name: &str) -> Pending<Arc<dyn LogBackend>>;

    /// Creates a log; false if it was there.
    fn create(&self, name: &str, spec: LogletSpec) -> Pending<bool>;

    /// Deletes a log; false if it was deleted before.
    fn delete(&self, name: &str) -> Pending<bool>;

    /// Names of all logs, in order.
    fn list(&self) -> Pending<Vec<String>>;

    /// Status and membership.
    fn operations(&self) -> Arc<dyn Operations>;

    /// The database, if it is open on this node.
    fn database(&self) -> Option<atoll_db::Database> {
        None
    }

    /// The tables, if the database is open on this node.
    fn tables(&self) -> Option<super::tables::TablesHandle> {
        None
    }
}

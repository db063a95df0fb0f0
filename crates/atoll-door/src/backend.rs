//! What the gRPC services of doors need from their node.
//!
//! Every future here only waits for work that continues without it, so dropping the future stops nothing (contracts X8).

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use atoll_client::proto;
use atoll_client::{Failure, Outcome};
use atoll_contract::keyspace::{Held, Holder, KeyVersion, KeyspaceSpec, Layout, Lease, ListFrom, Page};
use atoll_contract::{ClientId, Entry, LogPos, LogletId, LogletSpec};
use atoll_core::BoxFuture;
use atoll_log::{Busy, Incision};
use bytes::Bytes;

use crate::keyspaces::{Described, Found, KeyWrite, KeysTransacted, KeysTxn, LeaseRequest, Wrote};
use crate::positions::{ActivePositions, PositionOp, PositionState, Replace};
use crate::shards::{ActiveShards, LogRecord, ShardChange};

/// The log of the database. Clients do not write to it.
pub const DATABASE_LOG: &str = "db";

/// The failure of an operation that did not happen, or may not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the operation happened.
    pub happened: Outcome,
    /// Why it failed, and what the client can do.
    pub failure: Failure,
}

impl Refusal {
    /// Returns a refusal of an operation that did not happen.
    pub fn no(reason: atoll_client::Reason, message: impl Into<String>, next: impl Into<String>) -> Self {
        Refusal { happened: Outcome::No, failure: Failure::new(reason, message, next) }
    }

    /// Returns a refusal of an operation that may have happened, or may still happen.
    pub fn unknown(
        reason: atoll_client::Reason,
        message: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Refusal { happened: Outcome::Unknown, failure: Failure::new(reason, message, next) }
    }

    /// Returns the refusal of an answer, after the operation itself has happened.
    #[must_use]
    pub fn although_it_happened(self) -> Self {
        Refusal { happened: Outcome::Yes, ..self }
    }

    /// Returns the refusal of a node that is stopping. The operation did not happen through this node.
    pub fn stopping() -> Self {
        Refusal::no(atoll_client::Reason::Stopping, "this node is stopping", "use another node")
    }
}

impl From<Refusal> for tonic::Status {
    fn from(refusal: Refusal) -> Self {
        atoll_client::status(refusal.happened, &refusal.failure)
    }
}

/// The outcome of an operation in progress.
pub type Pending<T> = BoxFuture<'static, Result<T, Refusal>>;

/// Returns the refusal of a node that has no replica of the database, or has not opened it yet.
pub fn no_database() -> Refusal {
    let next = "ask a node whose roles let it have one; `atoll node list` shows them";
    Refusal::no(atoll_client::Reason::Refused, "no database is open on this node", next)
}

/// Waits for an outcome and converts a refusal to a status.
pub async fn answer<T>(pending: Pending<T>) -> Result<T, tonic::Status> {
    pending.await.map_err(tonic::Status::from)
}

/// Records of one client to append, in order. Their sequence numbers are consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecords {
    /// The client that appends them.
    pub client: ClientId,
    /// The sequence number of the first record.
    pub first_seq: u64,
    /// The payloads of the records, at least one.
    pub payloads: Vec<Bytes>,
    /// Set if some of the records were sent before. The log is then searched for them from this position before they are appended
    /// (contracts X16).
    pub floor: Option<LogPos>,
    /// For records without a floor: a tail that the sender knew before it first sent them. All copies that it has since sent through other
    /// nodes lie at or above this tail.
    pub known: Option<LogPos>,
}

impl LogRecords {
    /// Returns the total size of the payloads in bytes.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        self.payloads.iter().map(Bytes::len).sum()
    }
}

/// See [`LogBackend::room`].
pub type Room = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The result of [`LogBackend::submit`].
pub enum Submitted {
    /// The records are queued. The outcome has one position for each of them, in order.
    Pending(Pending<Vec<LogPos>>),
    /// Too many appends are in progress. Nothing happened: the records are returned, together with the limit that was reached.
    Busy(LogRecords, Busy),
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecords {
    /// The position of the first entry.
    pub first: LogPos,
    /// The entries, at least one, at consecutive positions. Some may be pads, which are not for clients.
    pub entries: Vec<Entry>,
    /// How many of them came from other nodes.
    pub remote: u64,
}

/// One log.
pub trait LogBackend: Send + Sync {
    /// Returns a tail that this node already knows. A record that is sent for the first time after this call has no copy below this tail.
    fn known_tail(&self) -> LogPos;

    /// Queues records for the append, in the order of the calls.
    fn submit(&self, records: LogRecords) -> Submitted;

    /// Completes when the queue has had room for this many records and bytes. Another caller may use up the room first.
    fn room(&self, records: usize, payload_bytes: usize) -> Room;

    /// Checks the tail. It is above every append that was acknowledged before the call.
    fn check_tail(&self) -> Pending<LogPos>;

    /// Waits until the tail is above `above`, and returns it. Never returns a lower one.
    fn wait_tail(&self, above: LogPos) -> Pending<LogPos>;

    /// Returns the trim point, as this node knows it.
    fn trim_point(&self) -> LogPos;

    /// Reads records from `range.start`, at least one, up to but excluding `range.end`, and not far beyond `max_bytes`. `range` must be
    /// below a tail that the caller has obtained. With `local_only`, no other node is asked.
    fn read(&self, range: Range<LogPos>, max_bytes: usize, local_only: bool) -> Pending<ReadRecords>;

    /// Trims the log: positions below `to` are given up permanently.
    fn trim(&self, to: LogPos) -> Pending<()>;

    /// Reads the chain from its register. Lists the segments in the chain itself, or if `from` is given, those in the index page that
    /// contains `from`.
    fn chain(&self, from: Option<LogPos>) -> Pending<proto::Chain>;

    /// Extends the log: seals the active segment and starts another one.
    fn extend(&self, spec: LogletSpec) -> Pending<proto::Chain>;

    /// Removes trimmed segments from the front of the chain.
    fn truncate(&self) -> Pending<proto::Chain>;

    /// Rebuilds a sealed segment.
    fn modify(&self, loglet: LogletId, spec: LogletSpec) -> Pending<proto::Chain>;

    /// Moves the chain to the registers with this name, or `home`. Idempotent.
    fn move_chain(&self, to: String) -> Pending<proto::Chain>;
}

/// Status and membership.
pub trait Operations: Send + Sync {
    /// Returns health, tails and lag, as this node knows them.
    fn status(&self) -> Pending<proto::StatusReply>;

    /// Returns the members, and what this node knows about them.
    fn nodes(&self) -> Pending<Vec<proto::NodeInfo>>;

    /// Adds a member, or changes the address of one that has not joined or is not alive. Idempotent.
    fn add_node(&self, request: proto::NodeAddRequest) -> Pending<proto::NodeReply>;

    /// Drains a node. Completes when all of its duties have moved to other nodes. Idempotent.
    fn drain_node(&self, node: atoll_core::NodeId) -> Pending<proto::NodeReply>;

    /// Removes a member that has no duties. Idempotent.
    fn remove_node(&self, node: atoll_core::NodeId) -> Pending<proto::NodeReply>;

    /// Returns the feature level, and which levels the programs of the members can read.
    fn levels(&self) -> Pending<proto::LevelsReply>;

    /// Raises the feature level to `to`, or to the highest level that all members can read. Idempotent.
    fn upgrade(&self, to: Option<atoll_core::Level>) -> Pending<proto::LevelsReply>;
}

/// The keyspaces of a cluster, through one node.
pub trait KeyspaceBackend: Send + Sync {
    /// Creates a keyspace. If the engine in `spec` is empty, it is the first one of the node.
    fn create(&self, name: String, spec: KeyspaceSpec) -> Pending<Layout>;

    /// Returns the names of all keyspaces, in order.
    fn list(&self) -> Pending<Vec<String>>;

    /// Returns the layout of a keyspace, and how far it has moved.
    fn describe(&self, name: String) -> Pending<Described>;

    /// Begins to move the replicas of a keyspace. Only the number of replicas, the nodes and the options in `spec` count. The node, or
    /// another one if it dies, completes the move.
    fn relocate(&self, name: String, spec: KeyspaceSpec) -> Pending<Described>;

    /// Deletes a keyspace. Afterwards it answers nothing.
    fn delete(&self, name: String) -> Pending<()>;

    /// Reads keys, [`crate::keyspaces::MAX_KEYS`] at most. Each read is linearizable; together they are no snapshot.
    fn get(&self, name: String, keys: Vec<Bytes>) -> Pending<Vec<Found>>;

    /// Changes a key if a condition holds.
    fn write(&self, name: String, write: KeyWrite) -> Pending<Wrote>;

    /// Reads and changes several keys at one moment if all conditions hold, or changes none of them.
    fn transact(&self, name: String, txn: KeysTxn) -> Pending<KeysTransacted>;

    /// Waits until a key has another version than `seen`, or for a while, and reads it. Version 0 stands for a key that does not exist.
    fn wait_change(&self, name: String, key: Bytes, seen: KeyVersion) -> Pending<Option<Held>>;

    /// Takes or renews the lease on a key.
    fn lease(&self, name: String, key: Bytes, request: LeaseRequest) -> Pending<Lease>;

    /// Gives up the lease on a key. A repeat also succeeds if nobody holds it.
    fn release(&self, name: String, key: Bytes, fencing: u64, repeat: bool) -> Pending<()>;

    /// Returns who holds the lease on a key.
    fn holder(&self, name: String, key: Bytes) -> Pending<Holder>;

    /// Lists a page of keys, in order.
    fn page(&self, name: String, from: ListFrom) -> Pending<Page>;
}

/// Single positions of the logs of a cluster, through one node. Logs whose active segment is of a kind without such operations are refused.
pub trait PositionBackend: Send + Sync {
    /// Refuses a log that does not exist, and one without operations on single positions.
    fn check(&self, log: &str) -> Pending<()>;

    /// Performs an operation on one position, and returns what is there afterwards.
    fn at(&self, log: &str, at: LogPos, op: PositionOp) -> Pending<PositionState>;

    /// Returns which nodes keep the active segment, and how far it goes.
    fn active(&self, log: &str) -> Pending<ActivePositions>;

    /// Extends the log with a segment that has this change. Refuses it if another segment follows meanwhile.
    fn replace(&self, log: &str, change: Replace) -> Pending<()>;
}

/// The shards of the logs of a cluster, through one node. Logs whose active segment is of a kind without shards are refused.
pub trait ShardBackend: Send + Sync {
    /// Refuses a log that does not exist, and one without shards.
    fn check(&self, log: &str) -> Pending<()>;

    /// Returns the shards of the active segment.
    fn shards(&self, log: &str) -> Pending<ActiveShards>;

    /// Appends a record to a shard, and returns its position. It has a client, and a floor if it was sent before. Refused as a conflict if
    /// it is not in the log, and will not be, because the shard takes no records or the log continues in another segment.
    fn append(&self, log: &str, shard: u32, record: LogRecord) -> Pending<LogPos>;

    /// Reads the record at a position from a shard. None if it is in another shard.
    fn read(&self, log: &str, at: LogPos, shard: u32) -> Pending<Option<Entry>>;

    /// Adds or ends a shard, and returns its number.
    fn change(&self, log: &str, change: ShardChange) -> Pending<u32>;
}

/// The backup of the database.
pub trait BackupBackend: Send + Sync {
    /// Begins it, or changes it. Idempotent.
    fn start(&self, request: proto::StartBackupRequest) -> Pending<proto::BackupStatusReply>;

    /// Ends it. What is in the store stays. Idempotent.
    fn stop(&self) -> Pending<proto::BackupStatusReply>;

    /// Returns how far it is, as this node sees it.
    fn status(&self) -> Pending<proto::BackupStatusReply>;

    /// Returns what can be restored from it.
    fn list(&self) -> Pending<proto::ListBackupReply>;
}

/// The policies of the logs of a cluster.
pub trait PolicyBackend: Send + Sync {
    /// Declares the policy of a log. Idempotent.
    fn set(&self, log: String, policy: proto::LogPolicy) -> Pending<proto::PolicyReply>;

    /// Ends the policy of a log. Idempotent.
    fn clear(&self, log: String) -> Pending<proto::PolicyReply>;

    /// Returns the policy of a log, and what nodes did because of it.
    fn show(&self, log: String) -> Pending<proto::PolicyReply>;

    /// Returns what a policy would do now, or the declared one if there is none here.
    fn dry_run(&self, log: String, policy: Option<proto::LogPolicy>) -> Pending<proto::DryRunReply>;
}

/// What a node offers to its doors.
pub trait Backend: Send + Sync {
    /// Returns the id of this node.
    fn node(&self) -> atoll_core::NodeId;

    /// Returns the client id for appends whose client gave none. It is used only by this incarnation of the node.
    fn client(&self) -> ClientId;

    /// Returns the log with this name, whether it exists or not.
    fn log(&self, name: &str) -> Result<Arc<dyn LogBackend>, Refusal>;

    /// Like [`Backend::log`], but creates the log if it does not exist. A deleted log is not created again.
    fn log_for_append(&self, name: &str) -> Pending<Arc<dyn LogBackend>>;

    /// Creates a log. Returns false if it already exists.
    fn create(&self, name: &str, spec: LogletSpec) -> Pending<bool>;

    /// Deletes a log. Returns false if it was already deleted.
    fn delete(&self, name: &str) -> Pending<bool>;

    /// Returns the names of all logs, in ascending order.
    fn list(&self) -> Pending<Vec<String>>;

    /// Returns the operations for status and membership.
    fn operations(&self) -> Arc<dyn Operations>;

    /// Returns the keyspaces of the cluster, if this node serves them.
    fn keyspaces(&self) -> Option<Arc<dyn KeyspaceBackend>> {
        None
    }

    /// Returns the operations on single positions of logs, if this node offers them.
    fn positions(&self) -> Option<Arc<dyn PositionBackend>> {
        None
    }

    /// Returns the operations on the shards of logs, if this node offers them.
    fn shards(&self) -> Option<Arc<dyn ShardBackend>> {
        None
    }

    /// Returns the backup of the database, if this node offers it.
    fn backups(&self) -> Option<Arc<dyn BackupBackend>> {
        None
    }

    /// Returns the policies of logs, if this node follows them.
    fn policies(&self) -> Option<Arc<dyn PolicyBackend>> {
        None
    }

    /// Excises or replaces one entry of the database's log.
    fn operate(&self, _: Incision) -> Pending<proto::SurgeryRecord> {
        Box::pin(std::future::ready(Err(no_database())))
    }

    /// Returns the database, if it is open on this node.
    fn database(&self) -> Option<atoll_db::Database> {
        None
    }
}

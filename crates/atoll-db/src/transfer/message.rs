//! The messages between replicas. They have the kinds 500–599.

use atoll_contract::LogPos;
use atoll_core::{message, record, rpc};
use bytes::Bytes;

use crate::replica::HashAt;
use crate::roles::REPLICA;

record! {
    /// A [`HashAt`] on the wire.
    pub struct HashReport {
        /// The first position that the state does not include.
        pub below: LogPos,
        /// The hash.
        pub hash: u128,
    }
}

impl From<&HashReport> for HashAt {
    fn from(report: &HashReport) -> HashAt {
        HashAt { below: report.below, hash: report.hash }
    }
}

message! {
    /// Asks a replica for its progress.
    pub struct AskReplica = 500 {}
}

message! {
    /// The progress of a replica.
    pub struct ReplicaReport = 501 {
        /// Entries below are applied.
        pub applied_below: LogPos,
        /// Entries below survive a power cut in its store.
        pub durable_below: LogPos,
        /// Its hashes at some positions, in ascending order.
        pub hashes: Vec<HashReport>,
    }
}

message! {
    /// Asks for a chunk of a state snapshot.
    pub struct FetchChunk = 502 {
        /// The id of the snapshot. 0 requests a new one.
        pub snapshot: u64,
        /// A new snapshot must include all entries below this position.
        pub at_least: LogPos,
        /// The chunk must begin with the first key above this one. If empty, it begins with the first key of all.
        pub after: Bytes,
    }
}

message! {
    /// A chunk of a state snapshot.
    pub struct ChunkReply = 503 {
        /// The id of the snapshot.
        pub snapshot: u64,
        /// The first position that the state does not include.
        pub below: LogPos,
        /// Whether this chunk contains the last keys.
        pub last: bool,
    }
    + payload
    /// See `chunk.rs`.
    chunk
}

message! {
    /// Sent by the reader to the role on its own node: a requested chunk has been read.
    pub struct ChunkReady = 504 {
        /// The number of the request.
        pub question: u64,
        /// Why the chunk could not be read, if it could not.
        pub failed: Option<String>,
        /// The id of the snapshot.
        pub snapshot: u64,
        /// The first position that the state does not include.
        pub below: LogPos,
        /// Whether this chunk contains the last keys.
        pub last: bool,
    }
    + payload
    /// See `chunk.rs`.
    chunk
}

message! {
    /// Asks whether a replica is in service. Earlier programs refuse this message, and their replicas count as in service.
    pub struct AskService = 507 {}
}

message! {
    /// Whether a replica is in service.
    pub struct ServiceReport = 508 {
        /// Whether it is out of service because it has halted, makes no progress, or is known to be wrong.
        pub out_of_service: bool,
        /// Whether its store has accepted no commit for a long time.
        pub behind: bool,
    }
}

message! {
    /// Asks a replica for the hash of its current state. Earlier programs refuse this message, so a replica that starts is not
    /// compared with theirs.
    pub struct AskHash = 509 {}
}

message! {
    /// The hash of the current state of a replica.
    pub struct HashNow = 510 {
        /// The first position that the state does not include.
        pub below: LogPos,
        /// The hash of all keys and values of the applications.
        pub hash: u128,
        /// Whether it was itself compared successfully after its start, was refilled, or began empty.
        pub vouched: bool,
    }
}

message! {
    /// Asks a replica to read the chain, at this version or a later one, and then to read again from the log what it has not applied.
    /// Earlier programs refuse this message, so there is no surgery on the log with them.
    pub struct AskFence = 511 {
        /// The version of the chain that holds a position.
        pub version: u64,
    }
}

message! {
    /// How far a replica is. It applies what follows only with the chain that it was asked to read, or a later one.
    pub struct Fenced = 512 {
        /// The first position that is not applied.
        pub below: LogPos,
    }
}

message! {
    /// Sent by the procedure to the role on its own node: the replica has read the chain, or has failed to.
    pub struct FenceReady = 513 {
        /// The number of the request.
        pub question: u64,
        /// The first position that is not applied; None if the replica gives no answer.
        pub below: Option<LogPos>,
    }
}

rpc!(AskFence => Fenced, REPLICA, Control);
rpc!(AskHash => HashNow, REPLICA, Control);
rpc!(AskService => ServiceReport, REPLICA, Control);
rpc!(AskReplica => ReplicaReport, REPLICA, Control);
rpc!(FetchChunk => ChunkReply, REPLICA, Data);

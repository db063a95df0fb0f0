//! What replicas ask each other. Kinds 500–599.

use atoll_contract::LogPos;
use atoll_core::{message, record, rpc};
use bytes::Bytes;

use crate::replica::HashAt;
use crate::roles::REPLICA;

record! {
    /// A [`HashAt`] on the wire.
    pub struct HashTold {
        /// The first entry that is not in it.
        pub below: LogPos,
        /// The hash.
        pub hash: u128,
    }
}

impl From<&HashTold> for HashAt {
    fn from(told: &HashTold) -> HashAt {
        HashAt { below: told.below, hash: told.hash }
    }
}

message! {
    /// Asks a replica how far it is.
    pub struct AskReplica = 500 {}
}

message! {
    /// How far a replica is.
    pub struct ReplicaTold = 501 {
        /// Entries below are applied.
        pub applied_below: LogPos,
        /// Entries below survive a loss of power in its store.
        pub durable_below: LogPos,
        /// Its hashes at some positions, rising.
        pub hashes: Vec<HashTold>,
    }
}

message! {
    /// Asks for a piece of a snapshot.
    pub struct FetchChunk = 502 {
        /// Which snapshot; 0: a new one.
        pub snapshot: u64,
        /// Of a new one: entries below must be in it.
        pub at_least: LogPos,
        /// Keys above this one; empty: from the first.
        pub after: Bytes,
    }
}

message! {
    /// A piece of a snapshot.
    pub struct ChunkTold = 503 {
        /// Which snapshot.
        pub snapshot: u64,
        /// Entries below are in it.
        pub below: LogPos,
        /// There are no more keys.
        pub last: bool,
    }
    + payload
    /// See `chunk.rs`.
    chunk
}

message! {
    /// To its own node: the data that was asked for is read.
    pub struct ChunkReady = 504 {
        /// The number of the question.
        pub question: u64,
        /// Why it could not be read.
        pub failed: Option<String>,
        /// Which snapshot.
        pub snapshot: u64,
        /// Entries below are in it.
        pub below: LogPos,
        /// There are no more keys.
        pub last: bool,
    }
    + payload
    /// See `chunk.rs`.
    chunk
}

message! {
    /// Asks whether a replica serves. Earlier programs refuse it: their replicas count as in service.
    pub struct AskService = 507 {}
}

message! {
    /// Whether a replica serves.
    pub struct ServiceTold = 508 {
        /// It serves nobody: it has halted, makes no progress, or is known to be wrong.
        pub out_of_service: bool,
        /// Its store has taken nothing for long.
        pub behind: bool,
    }
}

message! {
    /// Asks a replica for the hash of its current state. Earlier programs refuse it: a replica that starts is not compared with
    /// theirs.
    pub struct AskHash = 509 {}
}

message! {
    /// The hash of the state that a replica has now.
    pub struct HashNow = 510 {
        /// Entries below are in it.
        pub below: LogPos,
        /// Of every key and value of the applications.
        pub hash: u128,
        /// It was itself compared with a peer after its start, or began with nothing.
        pub vouched: bool,
    }
}

rpc!(AskHash => HashNow, REPLICA, Control);
rpc!(AskService => ServiceTold, REPLICA, Control);
rpc!(AskReplica => ReplicaTold, REPLICA, Control);
rpc!(FetchChunk => ChunkTold, REPLICA, Data);

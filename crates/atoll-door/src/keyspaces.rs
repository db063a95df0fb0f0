//! Reads and writes of keyspaces, as doors hand them to their node.

use std::time::Duration;

use atoll_contract::OpId;
use atoll_contract::keyspace::{Attempt, Change, Changed, Floor, Guard, Held, Layout, Transacted, TxnPart};
use bytes::Bytes;

pub use atoll_contract::keyspace::MAX_KEYSPACE_NAME;

/// The maximum number of keys in one read.
pub const MAX_KEYS: usize = 256;

/// A keyspace, and how far it has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its layout.
    pub layout: Layout,
    /// How many shards are still to move to other replicas.
    pub left_to_move: usize,
}

/// A write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyWrite {
    /// Its name, and whether it was sent before. None: the node draws a name.
    pub name: Option<(OpId, Attempt)>,
    /// The key.
    pub key: Bytes,
    /// Its condition.
    pub guard: Guard,
    /// What it does.
    pub change: Change,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// What has changed.
    pub changed: Changed,
    /// A floor for later writes of this key.
    pub floor: Floor,
}

/// A transaction of several keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysTxn {
    /// Its name, and whether it was sent before. None: the node draws a name.
    pub name: Option<(OpId, bool)>,
    /// Its keys.
    pub parts: Vec<TxnPart>,
}

/// The outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysTransacted {
    /// What has changed.
    pub outcome: Transacted,
    /// Floors for later writes of the keys, in the order of the request.
    pub floors: Vec<Floor>,
}

/// The outcome of the read of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the key holds, if it exists.
    pub held: Option<Held>,
    /// A floor for later writes of this key.
    pub floor: Floor,
}

/// A request for a lease. The fields are as in [`atoll_contract::keyspace::Leases`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // See above.
pub enum LeaseRequest {
    /// Takes it.
    Acquire { op: OpId, owner: Bytes, for_ms: u64, wait: Duration },
    /// Renews it.
    Renew { op: OpId, fencing: u64, for_ms: u64 },
}

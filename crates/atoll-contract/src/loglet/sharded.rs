//! What a Loglet also offers if its records are kept in shards that come and go while it takes appends (Scalog, NSDI '20, §3.1, §4).
//!
//! A record's offset does not depend on its shard. So a shard that is added or ended stops nothing.

use bytes::Bytes;

use atoll_core::{BoxFuture, NodeId};

use super::{AppendError, Placement, ReadError, Unavailability};
use crate::entry::{Batch, Entry};
use crate::position::Offset;

/// A shard, as of some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its number, which is never used again in this Loglet.
    pub number: u32,
    /// The nodes that keep its records: each has all of them.
    pub nodes: Vec<NodeId>,
    /// How many records have an offset and are in it.
    pub records: u64,
    /// Set if it is about to end, after this many further steps of the order.
    pub leaving: Option<u32>,
    /// Set once it takes no more records: all of its records are below.
    pub ended: Option<Offset>,
}

impl ShardState {
    /// Returns whether it takes records.
    pub fn is_live(&self) -> bool {
        self.ended.is_none()
    }
}

/// The shards of a Loglet, as of some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// How often the set of shards that take records has changed.
    pub view: u64,
    /// How many records there were at that moment.
    pub tail: Offset,
    /// All shards, those that have ended, too, in the order of their numbers.
    pub shards: Vec<ShardState>,
}

/// A change of the set of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardChange {
    /// Adds a shard.
    Add {
        /// Its number. None: the lowest one above all that were used.
        number: Option<u32>,
        /// The nodes that keep it. Empty: nodes that keep no shard that takes records, as many as other shards have.
        nodes: Vec<NodeId>,
    },
    /// Ends a shard. Its records stay.
    End {
        /// Its number.
        number: u32,
        /// After how many further steps of the order. Clients that know of it can leave until then. 0: at once.
        after: u32,
    },
}

/// A change that can be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The number of the shard.
    pub number: u32,
    /// The change, with nothing left open.
    pub change: ShardChange,
    /// The configuration of the Loglet with which the chain names all nodes that keep records afterwards. It differs from the present
    /// one in nothing else, and describes the same Loglet.
    pub config: Bytes,
}

/// Why the set of shards was not changed, or is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardedError {
    /// It did not happen.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// It may have happened, or may still happen. Repeating it does no harm.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The Loglet was sealed meanwhile. Nothing happened.
    #[error("the loglet is sealed")]
    Sealed,
    /// The Loglet was deleted permanently.
    #[error("the loglet was deleted")]
    Gone,
    /// The change is not possible; the words say why. Nothing happened.
    #[error("{0}")]
    Refused(String),
}

/// Why records were not appended to a shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardAppendError {
    /// The shard takes no records. Nothing of this attempt is in the log, or ever will be.
    #[error("shard {0} takes no records")]
    NotLive(u32),
    /// Like an append that leaves the choice of the shard to the Loglet.
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// See the module documentation.
pub trait Sharded: Send + Sync {
    /// Returns the shards. Everything that happened before the call is known.
    fn shards(&self) -> BoxFuture<'_, Result<Shards, ShardedError>>;

    /// Plans a change for the Loglet, whose configuration in the chain is `config`. Changes nothing.
    fn plan<'a>(
        &'a self,
        config: &'a Bytes,
        change: &'a ShardChange,
    ) -> BoxFuture<'a, Result<PlannedChange, ShardedError>>;

    /// Makes a planned change, once the chain has its configuration. Idempotent.
    fn change<'a>(&'a self, planned: &'a PlannedChange) -> BoxFuture<'a, Result<(), ShardedError>>;

    /// Appends a batch to a shard of the caller's choice. The batch is on all nodes of the shard on return. `not_below`: a tail that was
    /// known before the first attempt of these records; None if this is the first one. A retry is recognised if it goes to the same shard,
    /// through whatever node; what a shard that has ended does not have never gets there.
    fn append_to_shard(
        &self,
        shard: u32,
        batch: Batch,
        not_below: Option<Offset>,
    ) -> BoxFuture<'_, Result<Placement, ShardAppendError>>;

    /// Reads an entry from a shard. None if the entry at this offset is in another shard.
    fn read_in_shard(&self, at: Offset, shard: u32) -> BoxFuture<'_, Result<Option<Entry>, ReadError>>;
}

//! Scalog-Store (NSDI'20, §5): a key-value store whose values lie in the shards of a log.
//!
//! A put is one append; the log chooses the shard. The map is a replica of the log: it keeps, for each key, the sequence number and the
//! shard of its newest value. A get asks the map at or above the tail (apps-A5) and then reads one record, from one server of that shard.
//!
//! Over a log without shards, all records are in shard 0.

mod client;
mod compaction;
mod map;
mod record;

pub use client::{PlaceReplica, ShardedStore};
pub use compaction::{Thinned, thin};
pub use map::{PlaceLimits, PlaceMap};
pub use record::PutRecord;

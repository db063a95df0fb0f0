//! What the applications need of a log: a sparse, write-once address space (CORFU Figure 1).

use std::fmt;

use bytes::{Bytes, BytesMut};

use atoll_contract::Unavailability;
use atoll_core::{BoxFuture, Decode, DecodeError, Encode, Reader};

use crate::gather;

/// What is at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// An entry.
    Data(Bytes),
    /// A hole that was filled. It stays junk (corfu-K5).
    Junk,
    /// It was written and trimmed.
    Trimmed,
    /// Nothing was written there yet.
    Unwritten,
}

/// Where a record is: its position in the order of the log, and the shard that keeps it (Scalog: global sequence number and shard).
/// A log without shards is one shard, number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The position.
    pub position: u64,
    /// The shard.
    pub shard: u32,
}

impl Encode for Place {
    fn encode(&self, out: &mut BytesMut) {
        (self.position, self.shard).encode(out);
    }
}

impl Decode for Place {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (position, shard) = Decode::decode(from)?;
        Ok(Place { position, shard })
    }
}

/// Why an operation on a log failed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// It did not happen: the log cannot answer now. All operations but an append may be repeated anyway.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// The append may have happened or may still happen, at this position if one was taken.
    #[error("unknown outcome{}", .0.map(|at| format!(" at position {at}")).unwrap_or_default())]
    Unknown(Option<u64>),
    /// The log cannot do this at all.
    #[error("this log cannot {0}")]
    Unsupported(&'static str),
    /// The record at this position is in another shard than the one that was asked.
    #[error("the record at position {} is not in shard {}", .0.position, .0.shard)]
    NotInShard(Place),
    /// The log was deleted, or its description cannot be used.
    #[error("the log cannot be used: {0}")]
    Gone(String),
}

/// A totally ordered log that clients share. Positions count from 0. Content never changes except that it is trimmed, and once a read has
/// returned an entry or junk, every later read of that position returns the same, or `Trimmed` (corfu-K4, K5).
pub trait SharedLog: Send + Sync + fmt::Debug {
    /// Appends an entry and returns its position. It is durable and readable on return.
    fn append(&self, data: Bytes) -> BoxFuture<'_, Result<u64, LogError>>;

    /// Returns what is at a position. `Unwritten` may be returned for a hole, which has decided positions above it; fill it to pass it.
    fn read(&self, position: u64) -> BoxFuture<'_, Result<Slot, LogError>>;

    /// Returns what is at the positions from `from` (included) to `to` (not included), in order. May return fewer, but at least one unless
    /// the range is empty. The caller bounds the range. A log that can read many positions at once does so.
    fn read_range(&self, from: u64, to: u64) -> BoxFuture<'_, Result<Vec<Slot>, LogError>> {
        Box::pin(async move {
            let reads = (from..to).map(|position| self.read(position)).collect();
            gather::all(reads).await.into_iter().collect()
        })
    }

    /// Decides a position: with the entry that an append has begun to write there, or with junk. Durable on return.
    fn fill(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>>;

    /// Forgets one position that is decided. It reads as `Trimmed` on return.
    fn trim(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>>;

    /// Forgets all positions below `to`, which are decided.
    fn trim_prefix(&self, to: u64) -> BoxFuture<'_, Result<(), LogError>>;

    /// Returns a position at or above that of every append that was acknowledged before the call. Positions below it may be holes.
    fn tail(&self) -> BoxFuture<'_, Result<u64, LogError>>;

    /// Appends an entry to the shard that the log chooses, and returns where it is (Scalog's appendToShard). Durable and readable then.
    fn append_to_shard(&self, data: Bytes) -> BoxFuture<'_, Result<Place, LogError>> {
        Box::pin(async move { Ok(Place { position: self.append(data).await?, shard: 0 }) })
    }

    /// Returns what is at a place, from a server of its shard (Scalog's readRecord). A server that is behind waits, and does not answer
    /// that nothing is there (scalog §6).
    fn read_place(&self, place: Place) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            match place.shard {
                0 => self.read(place.position).await,
                _ => Err(LogError::NotInShard(place)),
            }
        })
    }

    /// Returns what [`SharedLog::read_range`] returns, and the shard of each position, as a subscription does.
    fn read_places(&self, from: u64, to: u64) -> BoxFuture<'_, Result<Vec<(Slot, u32)>, LogError>> {
        Box::pin(
            async move { Ok(self.read_range(from, to).await?.into_iter().map(|slot| (slot, 0)).collect()) },
        )
    }
}

//! A segment on a server: its identity in the journal, and the operations in it that a retry must find (scalog-S9, S15).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::{Batch, OpId};
use atoll_core::{Decode, DecodeError};
use atoll_loglet_store::store::Protocol;

/// Version of [`SegmentConfig`].
pub const SEGMENT_FORMAT: u8 = 1;

atoll_core::record! {
    /// What a server journals when a segment begins.
    pub struct SegmentConfig {
        /// [`SEGMENT_FORMAT`].
        pub format: u8,
        /// The shard.
        pub shard: u32,
        /// The place of the segment in the shard.
        pub segment: u32,
        /// Whether this server is its primary.
        pub own: bool,
        /// The configuration of the Loglet.
        pub loglet: Bytes,
    }
}

/// The protocol's part of the state of a segment. None of it is journaled.
#[derive(Debug)]
pub struct Segment {
    /// Its identity.
    pub config: Arc<SegmentConfig>,
    /// The operations of its own records; empty on backups.
    pub ops: Ops,
}

impl Protocol for Segment {
    type Config = Arc<SegmentConfig>;

    fn read_config(config: &Bytes) -> Result<Self::Config, DecodeError> {
        let read = SegmentConfig::from_bytes(config.clone())?;
        if read.format != SEGMENT_FORMAT {
            let (what, value) = ("version of a segment", read.format.into());
            return Err(DecodeError::Invalid { what, value, allowed: "1" });
        }
        Ok(Arc::new(read))
    }

    fn new(config: Self::Config) -> Self {
        Segment { config, ops: Ops::default() }
    }
}

/// Where the latest operations of a segment are.
#[derive(Debug, Default)]
pub struct Ops {
    places: BTreeMap<OpId, u64>,
    order: VecDeque<(OpId, u64)>,
    /// Operations below this place may be forgotten.
    forgotten: u64,
}

/// Consecutive entries of a batch: their places, and whether they are new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The place of the first one in the segment.
    pub first: u64,
    /// The number of entries.
    pub count: u32,
    /// Whether they have to be stored.
    pub new: bool,
}

impl Ops {
    /// Returns the place above every operation that may be forgotten.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Notes that operations below a place were not recovered.
    pub fn forgot(&mut self, below: u64) {
        self.forgotten = self.forgotten.max(below);
    }

    /// Returns whether some entry of a batch is not known.
    pub fn has_new(&self, batch: &Batch) -> bool {
        batch.ops().any(|op| op.client.0 != 0 && !self.places.contains_key(&op))
    }

    /// Gives a place to each entry: the one that it has, or the next one from `next` on. Remembers at most `limit` operations.
    pub fn place(&mut self, batch: &Batch, mut next: u64, limit: usize) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        for op in batch.ops() {
            let known = if op.client.0 == 0 { None } else { self.places.get(&op).copied() };
            let (at, new) = known.map_or((next, true), |at| (at, false));
            if new {
                next += 1;
                self.note_one(op, at);
            }
            match parts.last_mut() {
                Some(part) if part.new == new && part.first + u64::from(part.count) == at => part.count += 1,
                _ => parts.push(Part { first: at, count: 1, new }),
            }
        }
        self.forget(limit);
        parts
    }

    /// Notes the entries of a batch at a place, at a restart.
    pub fn note(&mut self, batch: &Batch, first: u64, limit: usize) {
        for (at, op) in (first..).zip(batch.ops()) {
            self.note_one(op, at);
        }
        self.forget(limit);
    }

    fn note_one(&mut self, op: OpId, at: u64) {
        if op.client.0 != 0 {
            self.places.insert(op, at);
            self.order.push_back((op, at));
        }
    }

    fn forget(&mut self, limit: usize) {
        while self.order.len() > limit.max(1)
            && let Some((op, at)) = self.order.pop_front()
        {
            if self.places.get(&op) == Some(&at) {
                self.places.remove(&op);
            }
            self.forgotten = self.forgotten.max(at + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry};

    fn batch(ops: &[(u64, u64)]) -> Batch {
        Batch::of(ops.iter().map(|(client, seq)| Entry {
            op: OpId { client: ClientId(*client), seq: *seq },
            payload: Bytes::new(),
        }))
    }

    #[test]
    fn a_retry_gets_the_places_of_the_first_attempt() {
        let part = |first, count, new| Part { first, count, new };
        let mut ops = Ops::default();
        assert_eq!(ops.place(&batch(&[(1, 1), (1, 2), (0, 7)]), 10, 4), [part(10, 3, true)]);
        let again = batch(&[(1, 2), (1, 3), (0, 7), (1, 3)]);
        assert!(ops.has_new(&again));
        assert_eq!(ops.place(&again, 13, 4), [part(11, 1, false), part(13, 2, true), part(13, 1, false)]);
        assert!(!ops.has_new(&again) && ops.forgotten() == 0);
        ops.note(&batch(&[(1, 4), (1, 5)]), 15, 4);
        assert_eq!(ops.forgotten(), 11);
        assert!(ops.has_new(&batch(&[(1, 1)])) && !ops.has_new(&batch(&[(1, 2)])));
        ops.forgot(5);
        assert_eq!(ops.forgotten(), 11);
    }
}

//! The checkpoint of a node: the facts of all durable shards, assembled in steps, and the restore.

use std::ops::Bound;

use atoll_contract::keyspace::Durability;
use atoll_core::testing::hit;
use atoll_core::{Decode, DecodeError, Encode, Reader};
use bytes::{Bytes, BytesMut};

use crate::message::{Fact, ShardKey};
use crate::node::BizurNode;

/// Format of a checkpoint.
const FORMAT: u16 = 1;

/// A checkpoint under construction. What changes behind the cursor is in facts that are replayed over the checkpoint.
#[derive(Debug)]
pub(crate) struct Walk {
    out: BytesMut,
    /// The shard that is being written, and its last bucket that is.
    at: Option<(ShardKey, Option<u32>)>,
}

fn put(fact: &Fact, payload: &Bytes, out: &mut BytesMut) {
    fact.encode(out);
    payload.encode(out);
}

impl BizurNode {
    /// Encodes everything for a checkpoint, about `max_bytes` more in each call. Returns None until it is complete.
    pub(crate) fn image(&mut self, max_bytes: usize) -> Option<Bytes> {
        let is_durable = |key: &&ShardKey| {
            self.shards.get(key).is_some_and(|held| held.shard.config.durability == Durability::Disk)
        };
        let nothing_gone = self.dropped.is_empty() && self.moves.is_empty();
        if self.walk.is_none() && nothing_gone && !self.shards.keys().any(|key| is_durable(&key)) {
            return Some(Bytes::new());
        }
        let mut walk = self.walk.take().unwrap_or_else(|| {
            let mut out = BytesMut::new();
            FORMAT.encode(&mut out);
            for (keyspace, epoch) in &self.dropped {
                put(&Fact::Dropped { keyspace: *keyspace, epoch: *epoch }, &Bytes::new(), &mut out);
            }
            self.moves.facts().for_each(|fact| put(&fact, &Bytes::new(), &mut out));
            Walk { out, at: None }
        });
        let end = walk.out.len().saturating_add(max_bytes.max(1));
        loop {
            let (from, after) = match walk.at {
                None => (Bound::Unbounded, None),
                Some((key, None)) => (Bound::Excluded(key), None),
                Some((key, after)) => (Bound::Included(key), after),
            };
            let next = self.shards.range((from, Bound::Unbounded)).next();
            let Some((key, held)) = next else { break };
            // A shard that was dropped in the middle of it is not continued.
            let after = after.filter(|_| walk.at.is_some_and(|(at, _)| at == *key));
            if held.shard.config.durability == Durability::Memory {
                walk.at = Some((*key, None));
                continue;
            }
            if after.is_none() {
                let (shard, none) = (*key, Bytes::new());
                put(&held.shard.fact(), &none, &mut walk.out);
                put(&Fact::Voted { shard, elect: held.shard.voted }, &none, &mut walk.out);
                put(&Fact::Stood { shard, elect: held.shard.stood }, &none, &mut walk.out);
                if held.shard.sealed {
                    put(&Fact::Sealed { shard }, &none, &mut walk.out);
                }
            }
            let rest = after.map_or(Bound::Unbounded, Bound::Excluded);
            for (index, copy) in held.shard.buckets.range((rest, Bound::Unbounded)) {
                let (shard, index, ver, content_bytes) = (*key, *index, copy.ver, copy.content_bytes);
                let fact = Fact::Bucket { shard, voted: held.shard.voted, index, ver, content_bytes };
                put(&fact, &copy.bytes, &mut walk.out);
                if walk.out.len() >= end {
                    hit("bizur.checkpoint.step");
                    walk.at = Some((*key, Some(index)));
                    self.walk = Some(walk);
                    return None;
                }
            }
            walk.at = Some((*key, None));
            if walk.out.len() >= end {
                self.walk = Some(walk);
                return None;
            }
        }
        Some(walk.out.freeze())
    }

    /// Restores a checkpoint.
    pub(crate) fn restore_image(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        for (fact, payload) in facts_of(checkpoint)? {
            self.replay(fact, &payload);
        }
        Ok(())
    }
}

/// Returns the facts in a checkpoint, each with its payload.
pub fn facts_of(checkpoint: Bytes) -> Result<Vec<(Fact, Bytes)>, DecodeError> {
    let mut from = Reader::new(checkpoint);
    let format = u16::decode(&mut from)?;
    if format != FORMAT {
        let what = "format of a checkpoint of shards";
        return Err(DecodeError::Invalid { what, value: format.into(), allowed: "1" });
    }
    let mut facts = Vec::new();
    while from.left() > 0 {
        facts.push((Fact::decode(&mut from)?, Bytes::decode(&mut from)?));
    }
    Ok(facts)
}

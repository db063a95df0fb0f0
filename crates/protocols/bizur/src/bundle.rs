//! The writes that leave a node at the end of a turn: those of all its leaders to the replicas on one node are one message, and so are the
//! answers. With many shards, most rounds write one bucket, and a message of its own would cost more than the bucket.
//!
//! The answers wait until the facts of all of them are durable. They were staged in the same turn, so one sync makes them so. Shards in
//! memory have messages of their own, because their answers wait for nothing.

use std::collections::BTreeMap;

use atoll_contract::keyspace::Durability;
use atoll_core::{Class, Effects, Lsn, NodeId};
use bytes::{Bytes, BytesMut};

use crate::message::{ReplicaWrites, ShardWrite};
use crate::roles::REPLICA;

/// The bytes of buckets in a message beyond which it takes no further write.
const MAX_BYTES: usize = 256 * 1024;
/// The most writes in a message.
const MAX_WRITES: usize = 256;

/// A write on its way to a replica.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) node: NodeId,
    pub(crate) write: ShardWrite,
    /// The bytes of its buckets.
    pub(crate) buckets: Bytes,
}

#[derive(Default)]
struct Bundle {
    writes: Vec<ShardWrite>,
    buckets: Vec<Bytes>,
    bytes: usize,
}

/// The writes of a turn.
#[derive(Default)]
pub(crate) struct Bundles(BTreeMap<(NodeId, bool), Bundle>);

impl Bundles {
    /// Adds a write of a shard. Sends the message for its node if that is full.
    pub(crate) fn add(&mut self, durability: Durability, outgoing: Outgoing, out: &mut Effects) {
        let Outgoing { node, write, buckets } = outgoing;
        let bundle = self.0.entry((node, durability == Durability::Disk)).or_default();
        if bundle.writes.len() >= MAX_WRITES || bundle.bytes > 0 && bundle.bytes + buckets.len() > MAX_BYTES {
            std::mem::take(bundle).send(node, out);
        }
        bundle.bytes += buckets.len();
        bundle.writes.push(write);
        bundle.buckets.push(buckets);
    }

    /// Sends all.
    pub(crate) fn send(self, out: &mut Effects) {
        for ((node, _), bundle) in self.0 {
            bundle.send(node, out);
        }
    }
}

impl Bundle {
    fn send(self, node: NodeId, out: &mut Effects) {
        let Bundle { writes, mut buckets, bytes } = self;
        let buckets = match buckets.pop() {
            Some(only) if buckets.is_empty() => only,
            last => {
                let mut all = BytesMut::with_capacity(bytes);
                buckets.iter().chain(&last).for_each(|part| all.extend_from_slice(part));
                all.freeze()
            }
        };
        // Each node is reached at another moment, and may be reached by a later round first.
        out.race_point("bizur.leader.sends");
        out.post(node, Class::Data, REPLICA, ReplicaWrites { writes, buckets }, Lsn::NONE);
    }
}

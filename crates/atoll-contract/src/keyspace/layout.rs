//! The description of a keyspace in a register: its engine, its durability, and where its shards are.

use std::fmt;

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader};

/// The most shards of a keyspace.
pub const MAX_SHARDS: usize = 1024;
/// The most replicas of a shard.
pub const MAX_REPLICAS: usize = 9;
/// The most buckets of a shard.
pub const MAX_BUCKETS: u32 = 65_536;
/// Format of a [`Layout`].
const FORMAT: u16 = 1;

/// The identity of a keyspace. It is drawn at random when the keyspace is created, and never used again: a keyspace that is created
/// later with the same name has another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(pub u128);

impl fmt::Display for KeyspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Encode for KeyspaceId {
    fn encode(&self, out: &mut BytesMut) {
        self.0.encode(out);
    }
}

impl Decode for KeyspaceId {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(KeyspaceId(u128::decode(from)?))
    }
}

/// What survives what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// An acknowledged write is synced on a majority of the replicas.
    #[default]
    Disk,
    /// An acknowledged write is in the memory of a majority of the replicas. A replica that restarts has lost its part, and no longer
    /// counts. If a majority restarts, the keyspace is lost, and says so.
    Memory,
}

impl Encode for Durability {
    fn encode(&self, out: &mut BytesMut) {
        u8::from(*self == Durability::Memory).encode(out);
    }
}

impl Decode for Durability {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match bool::decode(from)? {
            false => Durability::Disk,
            true => Durability::Memory,
        })
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        })
    }
}

/// How far a keyspace is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutState {
    /// It serves.
    #[default]
    Normal,
    /// A newer epoch is being filled from an older one.
    Copying,
    /// It is being deleted. It serves no more, and any node completes the deletion.
    Deleting,
    /// It was deleted. Another one may be created with its name.
    Deleted,
}

impl Encode for LayoutState {
    fn encode(&self, out: &mut BytesMut) {
        (*self as u8).encode(out);
    }
}

impl Decode for LayoutState {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(match u8::decode(from)? {
            0 => LayoutState::Normal,
            1 => LayoutState::Copying,
            2 => LayoutState::Deleting,
            3 => LayoutState::Deleted,
            n => {
                let (what, value) = ("state of a keyspace", u64::from(n));
                return Err(DecodeError::Invalid { what, value, allowed: "0 to 3" });
            }
        })
    }
}

/// A replica: a node under one identity. Another identity of the same node is another replica, which knows nothing of what this one has
/// promised or stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Replica {
    /// The node.
    pub node: NodeId,
    /// Its data directory, or, for a keyspace in memory, the incarnation of its process.
    pub identity: u128,
}

impl Encode for Replica {
    fn encode(&self, out: &mut BytesMut) {
        self.node.encode(out);
        self.identity.encode(out);
    }
}

impl Decode for Replica {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Replica { node: NodeId::decode(from)?, identity: u128::decode(from)? })
    }
}

atoll_core::record! {
    /// The replicas of one shard. The first one is its leader, if the engine has leaders and nothing has happened to it.
    pub struct ShardPlacement {
        /// The replicas.
        pub replicas: Vec<Replica>,
    }
}

impl ShardPlacement {
    /// Returns how many replicas are a majority.
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }
}

/// The place of a key in a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPlace {
    /// The shard.
    pub shard: u32,
    /// The bucket in it.
    pub bucket: u32,
}

/// A keyspace as its register describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The name of the engine.
    pub engine: String,
    /// The identity of the keyspace.
    pub id: KeyspaceId,
    /// Counts the layouts of this keyspace, from 1. Replicas of different epochs have nothing in common.
    pub epoch: u64,
    /// How far it is.
    pub state: LayoutState,
    /// What survives what.
    pub durability: Durability,
    /// How many buckets each shard has. Always 1 for engines without buckets.
    pub buckets: u32,
    /// The shards.
    pub shards: Vec<ShardPlacement>,
    /// What only the engine can read.
    pub options: Bytes,
}

impl Encode for Layout {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.engine.encode(out);
        self.id.encode(out);
        self.epoch.encode(out);
        self.state.encode(out);
        self.durability.encode(out);
        self.buckets.encode(out);
        self.shards.encode(out);
        self.options.encode(out);
    }
}

impl Decode for Layout {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let invalid =
            |what, value: usize, allowed| DecodeError::Invalid { what, value: value as u64, allowed };
        let format = u16::decode(from)?;
        if format != FORMAT {
            return Err(invalid("format of a keyspace", format.into(), "1"));
        }
        let layout = Layout {
            engine: String::decode(from)?,
            id: KeyspaceId::decode(from)?,
            epoch: u64::decode(from)?,
            state: LayoutState::decode(from)?,
            durability: Durability::decode(from)?,
            buckets: u32::decode(from)?,
            shards: Vec::decode(from)?,
            options: Bytes::decode(from)?,
        };
        let count = layout.shards.len();
        if count == 0 || count > MAX_SHARDS {
            return Err(invalid("shards of a keyspace", count, "1 to 1024"));
        }
        if layout.buckets == 0 || layout.buckets > MAX_BUCKETS {
            return Err(invalid("buckets of a shard", layout.buckets as usize, "1 to 65536"));
        }
        for shard in &layout.shards {
            let mut nodes: Vec<NodeId> = shard.replicas.iter().map(|r| r.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            if nodes.is_empty() || nodes.len() != shard.replicas.len() || nodes.len() > MAX_REPLICAS {
                return Err(invalid("replicas of a shard", shard.replicas.len(), "1 to 9 different nodes"));
            }
        }
        Ok(layout)
    }
}

impl Layout {
    /// Returns the place of a key.
    pub fn place(&self, key: &[u8]) -> KeyPlace {
        place_of(key, self.shards.len() as u32, self.buckets)
    }

    /// Returns all nodes that hold a replica, each once, in the order of their ids.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            self.shards.iter().flat_map(|s| s.replicas.iter().map(|r| r.node)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// Returns the place of a key in a keyspace with this many shards, and buckets per shard. It never changes: it is where the key is stored.
pub fn place_of(key: &[u8], shards: u32, buckets: u32) -> KeyPlace {
    // FNV-1a, mixed so that all bits of the result depend on all bytes.
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in key {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^= hash >> 31;
    let (shards, buckets) = (u64::from(shards.max(1)), u64::from(buckets.max(1)));
    KeyPlace { shard: (hash % shards) as u32, bucket: ((hash / shards) % buckets) as u32 }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let replica = |n: u32| Replica { node: NodeId(n), identity: u128::from(n) * 7 };
        Layout {
            engine: "engine".into(),
            id: KeyspaceId(5),
            epoch: 1,
            state: LayoutState::Normal,
            durability: Durability::Memory,
            buckets: 16,
            shards: vec![ShardPlacement { replicas: vec![replica(1), replica(2), replica(3)] }],
            options: Bytes::new(),
        }
    }

    #[test]
    fn layouts_come_back_and_wrong_ones_are_refused() {
        let good = layout();
        assert_eq!(Layout::from_bytes(good.to_bytes()), Ok(good.clone()));
        let mut twice = good.clone();
        twice.shards[0].replicas[1] = twice.shards[0].replicas[0];
        let (mut none, mut unbucketed) = (good.clone(), good);
        none.shards.clear();
        unbucketed.buckets = 0;
        for wrong in [twice, none, unbucketed] {
            assert!(matches!(Layout::from_bytes(wrong.to_bytes()), Err(DecodeError::Invalid { .. })));
        }
    }

    #[test]
    fn places_never_change_and_are_spread() {
        assert_eq!(place_of(b"a", 256, 64), place_of(b"a", 256, 64));
        assert_eq!(place_of(b"owner/7", 4, 8), KeyPlace { shard: 3, bucket: 3 });
        let mut counts = [0; 16];
        for n in 0..1600 {
            counts[place_of(format!("key-{n}").as_bytes(), 16, 4).shard as usize] += 1;
        }
        assert!(counts.iter().all(|n| (60..140).contains(n)), "{counts:?}");
    }
}

//! Placement of records by a policy of the client (setShardPolicy, scalog.md §6). A policy changes where records are, never their order.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use atoll_contract::Batch;
use atoll_core::NodeId;

/// A shard that takes records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveShard {
    /// Its number.
    pub shard: u32,
    /// Its servers.
    pub nodes: Vec<NodeId>,
}

/// A user's function: chooses one of the shards that take records, of which there is at least one.
pub type ChooseShard = dyn Fn(&Batch, &[LiveShard]) -> u32 + Send + Sync;

/// Which shard gets the records of an append.
#[derive(Clone, Default)]
pub enum ShardPolicy {
    /// A shard with a server on the client's node. Without one: like `Hash`.
    #[default]
    Nearest,
    /// The shard follows from the number of the first record's client.
    Hash,
    /// One shard after the other.
    RoundRobin,
    /// A user's function.
    Custom(Arc<ChooseShard>),
}

impl fmt::Debug for ShardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ShardPolicy::Nearest => "nearest",
            ShardPolicy::Hash => "hash",
            ShardPolicy::RoundRobin => "round-robin",
            ShardPolicy::Custom(_) => "custom",
        })
    }
}

/// The policy panicked, or chose a shard that takes no records.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadChoice {
    Panicked,
    NotLive(u32),
}

impl ShardPolicy {
    /// Returns the built-in policy with this name: `nearest`, `hash` or `round-robin`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "nearest" => Some(ShardPolicy::Nearest),
            "hash" => Some(ShardPolicy::Hash),
            "round-robin" => Some(ShardPolicy::RoundRobin),
            _ => None,
        }
    }

    /// Chooses one of the shards, of which there must be at least one. `me` is the client's node, and `turn` counts its appends.
    pub(super) fn choose(
        &self,
        batch: &Batch,
        live: &[LiveShard],
        me: NodeId,
        turn: u64,
    ) -> Result<u32, BadChoice> {
        let at = |n: u64| live[(n % live.len() as u64) as usize].shard;
        let client = batch.ops().next().map_or(0, |op| op.client.0);
        let near = || live.iter().find(|shard| shard.nodes.contains(&me)).map(|shard| shard.shard);
        let shard = match self {
            ShardPolicy::Nearest => near().unwrap_or_else(|| at(client)),
            ShardPolicy::Hash => at(client),
            ShardPolicy::RoundRobin => at(turn),
            // A function that panics must cost its own append only.
            ShardPolicy::Custom(choose) => {
                catch_unwind(AssertUnwindSafe(|| choose(batch, live))).map_err(|_| BadChoice::Panicked)?
            }
        };
        let is_live = live.iter().any(|one| one.shard == shard);
        is_live.then_some(shard).ok_or(BadChoice::NotLive(shard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry, OpId};
    use bytes::Bytes;

    fn batch(client: u64) -> Batch {
        Batch::of([Entry { op: OpId { client: ClientId(client), seq: 1 }, payload: Bytes::new() }])
    }

    #[test]
    fn policies_choose_among_the_shards_that_there_are() {
        let shard = |shard, nodes: [u32; 2]| LiveShard { shard, nodes: nodes.map(NodeId).to_vec() };
        let live = [shard(3, [1, 2]), shard(8, [3, 4])];
        let choose =
            |policy: &ShardPolicy, me, client, turn| policy.choose(&batch(client), &live, NodeId(me), turn);
        assert_eq!(choose(&ShardPolicy::Nearest, 4, 6, 0), Ok(8));
        assert_eq!(choose(&ShardPolicy::Nearest, 9, 6, 0), Ok(3), "by the client");
        assert_eq!(choose(&ShardPolicy::Hash, 1, 7, 0), Ok(8));
        let turns: Vec<_> = (0..3).map(|turn| choose(&ShardPolicy::RoundRobin, 1, 7, turn)).collect();
        assert_eq!(turns, [Ok(3), Ok(8), Ok(3)]);
        let custom = |f: fn(&Batch, &[LiveShard]) -> u32| ShardPolicy::Custom(Arc::new(f));
        assert_eq!(choose(&custom(|_, live| live[1].shard), 1, 7, 0), Ok(8));
        assert_eq!(choose(&custom(|_, _| 5), 1, 7, 0), Err(BadChoice::NotLive(5)));
        assert_eq!(choose(&custom(|_, _| panic!("a bug")), 1, 7, 0), Err(BadChoice::Panicked));
        assert!(ShardPolicy::named("hash").is_some() && ShardPolicy::named("random").is_none());
    }
}

//! What a replica does about moves (§6): it seals a shard, shows its buckets to the next instance, and retires; and it takes what replicas
//! of the instance before have shown.

use std::collections::BTreeMap;

use atoll_contract::keyspace::{Durability, KeyspaceId, Replica};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Class, Effects, Encode, Lsn, RecordKind, Tick};
use bytes::Bytes;

use crate::message::{Fact, Fetch, Fetched, Instance, Retire, Seal, Sealed, ShardKey};
use crate::mutants;
use crate::node::BizurNode;
use crate::roles::REPLICA;

/// Why a node holds no replica of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// The instance names another identity of the node, or another node.
    NotMember,
    /// The keyspace was dropped, or the instance has retired.
    Gone,
}

/// The instances of shards that have retired here.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// The last of each shard, and the instance that serves in its place. After a restart, only the register knows that one.
    retired: BTreeMap<(KeyspaceId, u32), (u64, Option<Instance>)>,
}

impl Moves {
    /// Returns whether an instance has retired.
    pub(crate) fn has_retired(&self, key: &ShardKey) -> bool {
        self.retired.get(&(key.keyspace, key.shard)).is_some_and(|(last, _)| *last >= key.epoch)
    }

    /// Returns the instance that serves in place of one that has retired, if that is known.
    pub(crate) fn to(&self, key: &ShardKey) -> Option<Instance> {
        self.retired.get(&(key.keyspace, key.shard)).and_then(|(_, to)| to.clone())
    }

    /// Notes that an instance has retired.
    pub(crate) fn retire(&mut self, key: ShardKey, to: Option<Instance>) {
        if !self.has_retired(&key) {
            self.retired.insert((key.keyspace, key.shard), (key.epoch, to));
        }
    }

    /// Returns whether nothing has retired here.
    pub(crate) fn is_empty(&self) -> bool {
        self.retired.is_empty()
    }

    /// Forgets what a deletion of the keyspace up to an epoch covers.
    pub(crate) fn forget(&mut self, keyspace: KeyspaceId, epoch: u64) {
        self.retired.retain(|(of, _), (last, _)| *of != keyspace || *last > epoch);
    }

    /// Returns the facts for a checkpoint.
    pub(crate) fn facts(&self) -> impl Iterator<Item = Fact> {
        self.retired.iter().map(|((keyspace, shard), (epoch, _))| Fact::Retired {
            shard: ShardKey { keyspace: *keyspace, epoch: *epoch, shard: *shard },
        })
    }
}

impl BizurNode {
    /// R2: a sealed replica takes no write and confirms no leader any more. A leader here gives up, and its writes under way have an
    /// unknown outcome: their clients repeat them in the next instance, which knows what became of them.
    pub(crate) fn on_seal(&mut self, now: Tick, from: Caller, m: Seal, out: &mut Effects) {
        let (done, shows) = match self.hold(now, Instance { config: m.config, former: None }, out) {
            Ok(held) => {
                held.shard.seal(out);
                held.leader.step_down(None, out);
                if m.next.is_some() {
                    held.shard.next = m.next;
                }
                (true, held.shard.lsn)
            }
            Err(_) => (false, Lsn::NONE),
        };
        out.reply(from, Sealed { done }, shows);
    }

    /// R3: shows buckets to the leader of the next instance. It may have reached a replica that was not sealed yet. What the replica shows
    /// must not change any more, so it seals itself first.
    pub(crate) fn on_fetch(&mut self, now: Tick, from: Caller, m: Fetch, out: &mut Effects) {
        let former = m.former.key;
        let Ok(held) = self.hold(now, Instance { config: m.former, former: None }, out) else { return };
        let identity = held.shard.identity().identity;
        if identity != m.to || m.indices.iter().any(|index| *index >= held.shard.config.buckets) {
            return;
        }
        if !mutant(mutants::BIZUR_FETCH_UNSEALED) {
            held.shard.seal(out);
            held.leader.step_down(None, out);
        }
        let (items, buckets, shows) = held.shard.copies(&m.indices);
        let (shard, elect, round) = (m.shard, m.elect, m.round);
        let fetched = Fetched { shard, former, from: identity, elect, round, items, buckets };
        out.post(from.node, Class::Data, REPLICA, fetched, shows);
    }

    pub(crate) fn on_fetched(&mut self, now: Tick, from: Caller, m: &Fetched, out: &mut Effects) {
        let total: usize = m.items.iter().map(|item| item.bytes as usize).sum();
        let Some(held) = self.shards.get_mut(&m.shard).filter(|_| total == m.buckets.len()) else { return };
        let sender = Replica { node: from.node, identity: m.from };
        let former = held.shard.former.as_ref().filter(|former| former.key == m.former);
        let Some(position) = former.and_then(|former| former.position(sender)) else {
            hit("bizur.node.foreign_message");
            return;
        };
        let round = (m.elect, m.round);
        held.leader.on_fetched(now, &mut held.shard, position, round, (&m.items, &m.buckets), out);
        self.touched.insert(m.shard);
    }

    /// R5: forgets a replica whose buckets the next instance has, and never holds it again.
    pub(crate) fn on_retire(&mut self, now: Tick, from: Caller, m: Retire, out: &mut Effects) {
        let key = m.config.key;
        let durability = m.config.durability;
        let (done, shows) = match self.hold(now, Instance { config: m.config, former: None }, out) {
            Ok(_) => {
                hit("bizur.replica.retires");
                self.moves.retire(key, Some(m.next));
                self.forget_shard(key, Some(out));
                let fact = Fact::Retired { shard: key };
                let lsn = match durability {
                    Durability::Disk => out.journal(RecordKind::Fact, fact.to_bytes(), Bytes::new()),
                    Durability::Memory => Lsn::NONE,
                };
                (true, lsn)
            }
            Err(absence) => (absence == Absence::Gone, Lsn::NONE),
        };
        out.reply(from, Sealed { done }, shows);
    }
}

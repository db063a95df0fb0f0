//! The role of a node: its replicas of shards, the shards that it leads, and the detection of nodes that do not answer.
//!
//! A node sends a beat to every node with which it shares shards. A node that was silent for [`NodeOptions::suspect_after`], that reports a
//! closed journal, or that now has another identity than the one in the shard's configuration, does not lead: the next replica in the order
//! of the configuration stands for election. A false alarm costs one election. Clients may also insist, if the leader has not answered
//! them for long, or says that it does not lead (`search.rs`).
//!
//! The node drops every message from or to an identity that is not in the configuration of the shard (bizur-Z10). For a shard in memory,
//! the identity is that of the process. So a process that restarts, and has forgotten its votes and buckets, is nobody (§5).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceId, Replica};
use atoll_core::env::Refused;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Encode, Env, Frame, Loc, Lsn, Measure, Message, NodeId, RecordKind,
    Role, Space, StorageId, Stored, Tick,
};
use bytes::Bytes;

use crate::bundle::Bundles;
use crate::checkpoint::Walk;
use crate::elect::ElectId;
use crate::leader::{Leader, LeaderOptions, PAGES, not_leader};
use crate::message::{
    Address, Answer, Ask, AskReply, Beat, Create, Created, DropKeyspace, Fact, Fetch, Fetched, Instance,
    Open, PleaseVote, Question, ReadReply, ReplicaRead, ReplicaWrites, Retire, Seal, ShardConfig, ShardKey,
    ShardWrite, ShardWrote, Vote, WriteReplies,
};
use crate::moves::{Absence, Moves};
use crate::mutants;
use crate::roles::REPLICA;
use crate::shard::Shard;

/// Intervals and limits of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Options of the leaders.
    pub leader: LeaderOptions,
    /// How often a node tells the others that it lives.
    pub beat_every: Duration,
    /// How long a node may be silent before others stand for its shards.
    pub suspect_after: Duration,
    /// Mean time before a server that lost an election stands again (bizur-B9).
    pub backoff: Duration,
    /// Bytes of keys and values that all replicas of a node hold together. Too small: writes are refused. Too large: memory.
    pub capacity_bytes: usize,
}

impl Default for NodeOptions {
    fn default() -> Self {
        NodeOptions {
            leader: LeaderOptions::default(),
            beat_every: Duration::from_millis(25),
            suspect_after: Duration::from_millis(100),
            backoff: Duration::from_millis(30),
            capacity_bytes: 512 << 20,
        }
    }
}

/// How often a leader looks after rounds without an answer.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What is known about another node.
#[derive(Clone, Copy, Debug)]
struct Peer {
    heard: Tick,
    /// Its last beat, if it sent one.
    identity: Option<(u128, u128)>,
    failed: bool,
}

/// The last requests of a node. A copy of one of them must not be taken again: the first one may have been answered that its condition
/// does not hold, and a copy that comes later may find that it does.
#[derive(Debug, Default)]
struct Seen {
    numbers: BTreeSet<u64>,
    order: VecDeque<u64>,
}

/// How many requests of a node are remembered. Copies of a message come soon after it, on the same connection.
const REMEMBERED_REQUESTS: usize = 1024;

impl Seen {
    /// Notes a request. Returns false if it was seen before.
    fn is_new(&mut self, number: u64) -> bool {
        if !self.numbers.insert(number) {
            return false;
        }
        self.order.push_back(number);
        if self.order.len() > REMEMBERED_REQUESTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
        true
    }
}

/// A replica and its leader.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) shard: Shard,
    pub(crate) leader: Leader,
    due: Option<Tick>,
    /// When this life of the node last voted.
    voted_at: Option<Tick>,
}

impl Held {
    fn new(shard: Shard, options: LeaderOptions) -> Self {
        Held { shard, leader: Leader::new(options), due: None, voted_at: None }
    }
}

/// See the module documentation.
pub struct BizurNode {
    env: Env,
    storage: StorageId,
    options: NodeOptions,
    pub(crate) shards: BTreeMap<ShardKey, Held>,
    /// The last epochs of keyspaces that were dropped.
    pub(crate) dropped: BTreeMap<KeyspaceId, u64>,
    dropped_lsn: Lsn,
    /// The instances of shards that have handed over their buckets.
    pub(crate) moves: Moves,
    /// Bytes that all replicas hold.
    bytes: usize,
    peers: BTreeMap<NodeId, Peer>,
    seen: BTreeMap<NodeId, Seen>,
    next_beat: Option<Tick>,
    due: BTreeSet<(Tick, ShardKey)>,
    pub(crate) touched: BTreeSet<ShardKey>,
    space: Space,
    pub(crate) walk: Option<Walk>,
    /// Rounds that the leaders of this node have begun, by kind, and the pages of listings that they were asked for.
    counted: BTreeMap<&'static str, u64>,
}

impl BizurNode {
    /// Creates the role of a node with this data directory.
    pub fn new(env: Env, storage: StorageId, options: NodeOptions) -> Self {
        BizurNode {
            env,
            storage,
            options,
            shards: BTreeMap::new(),
            dropped: BTreeMap::new(),
            dropped_lsn: Lsn::NONE,
            moves: Moves::default(),
            bytes: 0,
            peers: BTreeMap::new(),
            seen: BTreeMap::new(),
            next_beat: None,
            due: BTreeSet::new(),
            touched: BTreeSet::new(),
            space: Space::Plenty,
            walk: None,
            counted: BTreeMap::new(),
        }
    }

    fn me(&self) -> NodeId {
        self.env.node()
    }

    /// Returns the identity of this node for shards of a durability.
    fn identity(&self, durability: Durability) -> u128 {
        match durability {
            Durability::Disk => self.storage.0,
            Durability::Memory => u128::from(self.env.incarnation().0),
        }
    }

    /// Returns the position of this node among the replicas of a shard, if the shard names its present identity.
    pub(crate) fn position(&self, config: &ShardConfig) -> Option<usize> {
        if mutant(mutants::BIZUR_AMNESIA) {
            return config.replicas.iter().position(|r| r.node == self.me());
        }
        config.position(Replica { node: self.me(), identity: self.identity(config.durability) })
    }

    fn room(&self) -> usize {
        self.options.capacity_bytes.saturating_sub(self.bytes)
    }

    fn backoff(&self) -> Duration {
        self.env.jitter(self.options.backoff)
    }

    /// Returns the shard of a message between replicas, and the position of its sender. None if either is not a replica of it (bizur-Z10).
    fn admit(&mut self, from: NodeId, to: &Address) -> Option<(&mut Held, usize)> {
        let held = self.shards.get_mut(&to.shard)?;
        let sender = held.shard.config.position(Replica { node: from, identity: to.from });
        let sender = match mutant(mutants::BIZUR_AMNESIA) {
            true => held.shard.config.replicas.iter().position(|r| r.node == from),
            false => sender.filter(|_| held.shard.identity().identity == to.to),
        };
        let Some(position) = sender else {
            hit("bizur.node.foreign_message");
            return None;
        };
        self.touched.insert(to.shard);
        Some((held, position))
    }

    /// Answers a replica: the addresses are swapped.
    fn back(to: &Address) -> Address {
        Address { shard: to.shard, from: to.to, to: to.from }
    }

    fn on_please_vote(&mut self, now: Tick, from: Caller, m: PleaseVote, out: &mut Effects) {
        let Some((held, position)) = self.admit(from.node, &m.to) else { return };
        if held.shard.config.replicas[position] != m.elect.server {
            return;
        }
        if m.elect > held.shard.voted {
            held.voted_at = Some(now);
        }
        held.shard.vote(m.elect, out);
        held.leader.heard_of(held.shard.voted, out);
        let vote = Vote { to: Self::back(&m.to), elect: m.elect, voted: held.shard.voted };
        out.post(from.node, Class::Control, REPLICA, vote, held.shard.lsn);
    }

    fn on_vote(&mut self, now: Tick, from: Caller, m: &Vote, out: &mut Effects) {
        let backoff = self.backoff();
        let Some((held, position)) = self.admit(from.node, &m.to) else { return };
        held.leader.on_vote(now, &mut held.shard, position, (m.elect, m.voted), backoff, out);
    }

    fn on_writes(&mut self, from: Caller, m: &ReplicaWrites, out: &mut Effects) {
        let bytes = |write: &ShardWrite| write.items.iter().map(|item| item.bytes as usize).sum::<usize>();
        if m.writes.iter().map(bytes).sum::<usize>() != m.buckets.len() {
            return;
        }
        let (mut replies, mut shows, mut at) = (Vec::with_capacity(m.writes.len()), Lsn::NONE, 0);
        for write in &m.writes {
            let buckets = m.buckets.slice(at..at + bytes(write));
            at += buckets.len();
            if let Some((reply, lsn)) = self.on_write(from, write, &buckets, out) {
                replies.push(reply);
                shows = shows.max(lsn);
            }
        }
        if !replies.is_empty() {
            out.post(from.node, Class::Data, REPLICA, WriteReplies { replies }, shows);
        }
    }

    /// Returns the answer to a write, and the fact that it shows. None if the sender may not write.
    fn on_write(
        &mut self,
        from: Caller,
        m: &ShardWrite,
        buckets: &Bytes,
        out: &mut Effects,
    ) -> Option<(ShardWrote, Lsn)> {
        let room = self.room();
        let (held, _) = self.admit(from.node, &m.to)?;
        if m.items.iter().any(|item| item.index >= held.shard.config.buckets) {
            return None;
        }
        let (answer, shows, grown) = held.shard.write(m, buckets, room, out);
        held.leader.heard_of(held.shard.voted, out);
        self.bytes = self.bytes.saturating_add_signed(grown);
        let reply = ShardWrote { to: Self::back(&m.to), elect: m.elect, round: m.round, answer };
        Some((reply, shows))
    }

    fn on_read(&mut self, from: Caller, m: &ReplicaRead, out: &mut Effects) {
        let Some((held, _)) = self.admit(from.node, &m.to) else { return };
        let (answer, buckets, shows) = held.shard.read(m.elect, &m.indices, out);
        held.leader.heard_of(held.shard.voted, out);
        let reply = ReadReply { to: Self::back(&m.to), elect: m.elect, round: m.round, answer, buckets };
        out.post(from.node, Class::Data, REPLICA, reply, shows);
    }

    fn on_write_reply(&mut self, now: Tick, from: Caller, m: &ShardWrote, out: &mut Effects) {
        let Some((held, position)) = self.admit(from.node, &m.to) else { return };
        let round = (m.elect, m.round);
        held.leader.on_write_reply(now, &mut held.shard, position, round, &m.answer, out);
    }

    fn on_read_reply(&mut self, now: Tick, from: Caller, m: &ReadReply, out: &mut Effects) {
        let Some((held, position)) = self.admit(from.node, &m.to) else { return };
        if let crate::message::ReadAnswer::Ack { items } = &m.answer {
            let total: usize = items.iter().map(|item| item.bytes as usize).sum();
            if total != m.buckets.len() {
                return;
            }
        }
        let (round, answer) = ((m.elect, m.round), (&m.answer, &m.buckets));
        held.leader.on_read_reply(now, &mut held.shard, position, round, answer, out);
    }

    fn on_create(&mut self, now: Tick, from: Caller, instances: Vec<Instance>, out: &mut Effects) {
        let (mut not_member, mut dropped, mut shows) = (0, 0, self.dropped_lsn);
        for instance in instances {
            match self.hold(now, instance, out) {
                Ok(held) => shows = shows.max(held.shard.lsn),
                Err(Absence::NotMember) => not_member += 1,
                Err(Absence::Gone) => dropped += 1,
            }
        }
        out.reply(from, Created { not_member, dropped }, shows);
    }

    /// Returns the replica of an instance. It begins to exist if it does not yet.
    pub(crate) fn hold(
        &mut self,
        now: Tick,
        instance: Instance,
        out: &mut Effects,
    ) -> Result<&mut Held, Absence> {
        let key = instance.config.key;
        let is_dropped = self.dropped.get(&key.keyspace).is_some_and(|last| *last >= key.epoch);
        if is_dropped || self.moves.has_retired(&key) {
            return Err(Absence::Gone);
        }
        if !self.shards.contains_key(&key) {
            let Some(me) = self.position(&instance.config) else {
                hit("bizur.node.not_member");
                return Err(Absence::NotMember);
            };
            let mut shard = Shard::new(instance, me);
            shard.keep_config(out);
            self.shards.insert(key, Held::new(shard, self.options.leader.clone()));
            self.watch_peers(now);
        }
        self.shards.get_mut(&key).ok_or(Absence::Gone)
    }

    fn on_drop(&mut self, from: Caller, m: &DropKeyspace, out: &mut Effects) {
        let last = self.dropped.entry(m.keyspace).or_default();
        if m.epoch > *last {
            *last = m.epoch;
            let fact = Fact::Dropped { keyspace: m.keyspace, epoch: m.epoch };
            self.dropped_lsn = out.journal(RecordKind::Fact, fact.to_bytes(), Bytes::new());
        }
        self.forget(m.keyspace, m.epoch, Some(out));
        out.reply(from, Created { not_member: 0, dropped: 0 }, self.dropped_lsn);
    }

    /// Removes the shards of a keyspace up to an epoch.
    fn forget(&mut self, keyspace: KeyspaceId, epoch: u64, mut out: Option<&mut Effects>) {
        let first = ShardKey { keyspace, epoch: 0, shard: 0 };
        let last = ShardKey { keyspace, epoch, shard: u32::MAX };
        let gone: Vec<ShardKey> = self.shards.range(first..=last).map(|(key, _)| *key).collect();
        for key in gone {
            self.forget_shard(key, out.as_deref_mut());
        }
        self.moves.forget(keyspace, epoch);
    }

    /// Removes a shard.
    pub(crate) fn forget_shard(&mut self, key: ShardKey, out: Option<&mut Effects>) {
        let Some(mut held) = self.shards.remove(&key) else { return };
        if let Some(out) = out {
            held.leader.step_down(None, out);
        }
        if let Some(due) = held.due {
            self.due.remove(&(due, key));
        }
        self.bytes = self.bytes.saturating_sub(held.shard.held_bytes());
    }

    fn on_ask(&mut self, now: Tick, from: Caller, m: Ask, out: &mut Effects) {
        let Some(number) = from.request else { return };
        if !self.seen.entry(from.node).or_default().is_new(number) {
            hit("bizur.node.copy");
            return;
        }
        if let Some(answer) = self.take(now, from, m, out) {
            out.reply(from, AskReply { answer }, Lsn::NONE);
        }
    }

    /// Passes a request to the leader on this node, or returns the answer that says why it cannot.
    fn take(&mut self, now: Tick, from: Caller, m: Ask, out: &mut Effects) -> Option<Answer> {
        let Some(held) = self.shards.get(&m.shard) else {
            if self.moves.has_retired(&m.shard) {
                // A client with an old layout reads it again if nobody knows where the shard went.
                return Some(
                    self.moves.to(&m.shard).map_or(Answer::Dropped {}, |to| Answer::Moved { to: Some(to) }),
                );
            }
            let last = self.dropped.get(&m.shard.keyspace).copied().unwrap_or(0);
            return Some(if last >= m.shard.epoch { Answer::Dropped {} } else { Answer::Absent {} });
        };
        if held.shard.sealed {
            return Some(Answer::Moved { to: held.shard.next.clone() });
        }
        let durable = held.shard.config.durability == Durability::Disk;
        match self.space {
            Space::Closed if durable => return Some(Answer::StorageFailed {}),
            Space::FactsOnly if durable && matches!(m.question, Question::Write { .. }) => {
                return Some(Answer::DiskFull {});
            }
            _ => {}
        }
        let leader = self.believed_leader(held);
        if !held.leader.is_active() {
            let silent = leader == self.me() || !self.is_well(now, held, leader);
            // What the client knows of a leader may be older than the election of this one.
            let young = |at: Tick| now.since(at) < held.leader.election_patience();
            if !silent && (!m.insist || held.voted_at.is_some_and(young)) {
                return Some(not_leader(Some(leader)));
            }
            if !held.leader.may_stand(now) {
                return Some(not_leader(None));
            }
            hit("bizur.node.stands_on_demand");
            self.stand(now, m.shard, out);
        }
        self.touched.insert(m.shard);
        if let Some(held) = self.shards.get_mut(&m.shard) {
            held.leader.ask(now, &held.shard, from, m.question, out);
        }
        None
    }

    /// Returns the node that leads a shard, as far as its replica here knows.
    fn believed_leader(&self, held: &Held) -> NodeId {
        match held.shard.voted {
            ElectId::ZERO => held.shard.config.replicas[0].node,
            voted => voted.server.node,
        }
    }

    /// Returns whether a replica's node seems to be able to lead.
    fn is_well(&self, now: Tick, held: &Held, node: NodeId) -> bool {
        if node == self.me() {
            let durable = held.shard.config.durability == Durability::Disk;
            return !(durable && self.space == Space::Closed);
        }
        let Some(peer) = self.peers.get(&node) else { return true };
        let durable = held.shard.config.durability == Durability::Disk;
        let wanted = held.shard.config.replicas.iter().find(|r| r.node == node).map(|r| r.identity);
        let same =
            peer.identity.is_none_or(|(storage, life)| wanted == Some(if durable { storage } else { life }));
        same && !(durable && peer.failed) && now.since(peer.heard) < self.options.suspect_after
    }

    fn stand(&mut self, now: Tick, key: ShardKey, out: &mut Effects) {
        let Some(held) = self.shards.get_mut(&key) else { return };
        if !held.leader.may_stand(now) {
            return;
        }
        held.leader.stand(now, &mut held.shard, out);
        self.touched.insert(key);
    }

    /// Begins to watch the nodes with which this one shares shards.
    pub(crate) fn watch_peers(&mut self, now: Tick) {
        for held in self.shards.values() {
            for replica in held.shard.config.replicas.iter().filter(|r| r.node != self.env.node()) {
                let fresh = Peer { heard: now, identity: None, failed: false };
                self.peers.entry(replica.node).or_insert(fresh);
            }
        }
        if !self.peers.is_empty() && self.next_beat.is_none() {
            self.next_beat = Some(now);
        }
    }

    fn on_beat(&mut self, now: Tick, from: Caller, m: &Beat) {
        if let Some(peer) = self.peers.get_mut(&from.node) {
            *peer = Peer { heard: now, identity: Some((m.storage, m.life)), failed: m.failed };
        }
    }

    /// Tells the other nodes that this one lives, and stands for the shards whose leader seems to be gone.
    fn beat(&mut self, now: Tick, planned: Tick, out: &mut Effects) {
        // A node that was paused knows nothing about the others (X21).
        if now.since(planned) > self.options.suspect_after / 2 {
            hit("bizur.node.late_beat");
            self.peers.values_mut().for_each(|peer| peer.heard = now);
        }
        let life = u128::from(self.env.incarnation().0);
        let failed = self.space == Space::Closed;
        for node in self.peers.keys() {
            let beat = Beat { storage: self.storage.0, life, failed };
            out.post(*node, Class::Control, REPLICA, beat, Lsn::NONE);
        }
        let orphans: Vec<ShardKey> = self
            .shards
            .iter()
            .filter(|(_, held)| held.leader.may_stand(now) && self.should_stand(now, held))
            .map(|(key, _)| *key)
            .collect();
        for key in orphans {
            hit("bizur.node.stands_for_silent");
            self.stand(now, key, out);
        }
        self.next_beat = (!self.shards.is_empty()).then(|| now.after(self.options.beat_every));
    }

    /// Returns whether the leader of a shard is gone, and this node is the first one after it that is well.
    fn should_stand(&self, now: Tick, held: &Held) -> bool {
        if held.shard.voted == ElectId::ZERO || held.shard.sealed {
            return false;
        }
        let leader = self.believed_leader(held);
        if leader == self.me() || self.is_well(now, held, leader) {
            return false;
        }
        let replicas = &held.shard.config.replicas;
        let at = replicas.iter().position(|r| r.node == leader).unwrap_or(0);
        let next = (1..replicas.len())
            .map(|i| replicas[(at + i) % replicas.len()].node)
            .find(|node| self.is_well(now, held, *node));
        next == Some(self.me())
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Ask::KIND => self.on_ask(now, from, Ask::from_frame(f)?, out),
            ReplicaWrites::KIND => self.on_writes(from, &ReplicaWrites::from_frame(f)?, out),
            WriteReplies::KIND => {
                for reply in &WriteReplies::from_frame(f)?.replies {
                    self.on_write_reply(now, from, reply, out);
                }
            }
            ReplicaRead::KIND => self.on_read(from, &ReplicaRead::from_frame(f)?, out),
            ReadReply::KIND => self.on_read_reply(now, from, &ReadReply::from_frame(f)?, out),
            PleaseVote::KIND => self.on_please_vote(now, from, PleaseVote::from_frame(f)?, out),
            Vote::KIND => self.on_vote(now, from, &Vote::from_frame(f)?, out),
            Beat::KIND => self.on_beat(now, from, &Beat::from_frame(f)?),
            Create::KIND => {
                let configs = Create::from_frame(f)?.shards.into_iter();
                let first = |config| Instance { config, former: None };
                self.on_create(now, from, configs.map(first).collect(), out);
            }
            Open::KIND => self.on_create(now, from, Open::from_frame(f)?.shards, out),
            Seal::KIND => self.on_seal(now, from, Seal::from_frame(f)?, out),
            Fetch::KIND => self.on_fetch(now, from, Fetch::from_frame(f)?, out),
            Fetched::KIND => self.on_fetched(now, from, &Fetched::from_frame(f)?, out),
            Retire::KIND => self.on_retire(now, from, Retire::from_frame(f)?, out),
            DropKeyspace::KIND => self.on_drop(from, &DropKeyspace::from_frame(f)?, out),
            got => {
                return Err(DecodeError::WrongKind { expected: "a message for a replica of a shard", got });
            }
        }
        Ok(())
    }

    /// Applies a fact from the journal or from a checkpoint.
    pub(crate) fn replay(&mut self, fact: Fact, payload: &Bytes) {
        let key = match &fact {
            Fact::Shard { config } => {
                return self.replay_instance(Instance { config: config.clone(), former: None });
            }
            Fact::Opened { config, former } => {
                let (config, former) = (config.clone(), Some(former.clone()));
                return self.replay_instance(Instance { config, former });
            }
            Fact::Retired { shard } => {
                self.moves.retire(*shard, None);
                return self.forget_shard(*shard, None);
            }
            Fact::Dropped { keyspace, epoch } => {
                let last = self.dropped.entry(*keyspace).or_default();
                *last = (*last).max(*epoch);
                return self.forget(*keyspace, *epoch, None);
            }
            Fact::Voted { shard, .. }
            | Fact::Stood { shard, .. }
            | Fact::Sealed { shard }
            | Fact::Bucket { shard, .. } => *shard,
        };
        if let Some(held) = self.shards.get_mut(&key) {
            let grown = held.shard.replay(fact, payload);
            self.bytes = self.bytes.saturating_add_signed(grown);
        }
    }

    fn replay_instance(&mut self, instance: Instance) {
        let key = instance.config.key;
        let gone = self.dropped.get(&key.keyspace).is_some_and(|last| *last >= key.epoch);
        if let Some(me) = self.position(&instance.config)
            && !gone
            && !self.moves.has_retired(&key)
        {
            let held = Held::new(Shard::new(instance, me), self.options.leader.clone());
            self.shards.entry(key).or_insert(held);
        }
    }

    /// Plans the next look at a shard.
    fn plan(&mut self, now: Tick, key: ShardKey) {
        let Some(held) = self.shards.get_mut(&key) else { return };
        let wanted = held.leader.next_look(now.after(LOOK_EVERY));
        // An earlier look than is needed does no harm. The next one is planned after it.
        if held.due.is_some_and(|at| wanted.is_some_and(|wanted| at <= wanted)) {
            return;
        }
        if let Some(at) = std::mem::replace(&mut held.due, wanted) {
            self.due.remove(&(at, key));
        }
        if let Some(at) = wanted {
            self.due.insert((at, key));
        }
    }
}

impl Role for BizurNode {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        [self.next_beat, self.due.first().map(|(at, _)| *at)].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        if let Some(planned) = self.next_beat.filter(|at| *at <= now) {
            self.beat(now, planned, out);
        }
        while let Some((at, key)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, key));
            let backoff = self.backoff();
            if let Some(held) = self.shards.get_mut(&key) {
                held.due = None;
                held.leader.look(now, &mut held.shard, backoff, out);
                self.touched.insert(key);
            }
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        let room = self.room();
        let mut bundles = Bundles::default();
        for key in std::mem::take(&mut self.touched) {
            if let Some(held) = self.shards.get_mut(&key) {
                held.leader.flush(now, &held.shard, room, out);
                for (what, times) in held.leader.take_counted() {
                    *self.counted.entry(what).or_default() += times;
                }
                let durability = held.shard.config.durability;
                held.leader.take_writes().for_each(|write| bundles.add(durability, write, out));
            }
            self.plan(now, key);
        }
        bundles.send(out);
    }

    fn on_space(&mut self, _now: Tick, space: Space, out: &mut Effects) {
        self.space = space;
        if space == Space::Closed {
            for held in self.shards.values_mut().filter(|h| h.shard.config.durability == Durability::Disk) {
                held.leader.step_down(None, out);
            }
        }
    }

    fn on_link(&mut self, now: Tick, peer: NodeId, class: Class, up: bool, _out: &mut Effects) {
        // A broken connection is evidence: a process that was killed is suspected without waiting for its beats.
        if class == Class::Control
            && !up
            && let Some(known) = self.peers.get_mut(&peer)
        {
            let silent = self.options.suspect_after.saturating_sub(2 * self.options.beat_every);
            known.heard = known.heard.min(Tick(now.0.saturating_sub(silent.as_nanos() as u64)));
        }
    }

    fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.image(max_bytes)
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.restore_image(checkpoint)
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let fact = <Fact as atoll_core::Decode>::from_bytes(stored.record.head)?;
        self.replay(fact, &stored.record.payload);
        Ok(())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.watch_peers(self.env.now());
        Vec::new()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let mut put = |name, value: f64| out.push(Measure { name, label: None, value });
        let led = self.shards.values().filter(|held| held.leader.term().is_some()).count();
        put("bizur_shards", self.shards.len() as f64);
        put("bizur_led_shards", led as f64);
        put("bizur_held_bytes", self.bytes as f64);
        put("bizur_pages_total", self.counted.get(PAGES).copied().unwrap_or(0) as f64);
        for (what, times) in self.counted.iter().filter(|(what, _)| **what != PAGES) {
            let label = Some(("kind", (*what).to_owned()));
            out.push(Measure { name: "bizur_rounds_total", label, value: *times as f64 });
        }
    }
}

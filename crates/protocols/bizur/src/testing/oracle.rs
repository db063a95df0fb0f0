//! Checks Bizur from outside the nodes: votes, rounds and acknowledgements as they are sent, and facts as they are synced. Of the protocol,
//! the oracle uses only the messages, the records, and the types in them.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | bizur-Z1 | a round is sent only in an election that a majority has voted for, by its candidate, in one life |
//! | bizur-Z2 | no replica acknowledges an election after it has shown a vote for a later one |
//! | bizur-Z3 | each version of a bucket has one content, in all writes |
//! | bizur-Z4 | the versions of a bucket that a replica syncs or shows do not fall |
//! | bizur-Z5 | a recovery writes the content of the latest committed version, or of a later one |
//! | bizur-Z6 | counters rise; a bucket is written only once its recovery in the same election is acknowledged, one write at a time |
//! | bizur-Z7 | an answer follows an acknowledged round that was sent after the request; it shows only committed versions |
//! | bizur-Z8 | a write that was sent to replicas is not answered as not done |
//! | bizur-Z9 | a replica that has shown its seal acknowledges nothing; what the next instance begins with is the latest committed content of the one before, or a later one, and nothing later is committed there afterwards |
//! | bizur-Z10 | no life uses the identity of another one, and no disk that of another one |

use std::collections::{BTreeMap, BTreeSet};

use atoll_contract::OpId;
use atoll_contract::keyspace::{Durability, KeyspaceId, Replica};
use atoll_contract::testing::{OnWire, Oracle, Violations, Who, digest};
use atoll_core::{Decode, Encode, Exchange, Frame, Lsn, Message, NodeId, Record, RoleKind};
use bytes::Bytes;

use crate::message::{self as msg, ShardConfig, ShardKey};
use crate::roles::REPLICA;
use crate::{Bucket, ElectId, Ver};

/// One bucket of one shard.
type Place = (ShardKey, u32);
/// A request of a client: its node and life, the node that it asks, and the number.
type AskedKey = (NodeId, u64, NodeId, u64);
/// A round: its shard and election, and its number.
type RoundKey = (ShardKey, ElectId, u64);

#[derive(Debug, Default)]
struct RoundSeen {
    /// The number of the event with which it was first sent.
    started: u64,
    acks: BTreeSet<u128>,
    acknowledged: bool,
    refused: bool,
    /// Bucket and counter of what it writes.
    writes: Vec<(u32, u64)>,
}

#[derive(Debug, Default)]
struct BucketSeen {
    /// The digest of the content of each version.
    contents: BTreeMap<Ver, u64>,
    committed: Option<Ver>,
    /// The elections in which its recovery is acknowledged.
    recovered: BTreeSet<ElectId>,
    /// The last round that wrote it in each election, with the counter.
    last: BTreeMap<ElectId, (u64, u64)>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct BizurOracle {
    clock: u64,
    configs: BTreeMap<ShardKey, ShardConfig>,
    /// The lives that use identities of processes, and the disks of nodes.
    users: BTreeMap<u128, (NodeId, u64)>,
    votes: BTreeMap<(ShardKey, ElectId), BTreeSet<u128>>,
    /// The life in which each election was used.
    terms: BTreeMap<(ShardKey, ElectId), u64>,
    /// The highest vote that each replica has shown, to itself and to others: what it sends to both in one turn is seen in any order.
    shown: BTreeMap<(ShardKey, u128, bool), ElectId>,
    /// The highest vote that each replica has synced.
    synced: BTreeMap<(ShardKey, u128), ElectId>,
    rounds: BTreeMap<RoundKey, RoundSeen>,
    buckets: BTreeMap<Place, BucketSeen>,
    /// The versions of buckets that replicas have synced or shown.
    held: BTreeMap<(u128, ShardKey, u32), Ver>,
    /// The keys of each version that is under way, and those that are committed.
    pending: BTreeMap<(ShardKey, u32, Ver), Vec<(Bytes, u64)>>,
    committed: BTreeSet<(ShardKey, Bytes, u64)>,
    /// When the latest acknowledged round of a node was sent.
    proven: BTreeMap<(ShardKey, NodeId), u64>,
    /// When each request was sent, and what it wants.
    asked: BTreeMap<AskedKey, (u64, ShardKey, msg::Question)>,
    /// How often each node was asked for a write.
    asks: BTreeMap<(NodeId, OpId), u32>,
    /// The leader that first sent each write to replicas, of whichever instance of the shard.
    introduced: BTreeMap<(KeyspaceId, u32, OpId), NodeId>,
    /// The replicas that have shown that they are sealed, to themselves and to others, as in `shown`.
    sealed: BTreeSet<(ShardKey, u128, bool)>,
    /// The instance from which each instance copies.
    formers: BTreeMap<ShardKey, ShardKey>,
    /// The latest version of a bucket of an instance that may be what the next instance has committed.
    copied: BTreeMap<Place, Ver>,
    /// With which version of the instance before each election begins a bucket.
    begun: BTreeMap<(Place, ElectId), (Place, Ver)>,
    /// Requests to seal a replica, as [`AskedKey`]s: its shard and identity.
    sealing: BTreeMap<AskedKey, (ShardKey, u128)>,
}

impl Oracle for BizurOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        self.clock += 1;
        let (frame, from) = (wire.frame(), &wire.from);
        match wire.envelope.exchange {
            Exchange::Request(number) => self.request(wire, number),
            Exchange::Reply(number) => {
                self.reply(wire, number, verdict);
                self.seal_reply(wire, number);
            }
            Exchange::Post => match frame.kind {
                msg::Vote::KIND => self.vote(from, frame, verdict),
                msg::ReplicaWrites::KIND => self.writes_of(from, frame, verdict),
                msg::WriteReplies::KIND => self.write_replies(from, frame, verdict),
                msg::ReplicaRead::KIND => self.read(from, frame, verdict),
                msg::ReadReply::KIND => self.read_reply(from, frame, verdict),
                msg::Fetch::KIND => self.fetch(from, frame, verdict),
                msg::Fetched::KIND => self.fetched(from, wire.to, frame, verdict),
                _ => {}
            },
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == REPLICA) {
            match msg::Fact::from_bytes(record.head.clone()) {
                Ok(fact) => self.fact(who, fact, verdict),
                Err(e) => verdict.fail(format!("HARNESS: a record of a replica does not decode: {e}")),
            }
        }
    }

    fn found(&mut self, _who: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        if role == REPLICA
            && !state.is_empty()
            && let Err(e) = crate::facts_of(state.clone())
        {
            verdict.fail(format!("HARNESS: a checkpoint of a node does not decode: {e}"));
        }
    }
}

impl BizurOracle {
    fn fact(&mut self, who: &Who, fact: msg::Fact, verdict: &mut Violations) {
        match fact {
            msg::Fact::Shard { config } | msg::Fact::Opened { config, .. } => {
                let mine = Replica { node: who.node, identity: who.storage.0 };
                if config.position(mine).is_none() {
                    verdict.fail(format!("bizur-Z10 foreign disk: node {} keeps {:?}", who.node, config.key));
                }
                self.configs.entry(config.key).or_insert(config);
            }
            msg::Fact::Voted { shard, elect } => self.syncs(who, shard, elect, verdict),
            msg::Fact::Bucket { shard, index, ver, voted, .. } => {
                self.syncs(who, shard, voted, verdict);
                self.holds(who.storage.0, shard, index, ver, verdict);
            }
            _ => {}
        }
    }

    /// bizur-Z2: a replica syncs a vote.
    fn syncs(&mut self, who: &Who, shard: ShardKey, elect: ElectId, verdict: &mut Violations) {
        let synced = self.synced.entry((shard, who.storage.0)).or_default();
        if elect < *synced {
            verdict.fail(format!("bizur-Z2 vote back: a replica votes for {elect} after {synced}"));
        }
        *synced = (*synced).max(elect);
    }

    /// bizur-Z4: a replica holds this version of a bucket.
    fn holds(&mut self, replica: u128, shard: ShardKey, index: u32, ver: Ver, verdict: &mut Violations) {
        let held = self.held.entry((replica, shard, index)).or_default();
        if ver < *held {
            verdict.fail(format!("bizur-Z4 older bucket: bucket {index} went from {held} back to {ver}"));
        }
        *held = ver;
    }

    /// bizur-Z10: the sender of a message may use this identity. Returns the configuration of the shard.
    fn sender(&mut self, who: &Who, to: &msg::Address, verdict: &mut Violations) -> Option<&ShardConfig> {
        let config = self.configs.get(&to.shard)?;
        let is_own = match config.durability {
            Durability::Disk => to.from == who.storage.0,
            Durability::Memory => {
                *self.users.entry(to.from).or_insert((who.node, who.life)) == (who.node, who.life)
            }
        };
        if !is_own {
            verdict
                .fail(format!("bizur-Z10 identity: life {} of node {} uses another's", who.life, who.node));
        }
        if config.position(Replica { node: who.node, identity: to.from }).is_none() {
            verdict.fail(format!("bizur-Z10 stranger: node {} is no replica of {:?}", who.node, to.shard));
        }
        self.configs.get(&to.shard)
    }

    /// bizur-Z2: a replica shows that it has voted for this election, or for nothing later.
    fn shows(&mut self, to: &msg::Address, elect: ElectId, verdict: &mut Violations) {
        let shown = self.shown.entry((to.shard, to.from, to.from == to.to)).or_default();
        if elect < *shown {
            verdict.fail(format!(
                "bizur-Z2 vote back: a replica acknowledges {elect} after it voted for {shown}"
            ));
        }
        *shown = (*shown).max(elect);
    }

    fn vote(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::Vote::from_frame(frame.clone()) else { return };
        self.sender(who, &m.to, verdict);
        self.shows(&m.to, m.voted, verdict);
        if m.voted == m.elect {
            self.votes.entry((m.to.shard, m.elect)).or_default().insert(m.to.from);
        }
    }

    /// bizur-Z1: a round is sent in an election. Returns whether it is sent for the first time.
    fn round(
        &mut self,
        who: &Who,
        to: &msg::Address,
        elect: ElectId,
        number: u64,
        verdict: &mut Violations,
    ) -> bool {
        let Some(majority) = self.sender(who, to, verdict).map(ShardConfig::majority) else { return false };
        if elect.server != (Replica { node: who.node, identity: to.from }) {
            verdict.fail(format!("bizur-Z1 candidate: node {} acts in {elect}", who.node));
        }
        let votes = self.votes.get(&(to.shard, elect)).map_or(0, BTreeSet::len);
        if votes < majority {
            verdict.fail(format!("bizur-Z1 not elected: {elect} has {votes} votes of at least {majority}"));
        }
        let life = *self.terms.entry((to.shard, elect)).or_insert(who.life);
        if life != who.life {
            verdict.fail(format!("bizur-Z1 two lives: {elect} was won in life {life}, not in {}", who.life));
        }
        let clock = self.clock;
        let mut first = false;
        self.rounds.entry((to.shard, elect, number)).or_insert_with(|| {
            first = true;
            RoundSeen { started: clock, ..RoundSeen::default() }
        });
        first
    }

    fn read(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::ReplicaRead::from_frame(frame.clone()) else { return };
        self.round(who, &m.to, m.elect, m.round, verdict);
    }

    fn writes_of(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::ReplicaWrites::from_frame(frame.clone()) else { return };
        let mut buckets = m.buckets;
        for write in &m.writes {
            let bytes = write.items.iter().map(|item| item.bytes as usize).sum();
            self.write(who, write, &buckets.split_to(bytes), verdict);
        }
    }

    fn write(&mut self, who: &Who, m: &msg::ShardWrite, buckets: &Bytes, verdict: &mut Violations) {
        let shard = m.to.shard;
        if !self.round(who, &m.to, m.elect, m.round, verdict) {
            return;
        }
        let mut at = 0;
        for item in &m.items {
            let bytes = buckets.slice(at..at + item.bytes as usize);
            at += item.bytes as usize;
            let ver = Ver { elect: m.elect, ctr: item.ctr };
            let content = digest(&bytes);
            if item.ctr == 1 {
                self.recovers((shard, item.index), m.elect, content, verdict);
            } else {
                self.writes((shard, item.index), m.elect, item.ctr, verdict);
            }
            let seen = self.buckets.entry((shard, item.index)).or_default();
            seen.last.insert(m.elect, (m.round, item.ctr));
            if *seen.contents.entry(ver).or_insert(content) != content {
                verdict.fail(format!("bizur-Z3 two contents: bucket {} at {ver}", item.index));
            }
            match Bucket::from_bytes(bytes) {
                Ok(bucket) => {
                    for op in bucket.remembered() {
                        self.introduced.entry((shard.keyspace, shard.shard, op)).or_insert(who.node);
                    }
                    let keys = bucket.keys().map(|(key, version)| (key.clone(), version)).collect();
                    self.pending.insert((shard, item.index, ver), keys);
                }
                Err(e) => verdict.fail(format!("bizur-Z3 unreadable: bucket {} at {ver}: {e}", item.index)),
            }
        }
        if let Some(round) = self.rounds.get_mut(&(shard, m.elect, m.round)) {
            round.writes = m.items.iter().map(|item| (item.index, item.ctr)).collect();
        }
    }

    /// bizur-Z5: a recovery in an election has the content of the latest committed version, or of a later one.
    fn recovers(&mut self, place: Place, elect: ElectId, content: u64, verdict: &mut Violations) {
        if self.buckets.get(&place).is_some_and(|seen| seen.last.contains_key(&elect)) {
            verdict.fail(format!("bizur-Z6 counter: bucket {} is recovered twice in {elect}", place.1));
        }
        self.begins(place, elect, content, verdict);
        let seen = self.buckets.entry(place).or_default();
        // A leader that was replaced may still try; its write gets no majority.
        let Some(committed) = seen.committed.filter(|committed| committed.elect < elect) else { return };
        let known = seen.contents.range(committed..Ver { elect, ctr: 0 });
        if !known.into_iter().any(|(_, other)| *other == content) {
            verdict.fail(format!(
                "bizur-Z5 lost: bucket {} is recovered in {elect} without {committed}, which a majority has",
                place.1
            ));
        }
    }

    /// bizur-Z9: a leader writes a bucket of which no version is committed in this instance. If there is an instance before, the content is
    /// that of the latest committed version there, or of a later one.
    fn begins(&mut self, place: Place, elect: ElectId, content: u64, verdict: &mut Violations) {
        if self.buckets.get(&place).is_some_and(|seen| seen.committed.is_some()) {
            return;
        }
        let Some(before) = self.formers.get(&place.0).map(|former| (*former, place.1)) else { return };
        let there = self.buckets.entry(before).or_default();
        let committed = there.committed.unwrap_or_default();
        let same = there.contents.range(committed..).rfind(|(_, other)| **other == content);
        let version = match same {
            Some((version, _)) => *version,
            // Nobody has written it, so it begins empty.
            None if there.committed.is_none() && content == digest(&Bucket::default().to_bytes()) => {
                Ver::default()
            }
            None => {
                return verdict.fail(format!(
                    "bizur-Z9 lost: bucket {} begins in {elect} without {committed}, which a majority of the former instance has",
                    place.1
                ));
            }
        };
        // What is written here may be committed, so a later version must never be committed there.
        self.begun.insert((place, elect), (before, version));
    }

    /// bizur-Z9: the first committed version of a bucket decides what the instance has copied.
    fn decides(&mut self, place: Place, elect: ElectId, verdict: &mut Violations) {
        let Some((before, version)) = self.begun.get(&(place, elect)).copied() else { return };
        self.copied.entry(before).or_insert(version);
        let there = self.buckets.get(&before).and_then(|seen| seen.committed).unwrap_or_default();
        if there > version {
            verdict.fail(format!(
                "bizur-Z9 lost: bucket {} was copied at {version}, and {there} was committed before the copy",
                place.1
            ));
        }
    }

    fn shows_seal(&mut self, to: &msg::Address) {
        self.sealed.insert((to.shard, to.from, to.from == to.to));
    }

    fn seal_reply(&mut self, wire: OnWire<'_>, number: u64) {
        let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
        let Some((shard, identity)) = self.sealing.remove(&key) else { return };
        if msg::Sealed::from_frame(wire.frame().clone()).is_ok_and(|reply| reply.done) {
            self.sealed.insert((shard, identity, wire.to == wire.from.node));
        }
    }

    fn fetch(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::Fetch::from_frame(frame.clone()) else { return };
        let is_leader =
            m.elect.server.node == who.node && self.terms.get(&(m.shard, m.elect)) == Some(&who.life);
        if !is_leader {
            verdict.fail(format!("bizur-Z1 candidate: node {} fetches in {}", who.node, m.elect));
        }
        self.formers.entry(m.shard).or_insert(m.former.key);
        self.configs.entry(m.former.key).or_insert(m.former);
    }

    fn fetched(&mut self, who: &Who, to: NodeId, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::Fetched::from_frame(frame.clone()) else { return };
        let config = self.configs.get(&m.former);
        if config.is_some_and(|c| c.position(Replica { node: who.node, identity: m.from }).is_none()) {
            verdict.fail(format!("bizur-Z10 stranger: node {} is no replica of {:?}", who.node, m.former));
        }
        self.sealed.insert((m.former, m.from, to == who.node));
    }

    /// bizur-Z6: a bucket is written in an election.
    fn writes(&mut self, place: Place, elect: ElectId, ctr: u64, verdict: &mut Violations) {
        let seen = self.buckets.entry(place).or_default();
        if !seen.recovered.contains(&elect) {
            verdict.fail(format!("bizur-Z6 not recovered: bucket {} is written in {elect}", place.1));
        }
        let Some((round, last)) = seen.last.get(&elect).copied() else { return };
        if ctr <= last {
            verdict.fail(format!("bizur-Z6 counter: bucket {} is written with {ctr} after {last}", place.1));
        }
        let before = self.rounds.get(&(place.0, elect, round));
        if before.is_some_and(|before| !before.acknowledged && !before.refused) {
            verdict.fail(format!("bizur-Z6 two writes: bucket {} before {elect}/{last} is decided", place.1));
        }
    }

    fn write_replies(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::WriteReplies::from_frame(frame.clone()) else { return };
        m.replies.iter().for_each(|reply| self.write_reply(who, reply, verdict));
    }

    fn write_reply(&mut self, who: &Who, m: &msg::ShardWrote, verdict: &mut Violations) {
        self.sender(who, &m.to, verdict);
        match m.answer {
            msg::WriteAnswer::Ack {} => self.ack(&m.to, m.elect, m.round, verdict),
            msg::WriteAnswer::Nack { voted } => self.shows(&m.to, voted, verdict),
            msg::WriteAnswer::Full {} => {
                if let Some(round) = self.rounds.get_mut(&(m.to.shard, m.elect, m.round)) {
                    round.refused = true;
                }
            }
            msg::WriteAnswer::Sealed {} => self.shows_seal(&m.to),
        }
    }

    fn read_reply(&mut self, who: &Who, frame: &Frame, verdict: &mut Violations) {
        let Ok(m) = msg::ReadReply::from_frame(frame.clone()) else { return };
        self.sender(who, &m.to, verdict);
        match m.answer {
            msg::ReadAnswer::Nack { voted } => self.shows(&m.to, voted, verdict),
            msg::ReadAnswer::Sealed {} => self.shows_seal(&m.to),
            msg::ReadAnswer::Ack { items } => {
                if self.configs.get(&m.to.shard).is_some_and(|c| c.durability == Durability::Memory) {
                    for item in items {
                        self.holds(m.to.from, m.to.shard, item.index, item.ver, verdict);
                    }
                }
                self.ack(&m.to, m.elect, m.round, verdict);
            }
        }
    }

    /// A replica acknowledges a round.
    fn ack(&mut self, to: &msg::Address, elect: ElectId, number: u64, verdict: &mut Violations) {
        self.shows(to, elect, verdict);
        if self.sealed.contains(&(to.shard, to.from, to.from == to.to)) {
            verdict
                .fail(format!("bizur-Z9 unsealed: a sealed replica acknowledges round {number} of {elect}"));
        }
        let Some(majority) = self.configs.get(&to.shard).map(ShardConfig::majority) else { return };
        let Some(round) = self.rounds.get_mut(&(to.shard, elect, number)) else { return };
        round.acks.insert(to.from);
        if round.acknowledged || round.acks.len() < majority {
            return;
        }
        round.acknowledged = true;
        let (started, writes) = (round.started, std::mem::take(&mut round.writes));
        let proven = self.proven.entry((to.shard, elect.server.node)).or_default();
        *proven = (*proven).max(started);
        for (index, ctr) in writes {
            let ver = Ver { elect, ctr };
            let seen = self.buckets.entry((to.shard, index)).or_default();
            let is_first = seen.committed.is_none();
            seen.committed = seen.committed.max(Some(ver));
            if ctr == 1 {
                seen.recovered.insert(elect);
            }
            if is_first {
                self.decides((to.shard, index), elect, verdict);
            }
            if self.copied.get(&(to.shard, index)).is_some_and(|copied| *copied < ver) {
                verdict.fail(format!(
                    "bizur-Z9 late: {ver} of bucket {index} is committed after an older version was copied"
                ));
            }
            for (key, version) in self.pending.remove(&(to.shard, index, ver)).unwrap_or_default() {
                self.committed.insert((to.shard, key, version));
            }
        }
    }

    fn request(&mut self, wire: OnWire<'_>, number: u64) {
        let frame = wire.frame();
        match frame.kind {
            msg::Create::KIND => {
                if let Ok(m) = msg::Create::from_frame(frame.clone()) {
                    for config in m.shards {
                        self.configs.entry(config.key).or_insert(config);
                    }
                }
            }
            msg::Open::KIND => {
                if let Ok(m) = msg::Open::from_frame(frame.clone()) {
                    for instance in m.shards {
                        if let Some(former) = &instance.former {
                            self.formers.entry(instance.config.key).or_insert(former.key);
                        }
                        self.configs.entry(instance.config.key).or_insert(instance.config);
                    }
                }
            }
            msg::Seal::KIND => {
                if let Ok(m) = msg::Seal::from_frame(frame.clone())
                    && let Some(replica) = m.config.replicas.iter().find(|r| r.node == wire.to)
                {
                    let key = (wire.from.node, wire.from.life, wire.to, number);
                    self.sealing.insert(key, (m.config.key, replica.identity));
                }
            }
            msg::Ask::KIND => {
                if let Ok(m) = msg::Ask::from_frame(frame.clone()) {
                    if let msg::Question::Write { op, .. } = &m.question {
                        *self.asks.entry((wire.to, *op)).or_default() += 1;
                    }
                    let key = (wire.from.node, wire.from.life, wire.to, number);
                    self.asked.insert(key, (self.clock, m.shard, m.question));
                }
            }
            _ => {}
        }
    }

    /// bizur-Z8: a leader says that it has not done a write. If it was asked for it only once, it must not have sent it to replicas.
    fn denies(&self, node: NodeId, shard: ShardKey, question: &msg::Question, verdict: &mut Violations) {
        if let msg::Question::Write { op, .. } = question
            && self.asks.get(&(node, *op)) == Some(&1)
            && self.introduced.get(&(shard.keyspace, shard.shard, *op)) == Some(&node)
        {
            verdict
                .fail(format!("bizur-Z8 denied: node {node} has sent {op:?}, and says that it did nothing"));
        }
    }

    /// bizur-Z7: a leader answers a client.
    fn reply(&mut self, wire: OnWire<'_>, number: u64, verdict: &mut Violations) {
        let node = wire.from.node;
        let key = (wire.to, wire.to_life.unwrap_or(0), node, number);
        let Some((asked, shard, question)) = self.asked.remove(&key) else { return };
        let Ok(m) = msg::AskReply::from_frame(wire.frame().clone()) else { return };
        let held = match &m.answer {
            msg::Answer::Held { held } => held.as_ref(),
            // A refused condition may show what an earlier write of the same batch made and a later one replaced.
            msg::Answer::Done { .. }
            | msg::Answer::Not { .. }
            | msg::Answer::ConditionFailed {}
            | msg::Answer::Page { .. } => None,
            msg::Answer::NotLeader { .. } => return self.denies(node, shard, &question, verdict),
            _ => return,
        };
        if self.proven.get(&(shard, node)).is_none_or(|proven| *proven <= asked) {
            verdict.fail(format!(
                "bizur-Z7 not confirmed: node {node} answers {question:?} with {:?}",
                m.answer
            ));
        }
        let key = match question {
            msg::Question::Get { key }
            | msg::Question::Write { key, .. }
            | msg::Question::Wait { key, .. } => key,
            msg::Question::List { .. } => return,
        };
        if let Some((version, _)) = held
            && !self.committed.contains(&(shard, key.clone(), *version))
        {
            verdict.fail(format!("bizur-Z7 not committed: node {node} shows version {version} of {key:?}"));
        }
    }
}

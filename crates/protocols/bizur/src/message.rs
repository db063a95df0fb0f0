//! Messages between clients, leaders and replicas (kinds 1200–1299), and the facts of replicas in the journal.
//!
//! Leaders and replicas exchange one-way messages. Each names both sides with their identities, the election and the number of the round,
//! so an answer counts for exactly one request, and only from a replica of the shard (bizur-B12).
#![allow(missing_docs)] // The documentation of a variant covers its fields, too.

use atoll_contract::OpId;
use atoll_contract::keyspace::{Change, Durability, Guard, KeyVersion, KeyspaceId, Replica};
use atoll_core::{Decode, DecodeError, Encode, Format, NodeId, Reader};
use bytes::{Bytes, BytesMut};

use crate::bucket::Bucket;
use crate::elect::{ElectId, Ver};
use crate::roles::REPLICA;

/// The name of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardKey {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The epoch of its layout.
    pub epoch: u64,
    /// The number of the shard.
    pub shard: u32,
}

impl Encode for ShardKey {
    fn encode(&self, out: &mut BytesMut) {
        self.keyspace.encode(out);
        self.epoch.encode(out);
        self.shard.encode(out);
    }
}

impl Decode for ShardKey {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(ShardKey {
            keyspace: KeyspaceId::decode(from)?,
            epoch: u64::decode(from)?,
            shard: u32::decode(from)?,
        })
    }
}

atoll_core::record! {
    /// A shard, as each of its replicas knows it. It never changes.
    pub struct ShardConfig {
        /// Its name.
        pub key: ShardKey,
        /// What survives what.
        pub durability: Durability,
        /// How many shards the keyspace has.
        pub shards: u32,
        /// How many buckets the shard has.
        pub buckets: u32,
        /// Its replicas. The first one is its leader unless something happens to it.
        pub replicas: Vec<Replica>,
    }
}

impl ShardConfig {
    /// Returns how many replicas are a majority.
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// Returns the nodes of the replicas, in their order.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.replicas.iter().map(|replica| replica.node).collect()
    }

    /// Returns the position of a replica among the replicas.
    pub fn position(&self, replica: Replica) -> Option<usize> {
        self.replicas.iter().position(|r| *r == replica)
    }
}

atoll_core::record! {
    /// An instance of a shard, with the one from which it takes over the buckets (§6). What it has not written itself is still there.
    pub struct Instance {
        /// The instance.
        pub config: ShardConfig,
        /// The one before it. None if that was never there, or once all buckets were copied.
        pub former: Option<ShardConfig>,
    }
}

atoll_core::record! {
    /// The two replicas of a shard between which a message travels, under their identities.
    pub struct Address {
        /// The shard.
        pub shard: ShardKey,
        /// The identity of the sender.
        pub from: u128,
        /// The identity of the receiver.
        pub to: u128,
    }
}

atoll_core::choice! {
    /// The condition of a write.
    pub enum WireGuard {
        0 = Always {},
        1 = Absent {},
        2 = Present {},
        3 = Version { version: u64 },
        4 = Value { value: Bytes },
    }
}

impl From<Guard> for WireGuard {
    fn from(guard: Guard) -> Self {
        match guard {
            Guard::Always => WireGuard::Always {},
            Guard::Absent => WireGuard::Absent {},
            Guard::Present => WireGuard::Present {},
            Guard::Version(version) => WireGuard::Version { version: version.0 },
            Guard::Value(value) => WireGuard::Value { value },
        }
    }
}

impl From<WireGuard> for Guard {
    fn from(guard: WireGuard) -> Self {
        match guard {
            WireGuard::Always {} => Guard::Always,
            WireGuard::Absent {} => Guard::Absent,
            WireGuard::Present {} => Guard::Present,
            WireGuard::Version { version } => Guard::Version(KeyVersion(version)),
            WireGuard::Value { value } => Guard::Value(value),
        }
    }
}

/// Returns a change as it travels: the new value, or None for a deletion.
pub(crate) fn wire_change(change: Change) -> Option<Bytes> {
    match change {
        Change::Put(value) => Some(value),
        Change::Delete => None,
    }
}

atoll_core::choice! {
    /// What a client asks the leader of a shard for.
    pub enum Question {
        /// The value of a key.
        0 = Get { key: Bytes },
        /// A change of a key: a new value, or None to delete it. `floor` and `repeat` as in [`crate::bucket::BucketWrite`].
        1 = Write { op: OpId, floor: u64, repeat: bool, key: Bytes, guard: WireGuard, value: Option<Bytes> },
        /// Keys with a prefix, after one, in order, at most this many.
        2 = List { prefix: Bytes, after: Option<Bytes>, limit: u32 },
        /// The value of a key once its version is not `seen`, which is 0 if the key was not there. The leader waits for so many
        /// milliseconds at most.
        3 = Wait { key: Bytes, seen: u64, for_ms: u32 },
    }
}

atoll_core::message! {
    /// A request of a client.
    pub struct Ask = 1200 {
        /// The shard.
        pub shard: ShardKey,
        /// Whether the leader that the receiver believes in did not answer the client, so that the receiver should lead.
        pub insist: bool,
        /// The request.
        pub question: Question,
    }
}

atoll_core::choice! {
    /// The answer to a client.
    pub enum Answer {
        /// Version and value of the key, if it is there.
        0 = Held { held: Option<(u64, Bytes)> },
        /// The write is done and made this version, which is also the clock of the bucket.
        1 = Done { version: u64 },
        /// The condition does not hold for this state of the key. Contains the clock of the bucket.
        2 = Not { held: Option<(u64, Bytes)>, clock: u64 },
        /// The condition did not hold at an earlier attempt.
        3 = ConditionFailed {},
        /// Keys with their versions, and whether there are more.
        4 = Page { keys: Vec<(Bytes, u64)>, more: bool },
        /// An earlier attempt may have been forgotten; nothing was done. Contains the clock of the bucket.
        5 = Stale { clock: u64 },
        /// The bucket has no room; nothing was done.
        6 = BucketFull {},
        /// A majority of the replicas has no room; nothing was done.
        7 = ReplicasFull {},
        /// The receiver does not lead the shard; nothing was done. It believes that this node does.
        8 = NotLeader { leader: Option<u32> },
        /// The write lost its majority: it may have happened (bizur-B10).
        9 = Unknown {},
        /// The receiver does not know the shard; nothing was done.
        10 = Absent {},
        /// The keyspace was deleted, or replaced by a later epoch; nothing was done.
        11 = Dropped {},
        /// The journal of the receiver is closed; nothing was done.
        12 = StorageFailed {},
        /// The disk of the receiver is full; nothing was done.
        13 = DiskFull {},
        /// Too many requests are under way; nothing was done.
        14 = Busy {},
        /// The request breaks a limit, or the key belongs to another shard; nothing was done.
        15 = Invalid {},
        /// The version of the key was still the one that was seen when the time was over, or there is no room for another watch.
        16 = Unchanged {},
        /// The shard moves to another instance (§6): this one, if the receiver knows it by now. Nothing was done here.
        17 = Moved { to: Option<Instance> },
    }
}

atoll_core::message! {
    /// Answers [`Ask`].
    pub struct AskReply = 1201 {
        /// The answer.
        pub answer: Answer,
    }
}

atoll_core::message! {
    /// Tells a node of the shards of which it holds replicas. Idempotent.
    pub struct Create = 1202 {
        /// The shards.
        pub shards: Vec<ShardConfig>,
    }
}

atoll_core::message! {
    /// Answers [`Create`], [`Open`], and [`DropKeyspace`].
    pub struct Created = 1203 {
        /// How many of the shards are of replicas with another identity: they are gone.
        pub not_member: u32,
        /// How many of the shards were dropped.
        pub dropped: u32,
    }
}

atoll_core::message! {
    /// Drops all shards of a keyspace up to this epoch, and leaves a tombstone. Idempotent.
    pub struct DropKeyspace = 1204 {
        /// The keyspace.
        pub keyspace: KeyspaceId,
        /// The last epoch that is dropped.
        pub epoch: u64,
    }
}

atoll_core::message! {
    /// Algorithm 1: a candidate asks for a vote.
    pub struct PleaseVote = 1206 {
        /// The candidate and the voter.
        pub to: Address,
        /// The election.
        pub elect: ElectId,
    }
}

atoll_core::message! {
    /// Answers [`PleaseVote`].
    pub struct Vote = 1207 {
        /// The voter and the candidate.
        pub to: Address,
        /// The election in question (bizur-B8).
        pub elect: ElectId,
        /// The highest election that the replica has voted for. It is the one in question if the vote was given.
        pub voted: ElectId,
    }
}

atoll_core::record! {
    /// A bucket in a write. Its bytes are the next ones in the payload.
    pub struct WriteItem {
        /// The bucket.
        pub index: u32,
        /// The counter of its version.
        pub ctr: u64,
        /// How many bytes of the payload it takes.
        pub bytes: u32,
        /// How many bytes of these count against the capacity: those of the keys.
        pub content_bytes: u32,
    }
}

atoll_core::record! {
    /// Algorithm 2: a leader writes buckets of its shard.
    pub struct ShardWrite {
        /// The leader and the replica.
        pub to: Address,
        /// The election of the leader.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// Whether this repeats what may already be there: such a write passes a seal (§6) and the capacity.
        pub recovery: bool,
        /// The buckets.
        pub items: Vec<WriteItem>,
    }
}

atoll_core::message! {
    /// The writes of leaders on one node to replicas on another.
    pub struct ReplicaWrites = 1208 {
        /// The writes.
        pub writes: Vec<ShardWrite>,
    } + payload
    /// The bytes of their buckets, one after the other.
    buckets
}

atoll_core::choice! {
    /// The answer to a [`ShardWrite`].
    pub enum WriteAnswer {
        /// The buckets are stored, in these or in later versions.
        0 = Ack {},
        /// A vote was given for this later election.
        1 = Nack { voted: ElectId },
        /// The shard is sealed: it is being copied to its next instance (§6).
        2 = Sealed {},
        /// There is no room for a longer bucket.
        3 = Full {},
    }
}

atoll_core::record! {
    /// Answers [`ShardWrite`].
    pub struct ShardWrote {
        /// The replica and the leader.
        pub to: Address,
        /// The election of the leader.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// The answer.
        pub answer: WriteAnswer,
    }
}

atoll_core::message! {
    /// Answers [`ReplicaWrites`].
    pub struct WriteReplies = 1209 {
        /// The answers of the replicas that the receiver may write to.
        pub replies: Vec<ShardWrote>,
    }
}

atoll_core::message! {
    /// Algorithms 3 and 4: a leader reads buckets, or, without any, confirms that it still leads.
    pub struct ReplicaRead = 1210 {
        /// The leader and the replica.
        pub to: Address,
        /// The election of the leader.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// The buckets.
        pub indices: Vec<u32>,
    }
}

atoll_core::record! {
    /// A bucket in the answer to a read. Its bytes are the next ones in the payload.
    pub struct ReadItem {
        /// The bucket.
        pub index: u32,
        /// Its version.
        pub ver: Ver,
        /// How many bytes of the payload it takes.
        pub bytes: u32,
    }
}

atoll_core::choice! {
    /// The answer to a [`ReplicaRead`].
    pub enum ReadAnswer {
        /// The buckets that were ever written here, among those that were asked for.
        0 = Ack { items: Vec<ReadItem> },
        /// A vote was given for this later election.
        1 = Nack { voted: ElectId },
        /// The shard is sealed: nobody leads it any more (§6).
        2 = Sealed {},
    }
}

atoll_core::message! {
    /// Answers [`ReplicaRead`].
    pub struct ReadReply = 1211 {
        /// The replica and the leader.
        pub to: Address,
        /// The election of the leader.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// The answer.
        pub answer: ReadAnswer,
    } + payload
    /// The bytes of the buckets, one after the other.
    buckets
}

atoll_core::message! {
    /// Tells the nodes with which a node shares shards that it lives, and under which identities.
    pub struct Beat = 1212 {
        /// Its data directory.
        pub storage: u128,
        /// The incarnation of its process.
        pub life: u128,
        /// Whether its journal is closed, so that it cannot lead durable shards.
        pub failed: bool,
    }
}

atoll_core::message! {
    /// Tells a node of the instances of which it holds replicas, and which take over from others (§6). Idempotent. It is sent only once the
    /// register of the keyspace says that these instances serve.
    pub struct Open = 1213 {
        /// The instances.
        pub shards: Vec<Instance>,
    }
}

atoll_core::message! {
    /// Seals a shard (§6): from the answer on, the replica takes no write of it and confirms no leader. Idempotent.
    pub struct Seal = 1214 {
        /// The shard.
        pub config: ShardConfig,
        /// The instance that serves now, if the sender knows it.
        pub next: Option<Instance>,
    }
}

atoll_core::message! {
    /// Answers [`Seal`] and [`Retire`].
    pub struct Sealed = 1215 {
        /// Whether it is done. Otherwise the receiver is no replica of the shard, or not any more.
        pub done: bool,
    }
}

atoll_core::message! {
    /// The leader of an instance asks a replica of the one before it for buckets. The replica seals itself before it answers (§6).
    pub struct Fetch = 1216 {
        /// The instance before.
        pub former: ShardConfig,
        /// The identity of the receiver.
        pub to: u128,
        /// The instance of the sender.
        pub shard: ShardKey,
        /// The election of the sender.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// The buckets.
        pub indices: Vec<u32>,
    }
}

atoll_core::message! {
    /// Answers [`Fetch`].
    pub struct Fetched = 1217 {
        /// The instance of the leader.
        pub shard: ShardKey,
        /// The instance before, whose replica the sender is.
        pub former: ShardKey,
        /// The identity of the sender.
        pub from: u128,
        /// The election of the leader.
        pub elect: ElectId,
        /// The round.
        pub round: u64,
        /// The buckets that were ever written here, among those that were asked for.
        pub items: Vec<ReadItem>,
    } + payload
    /// Their bytes, one after the other.
    buckets
}

atoll_core::message! {
    /// Deletes a sealed replica, all of whose buckets the next instance has, and leaves a tombstone. Idempotent.
    pub struct Retire = 1218 {
        /// The shard.
        pub config: ShardConfig,
        /// The instance that serves now.
        pub next: Instance,
    }
}

atoll_core::rpc!(Ask => AskReply, REPLICA, Data);
atoll_core::rpc!(Create => Created, REPLICA, Control);
atoll_core::rpc!(DropKeyspace => Created, REPLICA, Control);
atoll_core::rpc!(Open => Created, REPLICA, Control);
atoll_core::rpc!(Seal => Sealed, REPLICA, Control);
atoll_core::rpc!(Retire => Sealed, REPLICA, Control);

atoll_core::choice! {
    /// A fact that a replica journals. Replaying one twice, or over a newer checkpoint, changes nothing.
    pub enum Fact {
        /// The node holds a replica of this shard.
        0 = Shard { config: ShardConfig },
        /// The highest election that the replica has voted for.
        1 = Voted { shard: ShardKey, elect: ElectId },
        /// The highest election in which the server ever stood.
        2 = Stood { shard: ShardKey, elect: ElectId },
        /// The shard is sealed (§6).
        3 = Sealed { shard: ShardKey },
        /// A bucket, and the vote that goes with it. The bucket is the payload of the record.
        4 = Bucket { shard: ShardKey, voted: ElectId, index: u32, ver: Ver, content_bytes: u32 },
        /// All shards of a keyspace up to this epoch were dropped.
        5 = Dropped { keyspace: KeyspaceId, epoch: u64 },
        /// The node holds a replica of this shard, which takes over the buckets of another instance (§6).
        6 = Opened { config: ShardConfig, former: ShardConfig },
        /// The instances of a shard up to this epoch were retired.
        7 = Retired { shard: ShardKey },
    }
}

/// Every message of the protocol, and what replicas store.
pub const FORMATS: &[Format] = &[
    Format::message::<Ask>(),
    Format::message::<AskReply>(),
    Format::message::<Create>(),
    Format::message::<Created>(),
    Format::message::<DropKeyspace>(),
    Format::message::<PleaseVote>(),
    Format::message::<Vote>(),
    Format::message::<ReplicaWrites>(),
    Format::message::<WriteReplies>(),
    Format::message::<ReplicaRead>(),
    Format::message::<ReadReply>(),
    Format::message::<Beat>(),
    Format::message::<Open>(),
    Format::message::<Seal>(),
    Format::message::<Sealed>(),
    Format::message::<Fetch>(),
    Format::message::<Fetched>(),
    Format::message::<Retire>(),
    Format::stored::<Fact>("Fact"),
    Format::stored::<Bucket>("Bucket").like(empty_bucket),
];

fn empty_bucket() -> Bytes {
    Bucket::default().to_bytes()
}

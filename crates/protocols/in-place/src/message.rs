//! Messages between proposers and acceptors (kinds 1300–1399), and what acceptors keep in cells.
//!
//! A request names the group of its key and the identity of the acceptor that it is for. An acceptor of another identity answers nothing
//! else (rmw-T9). Proposers send the requests for all their keys to one node in one message.

use atoll_contract::keyspace::{Durability, KeyspaceId, Replica};
use atoll_core::{Decode, DecodeError, Encode, Format, Reader};
use bytes::{Bytes, BytesMut};

use crate::ballot::{Ballot, ProposerId};
use crate::roles::ACCEPTOR;
use crate::state::KeyState;

/// The name of a group of acceptors, which holds the votes of all keys of one shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKey {
    /// The keyspace.
    pub keyspace: KeyspaceId,
    /// The epoch of its layout.
    pub epoch: u64,
    /// The number of the shard.
    pub shard: u32,
}

impl Encode for GroupKey {
    fn encode(&self, out: &mut BytesMut) {
        self.keyspace.encode(out);
        self.epoch.encode(out);
        self.shard.encode(out);
    }
}

impl Decode for GroupKey {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let keyspace = KeyspaceId::decode(from)?;
        Ok(GroupKey { keyspace, epoch: u64::decode(from)?, shard: u32::decode(from)? })
    }
}

atoll_core::record! {
    /// A group, as each of its acceptors knows it. It never changes.
    pub struct GroupConfig {
        /// Its name.
        pub key: GroupKey,
        /// What survives what.
        pub durability: Durability,
        /// How many shards the keyspace has.
        pub shards: u32,
        /// Its acceptors.
        pub replicas: Vec<Replica>,
    }
}

impl GroupConfig {
    /// Returns how many acceptors are a majority.
    pub fn majority(&self) -> usize {
        self.replicas.len() / 2 + 1
    }

    /// Returns whether this is one of its acceptors.
    pub fn has(&self, replica: Replica) -> bool {
        self.replicas.contains(&replica)
    }
}

atoll_core::choice! {
    /// How a proposer prepares.
    pub enum Mode {
        /// The acceptor chooses the next ballot.
        0 = Incremental {},
        /// This ballot.
        1 = Explicit { ballot: Ballot },
        /// No ballot: a read, which writes nothing.
        2 = ReadOnly {},
    }
}

atoll_core::choice! {
    /// What a proposer asks an acceptor for.
    pub enum Step {
        /// Phase 1, or a read. `request` numbers the prepares of a proposer, so that an acceptor recognises copies (rmw-T15).
        0 = Prep { pid: ProposerId, request: u64, mode: Mode },
        /// Phase 2. `through` says that the state is an older vote, unchanged (rmw-W4).
        1 = Write { ballot: Ballot, through: bool, state: Bytes },
        /// Every acceptor of the group has voted for a deletion in this ballot, so its tombstone may go (rmw-T11).
        2 = Forget { ballot: Ballot },
    }
}

atoll_core::record! {
    /// A request for one key.
    pub struct Request {
        /// The group of the key.
        pub group: GroupKey,
        /// The identity of the acceptor.
        pub identity: u128,
        /// The key.
        pub key: Bytes,
        /// What is asked for.
        pub step: Step,
    }
}

atoll_core::choice! {
    /// Why an acceptor has done nothing.
    pub enum Reject {
        /// It does not know the group: somebody must create it.
        0 = Unknown {},
        /// It has another identity.
        1 = WrongIdentity {},
        /// The keyspace was deleted, or replaced by a later epoch.
        2 = Dropped {},
        /// It has no room for another key, or for a longer state.
        3 = Full {},
        /// Its disk is full.
        4 = DiskFull {},
        /// Its storage has failed.
        5 = StorageFailed {},
        /// The request breaks a limit, or the key belongs to another group.
        6 = Invalid {},
        /// Its answer would not fit into one message with the answers before it: ask again.
        7 = Busy {},
        /// Another group has taken over the shard, or is about to.
        8 = Moved {},
    }
}

atoll_core::choice! {
    /// The answer to a [`Request`].
    pub enum Answer {
        /// To a prepare: the promised ballot, none for a read; the last vote, and its state. Empty bytes stand for a key without a vote.
        /// Its clock then begins above `clock`, and so does that of every key that was forgotten.
        0 = Promise { ballot: Option<Ballot>, voted: Ballot, clock: u64, state: Bytes },
        /// To a write: the vote is given, and the next ballot is promised to the same proposer.
        1 = Vote { next: Ballot },
        /// A higher ballot is promised.
        2 = Nack { promised: Ballot, voted: Ballot },
        /// To a forget: the tombstone goes, or is gone.
        3 = Forgotten {},
        /// Nothing was done.
        4 = Rejected { why: Reject },
    }
}

atoll_core::message! {
    /// Requests of a node's proposers to one acceptor.
    pub struct Ask = 1300 {
        /// The requests.
        pub items: Vec<Request>,
    }
}

atoll_core::message! {
    /// Answers [`Ask`].
    pub struct Answers = 1301 {
        /// The answers, in the order of the requests.
        pub items: Vec<Answer>,
    }
}

atoll_core::message! {
    /// Tells a node of the groups of which it is an acceptor. Idempotent.
    pub struct Create = 1302 {
        /// The groups.
        pub groups: Vec<GroupConfig>,
    }
}

atoll_core::message! {
    /// Answers [`Create`], and [`DropKeyspace`].
    pub struct Created = 1303 {
        /// How many of the groups name another identity of this node: that acceptor is gone.
        pub not_member: u32,
        /// How many of the groups were dropped.
        pub dropped: u32,
    }
}

atoll_core::message! {
    /// Drops all groups of a keyspace up to this epoch, and leaves a tombstone. Idempotent.
    pub struct DropKeyspace = 1304 {
        /// The keyspace.
        pub keyspace: KeyspaceId,
        /// The last epoch that is dropped.
        pub epoch: u64,
    }
}

atoll_core::message! {
    /// Asks for keys with a prefix, after one, in order, at most this many.
    pub struct List = 1305 {
        /// The group.
        pub group: GroupKey,
        /// The identity of the acceptor.
        pub identity: u128,
        /// Only keys with this prefix.
        pub prefix: Bytes,
        /// Only keys after this one.
        pub after: Option<Bytes>,
        /// The most keys.
        pub limit: u32,
    }
}

atoll_core::record! {
    /// A key that an acceptor has voted for.
    pub struct Listed {
        /// The key.
        pub key: Bytes,
        /// The last vote.
        pub voted: Ballot,
        /// The version of the key in the state of the vote. None if it is not there.
        pub version: Option<u64>,
        /// Whether a transaction has locked the key, so that its version may be out of date.
        pub locked: bool,
    }
}

atoll_core::message! {
    /// Answers [`List`].
    pub struct Keys = 1306 {
        /// The keys in order, also those that were deleted.
        pub keys: Vec<Listed>,
        /// Whether there are more.
        pub more: bool,
        /// Why there is no answer, if there is none.
        pub rejected: Option<Reject>,
    }
}

atoll_core::message! {
    /// Waits until the acceptor has voted for a key in a higher ballot, or for a while (§10).
    pub struct Watch = 1307 {
        /// The group.
        pub group: GroupKey,
        /// The identity of the acceptor.
        pub identity: u128,
        /// The key.
        pub key: Bytes,
        /// The ballot of the vote that the watcher knows of.
        pub seen: Ballot,
        /// For how long, in milliseconds.
        pub for_ms: u32,
    }
}

atoll_core::message! {
    /// Answers [`Watch`]. It says only that it is time to read the key.
    pub struct Watched = 1308 {
        /// Whether the vote is in a higher ballot. If not, the time is over, or the acceptor does not watch.
        pub changed: bool,
    }
}

atoll_core::message! {
    /// Seals a group for good, if its acceptor has not done so yet (§9a). Idempotent.
    pub struct Seal = 1309 {
        /// The group.
        pub config: GroupConfig,
    }
}

atoll_core::message! {
    /// Answers [`Seal`], [`Raise`] and [`Retire`].
    pub struct Sealed = 1310 {
        /// Why nothing was done, if nothing was.
        pub rejected: Option<Reject>,
    }
}

atoll_core::message! {
    /// Asks for the votes of a sealed group after a key, in order.
    pub struct Fetch = 1311 {
        /// The group.
        pub group: GroupKey,
        /// The identity of the acceptor.
        pub identity: u128,
        /// Only keys after this one.
        pub after: Option<Bytes>,
    }
}

atoll_core::record! {
    /// The last vote for a key.
    pub struct Vote {
        /// The key.
        pub key: Bytes,
        /// The ballot.
        pub voted: Ballot,
        /// The state.
        pub state: Bytes,
    }
}

atoll_core::message! {
    /// Answers [`Fetch`].
    pub struct Fetched = 1312 {
        /// Votes, in the order of their keys.
        pub votes: Vec<Vote>,
        /// Whether there are more.
        pub more: bool,
        /// The clock above which keys without a vote begin.
        pub clock: u64,
        /// Why there is no answer, if there is none.
        pub rejected: Option<Reject>,
    }
}

impl Fetched {
    /// Returns an answer without votes.
    pub(crate) fn empty(clock: u64, rejected: Option<Reject>) -> Self {
        Fetched { votes: Vec::new(), more: false, clock, rejected }
    }
}

atoll_core::message! {
    /// Keys of a group without a vote begin above this clock. Idempotent.
    pub struct Raise = 1313 {
        /// The group.
        pub config: GroupConfig,
        /// The clock.
        pub clock: u64,
    }
}

atoll_core::message! {
    /// Another group has taken over the shard: the keys of this one go, and its acceptor refuses whoever still asks. Idempotent.
    pub struct Retire = 1314 {
        /// The group.
        pub config: GroupConfig,
    }
}

atoll_core::rpc!(Ask => Answers, ACCEPTOR, Data);
atoll_core::rpc!(Watch => Watched, ACCEPTOR, Control);
atoll_core::rpc!(Create => Created, ACCEPTOR, Control);
atoll_core::rpc!(DropKeyspace => Created, ACCEPTOR, Control);
atoll_core::rpc!(List => Keys, ACCEPTOR, Data);
atoll_core::rpc!(Seal => Sealed, ACCEPTOR, Control);
atoll_core::rpc!(Fetch => Fetched, ACCEPTOR, Data);
atoll_core::rpc!(Raise => Sealed, ACCEPTOR, Control);
atoll_core::rpc!(Retire => Sealed, ACCEPTOR, Control);

atoll_core::choice! {
    /// How far an acceptor is with a group.
    pub enum Phase {
        /// It answers proposers.
        0 = Serves {},
        /// It answers none, and what it holds never changes.
        1 = Sealed {},
        /// It has handed over what it held.
        2 = Retired {},
    }
}

atoll_core::choice! {
    /// What a cell of an acceptor holds. Its key says of what: see `acceptor/cells.rs`.
    pub enum CellValue {
        /// The promise and the vote for a key. The three are one value, so a crash keeps all of them or none (§8).
        0 = Slot { promised: Ballot, voted: Ballot, state: Bytes },
        /// A group, how far it is, the ballot that it promises for every key without a slot, and the clock above which such keys begin
        /// (rmw-T11).
        1 = Group { config: GroupConfig, phase: Phase, floor: Ballot, clock: u64 },
        /// All groups of a keyspace up to this epoch were dropped.
        2 = Dropped { epoch: u64 },
    }
}

/// Every message of the protocol, and what acceptors store.
pub const FORMATS: &[Format] = &[
    Format::message::<Ask>(),
    Format::message::<Answers>(),
    Format::message::<Create>(),
    Format::message::<Created>(),
    Format::message::<DropKeyspace>(),
    Format::message::<List>(),
    Format::message::<Keys>(),
    Format::message::<Watch>(),
    Format::message::<Watched>(),
    Format::message::<Seal>(),
    Format::message::<Sealed>(),
    Format::message::<Fetch>(),
    Format::message::<Fetched>(),
    Format::message::<Raise>(),
    Format::message::<Retire>(),
    Format::stored::<CellValue>("CellValue"),
    Format::stored::<KeyState>("KeyState"),
];

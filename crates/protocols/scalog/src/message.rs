//! The messages of the protocol (scalog.md §3). Deletions and questions about status are those that all servers of Loglets answer
//! (`atoll_loglet_store::message`).
//!
//! `config` is the configuration, or empty: only a message that carries it may make a Loglet known to its receiver.

use bytes::{Bytes, BytesMut};

use atoll_contract::LogletId;
use atoll_core::{Decode, DecodeError, Encode, Format, Message, Reader, message, rpc};

use crate::config::{Aggregator, CONFIG_FORMAT, OrderingSpec, ScalogConfig, Server, ShardSpec};
use crate::order::{OrderEntry, SealedOrder};
use crate::roles::SERVER;

atoll_core::record! {
    /// The place of consecutive entries of an append.
    #[derive(Copy)]
    pub struct Placed {
        /// The global sequence number of the first one. None: they have none, and will never have one.
        pub first: Option<u64>,
        /// The number of entries.
        pub count: u32,
    }
}

atoll_core::choice! {
    /// What became of an append.
    pub enum Outcome {
        /// All entries are ordered, and on all servers of the shard.
        0 = Ordered {
            /// Their places, in the order of the batch.
            placed: Vec<Placed>
        },
        /// The shard has ended. Entries without a number are not in the log, and never will be: it is safe to append them elsewhere.
        1 = Finalized {
            /// The places of all entries, in the order of the batch.
            placed: Vec<Placed>,
            /// The first view without the shard.
            view: u64
        },
        /// The records of this client go to another server in this view; nothing happened.
        2 = Moved {
            /// The view.
            view: u64
        },
        /// The server has not applied this view yet; nothing happened.
        3 = Behind {},
        /// The log has ended. Some of the entries may be in it, and none will be added.
        4 = Sealed {},
        /// An earlier attempt may be in the log, too long ago to be remembered, or in another shard; nothing happened.
        5 = Forgotten {},
        /// Too much is under way; nothing happened.
        6 = Busy {},
        /// The Loglet is not known here: send the configuration with the request.
        7 = Unconfigured {},
        /// The Loglet was deleted permanently.
        8 = Gone {},
        /// The shard does not name this node with this data directory.
        9 = WrongIdentity {},
        /// The disk is full.
        10 = DiskFull {},
        /// The journal is closed permanently. The outcome of entries under way is unknown.
        11 = StorageFailed {},
        /// The batch is malformed or exceeds a limit.
        12 = Invalid {},
    }
}

message! {
    /// Appends a batch to the segment of the receiver.
    pub struct Append = 680 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The newest view that the sender knows.
        pub view: u64,
        /// The shard that the sender has chosen by a policy of its own. None: the shard follows from the client's number, and a retry is
        /// recognised.
        pub chosen: Option<u32>,
        /// None of the entries has a lower number already.
        pub not_below: u64,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// The answer to [`Append`], once the entries are ordered.
    pub struct Appended = 681 {
        /// What became of it.
        pub outcome: Outcome,
    }
}

message! {
    /// A primary sends consecutive records of its segment to a backup, in order, and only records that are on its own disk: no later life
    /// of it gives their places to others (scalog-S12).
    pub struct Replicate = 682 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The shard.
        pub shard: u32,
        /// The segment.
        pub segment: u32,
        /// The place of the first record in the segment.
        pub first: u64,
        /// The number of records. 0: the primary asks for the next one that the backup takes.
        pub count: u32,
        /// Counts how often the primary went back. An answer to an earlier round says nothing about this one.
        pub round: u64,
    }
    + payload
    /// The records.
    batch
}

atoll_core::choice! {
    /// What a backup has done with records.
    pub enum Receipt {
        /// They are on the way to its disk.
        0 = Taken {},
        /// They do not start at its next record (scalog-S10).
        1 = OutOfOrder {},
        /// It does not know the Loglet or the shard yet: send the configuration.
        2 = Unconfigured {},
        /// It cannot take them.
        3 = Refused {},
    }
}

message! {
    /// The answer to [`Replicate`]. It promises nothing about the disk.
    pub struct Replicated = 683 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The shard.
        pub shard: u32,
        /// The segment.
        pub segment: u32,
        /// What the backup has done.
        pub receipt: Receipt,
        /// The place of the next record that the backup takes.
        pub next: u64,
        /// The round of the request.
        pub round: u64,
    }
}

atoll_core::record! {
    /// What one server of a shard has synced.
    pub struct Report {
        /// The shard.
        pub shard: u32,
        /// The place of the server in the shard.
        pub replica: u32,
        /// The number of synced records of each segment, without gaps (scalog-S1).
        pub counts: Vec<u64>,
    }
}

message! {
    /// What servers have synced: from a server, or merged by an aggregator. Cumulative, and may be repeated. Aggregators forward what each
    /// server reported, never a minimum, because they may know some servers of a shard only (scalog-S6).
    pub struct Reports = 684 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The aggregator that it is for, in the list of the configuration, because a node may be several of them. None: an orderer.
        pub at: Option<u32>,
        /// What is new.
        pub reports: Vec<Report>,
    }
}

/// The follower of the ordering log gives a role of its node the next entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// The Loglet.
    pub loglet: LogletId,
    /// The number of entries before the first one.
    pub from: u64,
    /// Whether the ordering log is sealed. These entries may be of no effect for clients: nothing is acknowledged any more.
    pub ended: bool,
    /// The entries. An empty one is not ours, like a pad.
    pub entries: Vec<Bytes>,
}

impl Encode for Follow {
    fn encode(&self, out: &mut BytesMut) {
        self.loglet.encode(out);
        self.from.encode(out);
        self.ended.encode(out);
    }
}

impl Decode for Follow {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (loglet, first, ended) = (LogletId::decode(from)?, u64::decode(from)?, bool::decode(from)?);
        Ok(Follow { loglet, from: first, ended, entries: Vec::new() })
    }
}

impl Message for Follow {
    const KIND: u16 = 685;
    const NAME: &'static str = "Follow";

    fn take_payloads(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.entries)
    }

    fn put_payloads(&mut self, payloads: Vec<Bytes>) -> Result<(), DecodeError> {
        self.entries = payloads;
        Ok(())
    }
}

message! {
    /// The answer to [`Follow`].
    pub struct Followed = 686 {
        /// The number of entries that the role has applied. None: it needs no more.
        pub applied: Option<u64>,
    }
}

message! {
    /// Asks a server for the records of its shard in a range of global sequence numbers.
    pub struct Fetch = 687 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The shard.
        pub shard: u32,
        /// The first number.
        pub from: u64,
        /// The end of the range, exclusive.
        pub to: u64,
        /// The approximate limit of the answer in bytes. It has at least one record if there is one.
        pub max_bytes: u32,
        /// How long to wait until the server has applied the cut that covers the first number, in milliseconds.
        pub patience_ms: u32,
    }
}

atoll_core::choice! {
    /// What a server says about a range.
    pub enum Found {
        /// These are the records of its shard.
        0 = Records {},
        /// Numbers below this one were given up.
        1 = Trimmed {
            /// The first number that stays.
            to: u64
        },
        /// The server has not applied the cut that covers the first number. This does not mean that there is no record.
        2 = Behind {},
        /// The Loglet is not known here: send the configuration.
        3 = Unconfigured {},
        /// The Loglet was deleted permanently.
        4 = Gone {},
        /// The server is none of this shard.
        5 = NotInShard {},
        /// Too many reads wait for the disk.
        6 = Busy {},
        /// The stored copy cannot be read back.
        7 = Damaged {
            /// The file, the offset and the reason.
            reason: String
        },
    }
}

/// The answer to [`Fetch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The records, or why there are none.
    pub found: Found,
    /// The answer has all records of the shard from the first number up to this one.
    pub upto: u64,
    /// The number of the first record of each batch, and how many it has.
    pub runs: Vec<(u64, u32)>,
    /// The batches.
    pub batches: Vec<Bytes>,
}

impl Encode for Fetched {
    fn encode(&self, out: &mut BytesMut) {
        self.found.encode(out);
        self.upto.encode(out);
        self.runs.encode(out);
    }
}

impl Decode for Fetched {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (found, upto, runs) = (Found::decode(from)?, u64::decode(from)?, Vec::decode(from)?);
        Ok(Fetched { found, upto, runs, batches: Vec::new() })
    }
}

impl Message for Fetched {
    const KIND: u16 = 688;
    const NAME: &'static str = "Fetched";

    fn take_payloads(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.batches)
    }

    fn put_payloads(&mut self, payloads: Vec<Bytes>) -> Result<(), DecodeError> {
        if payloads.len() != self.runs.len() {
            let value = payloads.len() as u64;
            return Err(DecodeError::Invalid { what: "batches in Fetched", value, allowed: "one per run" });
        }
        self.batches = payloads;
        Ok(())
    }
}

atoll_core::choice! {
    /// What became of a proposal.
    pub enum Fate {
        /// It is in the ordering log.
        0 = Written {
            /// Its place.
            at: u64
        },
        /// It is not there, and never will be.
        1 = Lost {},
        /// It may be there, or may still get there.
        2 = Unknown {},
    }
}

message! {
    /// A proposal to the ordering log has come to an end. The orderer sends it to itself.
    pub struct Proposed = 689 {
        /// The Loglet.
        pub loglet: LogletId,
        /// What became of it.
        pub fate: Fate,
    }
}

message! {
    /// Asks a server how far it has applied these Loglets.
    pub struct Holding = 690 {
        /// The Loglets.
        pub loglets: Vec<LogletId>,
    }
}

message! {
    /// The answer to [`Holding`].
    pub struct Held = 691 {
        /// Each Loglet that the server has, and up to which number it has all records of its shards.
        pub loglets: Vec<(LogletId, u64)>,
    }
}

rpc!(Append => Appended, SERVER, Data);
rpc!(Fetch => Fetched, SERVER, Data);
rpc!(Holding => Held, SERVER, Control);
rpc!(Follow => Followed, Control);

/// The messages that only this protocol has, the configuration in the chain, and the entries of the ordering log.
pub const FORMATS: &[Format] = &[
    Format::message::<Append>(),
    Format::message::<Appended>(),
    Format::message::<Replicate>(),
    Format::message::<Replicated>(),
    Format::message::<Reports>(),
    Format::message::<Follow>(),
    Format::message::<Followed>(),
    Format::message::<Fetch>(),
    Format::message::<Fetched>(),
    Format::message::<Proposed>(),
    Format::message::<Holding>(),
    Format::message::<Held>(),
    Format::stored::<OrderEntry>("OrderEntry"),
    Format::stored::<SealedOrder>("SealedOrder"),
    Format::stored::<ScalogConfig>("ScalogConfig").like(|| {
        let server = |n: u32| Server { node: atoll_core::NodeId(n), storage: atoll_core::StorageId(7) };
        let shard =
            |shard: u32| ShardSpec { shard, servers: vec![server(2 * shard + 1), server(2 * shard + 2)] };
        let ordering = OrderingSpec { kind: "log".to_owned(), config: Bytes::from_static(b"config") };
        let orderers = vec![atoll_core::NodeId(1)];
        let aggregators = vec![Aggregator { node: atoll_core::NodeId(2), parent: None }];
        let (shards, added) = (vec![shard(0), shard(1)], vec![shard(2)]);
        let (format, interval_us, wanted) = (CONFIG_FORMAT, 100, (2, 2));
        ScalogConfig { format, shards, aggregators, orderers, interval_us, added, wanted, ordering }
            .to_bytes()
    }),
];

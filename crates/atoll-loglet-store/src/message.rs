//! Messages that any server of Loglets answers, whatever its protocol (native §3): status, seal, read, trim, delete.
//!
//! Every message names its Loglet. `config` is the encoded configuration, or empty: only a message that carries it may create a Loglet on
//! its receiver (native §1, native-T10). Every answer of a server contains the seal bit and the tails as of one moment.
//!
//! Each protocol has its own role that answers, so callers name the role.

use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use atoll_contract::{LogletId, Offset};
use atoll_core::level::since;
use atoll_core::{Decode, DecodeError, Encode, Env, Message, NodeId, Reader, message, rpc};

use crate::store::{LogletState, LogletStore, Protocol};

atoll_core::record! {
    /// The state of a server at one moment, durable facts only.
    pub struct ServerState {
        /// The seal bit.
        pub sealed: bool,
        /// The offset above every durable entry that came by Store or Repair.
        pub local_tail: Offset,
        /// Every offset below is globally committed, as far as the server knows.
        pub known_tail: Offset,
        /// Offsets below this were trimmed.
        pub trim: Offset,
    }
}

impl ServerState {
    /// The state of a server that knows nothing about the Loglet.
    pub const NOTHING: ServerState =
        ServerState { sealed: false, local_tail: Offset::ZERO, known_tail: Offset::ZERO, trim: Offset::ZERO };
}

atoll_core::choice! {
    /// What a server has done with a request.
    pub enum Verdict {
        /// The request is done, and durable if it had to be.
        0 = Done {},
        /// The Loglet is sealed, or about to be (native-T1).
        1 = Sealed {},
        /// The entries do not start at the next offset (native §4 Store 3, 4).
        2 = OutOfOrder {},
        /// A repair came before the seal: the server must be sealed first.
        3 = NotSealed {},
        /// A repair came while the seal is being synced: retry soon (native-T4).
        4 = Sealing {},
        /// The offset is below the trim point.
        5 = Trimmed {},
        /// This server does not have the entry; another may have it (native-T11).
        6 = NotHere {},
        /// The disk is full (native-T22).
        7 = DiskFull {},
        /// The journal is closed permanently (native-T22).
        8 = StorageFailed {},
        /// The Loglet is not known here: send its configuration with the request.
        9 = Unconfigured {},
        /// The Loglet was deleted permanently (native-T10).
        10 = Gone {},
        /// The configuration names another data directory than this node's (native-T8).
        11 = WrongIdentity {},
        /// The sender is not the configured life of the configured sequencer (native-T6).
        12 = WrongSequencer {},
        /// Too many requests are already waiting.
        13 = Busy {},
        /// The stored copy cannot be read back.
        14 = Damaged {
            /// The file, the offset and the reason.
            reason: String,
        },
    }
}

/// States that no entry with a name from this message is below this offset. It is the last field of its message. Older programs neither
/// write nor read it, so it is sent only from the level that introduced it; a message without it makes no claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotBelow(pub Option<Offset>);

impl NotBelow {
    /// Returns the claim if all members can read it at the current level, otherwise no claim.
    pub fn say(env: &Env, offset: Offset) -> Self {
        NotBelow(env.levels().allows(since::NOT_BELOW).then_some(offset))
    }

    /// Returns the bound. Without a claim it is 0, which is always true.
    pub fn offset(self) -> Offset {
        self.0.unwrap_or(Offset::ZERO)
    }
}

impl Encode for NotBelow {
    fn encode(&self, out: &mut BytesMut) {
        if let Some(offset) = self.0 {
            offset.encode(out);
        }
    }
}

impl Decode for NotBelow {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let is_there = from.left() > 0;
        Ok(NotBelow(if is_there { Some(Offset::decode(from)?) } else { None }))
    }
}

atoll_core::choice! {
    /// The outcome of an append.
    pub enum Ordered {
        /// The entries are globally committed: the first offset and the number of entries of each run.
        0 = Committed {
            /// In the order of the batch.
            runs: Vec<(Offset, u32)>
        },
        /// The Loglet is sealed; the entries may be in it.
        1 = Sealed {},
        /// An earlier attempt may have been appended, too long ago to be remembered.
        2 = Forgotten {},
        /// The receiver is not the configured life of the sequencer (native-T6); nothing happened.
        3 = WrongSequencer {},
        /// The window is full and holds nothing more until it has room, or an append before this one is missing; nothing happened.
        4 = Busy {},
        /// The Loglet is not known here, and the message has no configuration; nothing happened.
        5 = Unconfigured {},
        /// The batch is malformed or too large; nothing happened.
        6 = TooLarge {},
        /// Too many servers have a full disk; nothing happened.
        7 = DiskFull {},
        /// No majority answered in time; it may still happen.
        8 = NoQuorum {},
        /// Too many disks filled up while it was in flight; it may still happen.
        9 = NoSpace {},
        /// The journal is closed permanently (native-T22); nothing happened.
        10 = StorageFailed {},
    }
}

message! {
    /// The orderer's answer to an append.
    pub struct Appended = 101 {
        /// The outcome.
        pub outcome: Ordered,
        /// The sequencer's known tail.
        pub known_tail: Offset,
    }
}

message! {
    /// Seals the Loglet: the server accepts no more Stores, completes those already accepted, and makes the seal bit durable.
    pub struct Seal = 122 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
    }
}

message! {
    /// Requests the server's state.
    pub struct Info = 123 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
    }
}

message! {
    /// Requests an answer once the tail has reached `target`, the Loglet is sealed, or the time is up.
    pub struct Wait = 124 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The tail to wait for.
        pub target: Offset,
        /// Whether only the known tail counts, not the local one.
        pub known_only: bool,
        /// How long to wait at most, in milliseconds.
        pub patience_ms: u32,
    }
}

message! {
    /// The answer of a server to every request except reads.
    pub struct Answer = 125 {
        /// What the server has done.
        pub verdict: Verdict,
        /// The server's state.
        pub state: ServerState,
    }
}

message! {
    /// Stores these entries although the Loglet is sealed (native §4 "Repair").
    pub struct Repair = 126 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The offset of the first entry.
        pub first: Offset,
        /// The number of entries; a message with 0 only carries the known tail.
        pub count: u32,
        /// Everything below this is globally committed: rule K (b), for sealed servers only.
        pub known_tail: Offset,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// Requests entries, starting exactly at `from`.
    pub struct Read = 127 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The first offset.
        pub from: Offset,
        /// The end of the range, exclusive.
        pub to: Offset,
        /// The approximate limit of the answer in bytes. The answer has at least one run, whatever its size.
        pub max_bytes: u32,
    }
}

/// The answer to [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Done, or the reason why there are no entries.
    pub verdict: Verdict,
    /// The server's state.
    pub state: ServerState,
    /// The offset of the first entry.
    pub first: Offset,
    /// The number of entries in each batch.
    pub counts: Vec<u32>,
    /// The batches, with consecutive offsets.
    pub batches: Vec<Bytes>,
}

impl Encode for Entries {
    fn encode(&self, out: &mut BytesMut) {
        self.verdict.encode(out);
        self.state.encode(out);
        self.first.encode(out);
        self.counts.encode(out);
    }
}

impl Decode for Entries {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Entries {
            verdict: Verdict::decode(from)?,
            state: ServerState::decode(from)?,
            first: Offset::decode(from)?,
            counts: Vec::decode(from)?,
            batches: Vec::new(),
        })
    }
}

impl Message for Entries {
    const KIND: u16 = 128;
    const NAME: &'static str = "Entries";

    fn take_payloads(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.batches)
    }

    fn put_payloads(&mut self, payloads: Vec<Bytes>) -> Result<(), DecodeError> {
        if payloads.len() != self.counts.len() {
            return Err(DecodeError::Invalid {
                what: "batches in Entries",
                value: payloads.len() as u64,
                allowed: "one per count",
            });
        }
        self.batches = payloads;
        Ok(())
    }
}

message! {
    /// Trims the Loglet to `to`.
    pub struct Trim = 129 {
        /// The Loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The first offset that stays.
        pub to: Offset,
    }
}

message! {
    /// Deletes the Loglet permanently (native-T10).
    pub struct Delete = 130 {
        /// The Loglet.
        pub loglet: LogletId,
    }
}

message! {
    /// Requests the state of all Loglets of this server, in pages by id.
    pub struct Status = 134 {
        /// Only Loglets above this one are listed.
        pub above: Option<LogletId>,
    }
}

atoll_core::record! {
    /// One Loglet on one server.
    pub struct LogletStatus {
        /// The Loglet.
        pub loglet: LogletId,
        /// The Loglet's state on the server.
        pub state: ServerState,
        /// How many offsets between the trim point and the known tail this server lacks.
        pub missing: u64,
        /// The number of runs in its index.
        pub runs: u64,
        /// The bytes of its entries.
        pub bytes: u64,
    }
}

message! {
    /// The answer to [`Status`].
    pub struct StatusPage = 135 {
        /// The Loglets, in the order of their ids.
        pub loglets: Vec<LogletStatus>,
        /// Whether more Loglets follow.
        pub more: bool,
        /// The node of the server.
        pub node: NodeId,
    }
}

message! {
    /// Requests the state of these Loglets on this server. The answer leaves out Loglets that the server does not have, and those beyond
    /// [`STATUS_PAGE`]. Sent to other nodes from level 2 on.
    pub struct StatusOf = 137 {
        /// The Loglets.
        pub loglets: Vec<LogletId>,
    }
}

/// The number of Loglets in one page of a status.
pub const STATUS_PAGE: usize = 1000;

/// Returns a page of the Loglets in a store, and whether there are more.
pub fn status_page<P: Protocol>(
    kept: &LogletStore<P>,
    above: Option<LogletId>,
    state: impl Fn(&LogletState<P>) -> ServerState,
) -> (Vec<LogletStatus>, bool) {
    let start = above.map_or(Bound::Unbounded, Bound::Excluded);
    let mut page: Vec<LogletStatus> = kept
        .loglets
        .range((start, Bound::Unbounded))
        .take(STATUS_PAGE + 1)
        .map(|(loglet, k)| status_of(*loglet, k, state(k)))
        .collect();
    let more = page.len() > STATUS_PAGE;
    page.truncate(STATUS_PAGE);
    (page, more)
}

/// Returns the status of one Loglet.
pub fn status_of<P>(loglet: LogletId, kept: &LogletState<P>, state: ServerState) -> LogletStatus {
    LogletStatus {
        loglet,
        state,
        missing: kept.runs.missing_count(kept.known_tail),
        runs: kept.runs.len() as u64,
        bytes: kept.runs.len_bytes(),
    }
}

rpc!(Seal => Answer, Control);
rpc!(Info => Answer, Control);
rpc!(Wait => Answer, Control);
rpc!(Repair => Answer, Data);
rpc!(Read => Entries, Data);
rpc!(Trim => Answer, Control);
rpc!(Delete => Answer, Control);
rpc!(Status => StatusPage, Control);
rpc!(StatusOf => StatusPage, Control);

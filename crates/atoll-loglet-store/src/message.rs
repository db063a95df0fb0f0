//! Messages that any server of loglets answers, whichever protocol it serves (native §3): status, seal, read, trim, delete.
//!
//! Every message names its loglet. `config` is the encoded configuration, or empty: only a message that carries it may
//! create a loglet on its receiver (native §1, native-T10). Every answer of a server carries (sealed, tails) as of one
//! moment.
//!
//! The role that answers is the protocol's: callers name it.

use std::ops::Bound;

use bytes::{Bytes, BytesMut};

use atoll_contract::{LogletId, Offset};
use atoll_core::level::since;
use atoll_core::{Decode, DecodeError, Encode, Env, Message, NodeId, Reader, message, rpc};

use crate::store::{LogletState, LogletStore, Protocol};

atoll_core::record! {
    /// A server's state at one moment, durable facts only.
    pub struct ServerState {
        /// The seal bit.
        pub sealed: bool,
        /// First offset above every durable entry that came by Store or Repair.
        pub local_tail: Offset,
        /// Every offset below is globally committed, as far as the server knows.
        pub known_tail: Offset,
        /// Offsets below this were given up.
        pub trim: Offset,
    }
}

impl ServerState {
    /// The state of a server that knows nothing of the loglet.
    pub const NOTHING: ServerState =
        ServerState { sealed: false, local_tail: Offset::ZERO, known_tail: Offset::ZERO, trim: Offset::ZERO };
}

atoll_core::choice! {
    /// What a server did with a request.
    pub enum Verdict {
        /// The request is done, and durable if it had to be.
        0 = Done {},
        /// Sealed, or about to be (native-T1).
        1 = Sealed {},
        /// Not the next offset (native §4 Store 3, 4).
        2 = OutOfOrder {},
        /// A repair before the seal: the server must be sealed first.
        3 = NotSealed {},
        /// A repair while the seal is being flushed: retry soon (native-T4).
        4 = Sealing {},
        /// Below the trim.
        5 = Trimmed {},
        /// This server does not have it; another may (native-T11).
        6 = NotHere {},
        /// The disk is full (native-T22).
        7 = DiskFull {},
        /// The journal is closed for good (native-T22).
        8 = StorageFailed {},
        /// The loglet is not known here: send its configuration along.
        9 = Unconfigured {},
        /// Deleted for ever (native-T10).
        10 = Gone {},
        /// The configuration means another data directory than this node has (native-T8).
        11 = WrongIdentity {},
        /// The sender is not the configured life of the configured sequencer (native-T6).
        12 = WrongSequencer {},
        /// Too many requests are already waiting.
        13 = Busy {},
        /// The stored copy cannot be read back.
        14 = Damaged {
            /// File, offset, reason.
            reason: String,
        },
    }
}

/// No named entry is below this offset. This is the last field of its message. Older programs neither write nor read it, so it is sent
/// only from the level that introduced it; a message without it makes no claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotBelow(pub Option<Offset>);

impl NotBelow {
    /// The claim, if all members can read it at the current level.
    pub fn say(env: &Env, offset: Offset) -> Self {
        NotBelow(env.levels().allows(since::NOT_BELOW).then_some(offset))
    }

    /// The known bound. Without a claim it is 0, which is always true.
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
    /// What became of an append.
    pub enum Ordered {
        /// Globally committed: first offset and length of each run.
        0 = Committed {
            /// In the order of the batch.
            runs: Vec<(Offset, u32)>
        },
        /// Sealed; the entries may be in it.
        1 = Sealed {},
        /// An earlier attempt may be there, too old to be remembered.
        2 = Forgotten {},
        /// Not the configured life of the sequencer (native-T6); nothing happened.
        3 = WrongSequencer {},
        /// The window is full, or an append before this one is missing; nothing happened.
        4 = Busy {},
        /// Not known here, and no configuration came along; nothing happened.
        5 = Unconfigured {},
        /// The batch is malformed or too large; nothing happened.
        6 = TooLarge {},
        /// Too many servers have a full disk; nothing happened.
        7 = DiskFull {},
        /// No majority answered in time; it may still happen.
        8 = NoQuorum {},
        /// Too many disks filled up while it was in flight; it may still happen.
        9 = NoSpace {},
        /// The journal is closed for good (native-T22); nothing happened.
        10 = StorageFailed {},
    }
}

message! {
    /// The answer to [`Append`].
    pub struct Appended = 101 {
        /// What became of it.
        pub outcome: Ordered,
        /// The sequencer's known tail.
        pub known_tail: Offset,
    }
}

message! {
    /// No more Stores; finish those admitted, then make it durable.
    pub struct Seal = 122 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
    }
}

message! {
    /// Where does the server stand?
    pub struct Info = 123 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
    }
}

message! {
    /// Answer when the tail has reached `target`, the loglet is sealed, or the time is up.
    pub struct Wait = 124 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The tail wanted.
        pub target: Offset,
        /// Only the known tail counts, not the local one.
        pub known_only: bool,
        /// How long, in milliseconds.
        pub patience_ms: u32,
    }
}

message! {
    /// The answer of a server to all but reads.
    pub struct Answer = 125 {
        /// What it did.
        pub verdict: Verdict,
        /// Where it stands.
        pub state: ServerState,
    }
}

message! {
    /// Store this copy although sealed (native §4 "Repair").
    pub struct Repair = 126 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// Offset of the first entry.
        pub first: Offset,
        /// Number of entries; 0 only passes on the known tail.
        pub count: u32,
        /// Everything below this is globally committed: rule K (b), for sealed servers only.
        pub known_tail: Offset,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// Entries from exactly `from` on.
    pub struct Read = 127 {
        /// The loglet.
        pub loglet: LogletId,
        /// First offset.
        pub from: Offset,
        /// End of the range, exclusive.
        pub to: Offset,
        /// Approximate limit; at least one run, whatever its size.
        pub max_bytes: u32,
    }
}

/// The answer to [`Read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// Done, or why there are none.
    pub verdict: Verdict,
    /// Where the server stands.
    pub state: ServerState,
    /// Offset of the first entry.
    pub first: Offset,
    /// Entries in each batch.
    pub counts: Vec<u32>,
    /// The batches: consecutive.
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
    /// Give up offsets below `to`.
    pub struct Trim = 129 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The first offset that stays.
        pub to: Offset,
    }
}

message! {
    /// Delete the loglet, for ever (native-T10).
    pub struct Delete = 130 {
        /// The loglet.
        pub loglet: LogletId,
    }
}

message! {
    /// Request the state of all loglets of this server, in pages by id.
    pub struct Status = 134 {
        /// Only loglets above this one.
        pub above: Option<LogletId>,
    }
}

atoll_core::record! {
    /// One loglet on one server.
    pub struct LogletStatus {
        /// The loglet.
        pub loglet: LogletId,
        /// Where it stands.
        pub state: ServerState,
        /// Offsets between trim and the known tail that this server lacks.
        pub missing: u64,
        /// Runs in its index.
        pub runs: u64,
        /// Bytes of entries.
        pub bytes: u64,
    }
}

message! {
    /// The answer to [`Status`].
    pub struct StatusPage = 135 {
        /// In the order of ids.
        pub loglets: Vec<LogletStatus>,
        /// More loglets follow.
        pub more: bool,
        /// The LogServer's node.
        pub node: NodeId,
    }
}

message! {
    /// Request the state of these loglets of this server. The answer leaves out loglets that the server does not have, and those
    /// beyond [`STATUS_PAGE`]. Sent to other nodes from level 2 on.
    pub struct StatusOf = 137 {
        /// The loglets.
        pub loglets: Vec<LogletId>,
    }
}

/// Loglets in one page of a status.
pub const STATUS_PAGE: usize = 1000;

/// A page of the loglets in a store, and whether there are more.
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

/// The status of one of them.
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

//! Messages of the NativeLoglet (native §3). Kinds 100–119 to and from the sequencer, 120–149 to and from LogServers.
//!
//! Those that any server of loglets answers are in `atoll_loglet_store::message`.

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::{Encode, Format, Incarnation, NodeId, StorageId, message, rpc};
use atoll_loglet_store::handle_order::HandlePlace;

use crate::NativeConfig;
use crate::roles::{LOG_SERVER, SEQUENCER};

pub use atoll_loglet_store::message::*;

// ---- to the sequencer ----

message! {
    /// Orders these entries. One frame per batch.
    pub struct Append = 100 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The life of the intended sequencer (native-T6).
        pub life: Incarnation,
        /// The place of the append in the order of its handle.
        pub place: HandlePlace,
        /// A lower bound: none of the entries is below it.
        pub not_below: NotBelow,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// A server's report to the sequencer: cumulative, one per turn (contracts §3.6).
    pub struct StoredUpTo = 102 {
        /// The loglet.
        pub loglet: LogletId,
        /// The outcome of the newest Store.
        pub verdict: Verdict,
        /// The round of Stores that it belongs to; a sequencer goes back once per round (X10).
        pub round: u32,
        /// The next offset that the server accepts without a gap. It counts staged entries, so it is no promise.
        pub expects: Offset,
        /// Durable state. While `sealed` is false, `local_tail` > p ≥ known tail means that p is stored.
        pub state: ServerState,
    }
}

message! {
    /// The seal procedure that the sequencer started has ended. Accepted only from the node itself.
    pub struct SealEnded = 103 {
        /// The loglet.
        pub loglet: LogletId,
        /// Whether a majority is sealed.
        pub sealed: bool,
    }
}

// ---- to a LogServer ----

message! {
    /// Stores these entries. Sent by the sequencer, in order.
    pub struct Store = 120 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The life of the sending sequencer (native-T6).
        pub life: Incarnation,
        /// Echoed in the answer.
        pub round: u32,
        /// Offset of the first entry.
        pub first: Offset,
        /// Number of entries.
        pub count: u32,
        /// The sequencer's known tail: rule K (a).
        pub known_tail: Offset,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// The known tail has risen, and no Store follows (X14). Sent by the sequencer.
    pub struct Advance = 121 {
        /// The loglet.
        pub loglet: LogletId,
        /// The life of the sending sequencer (native-T6).
        pub life: Incarnation,
        /// The known tail: rule K (a).
        pub known_tail: Offset,
        /// Whether the sequencer wants an answer, because the first message may have been lost.
        pub confirm: bool,
    }
}

message! {
    /// This loglet is sealed, and ends at `upto`. A server that missed the seal seals itself, and fetches the entries that
    /// it lacks below `upto`.
    pub struct BackFill = 131 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The sealed tail that was installed.
        pub upto: Offset,
    }
}

message! {
    /// A copy that a back-fill has fetched. Accepted only from the node itself.
    pub struct Fill = 132 {
        /// The loglet.
        pub loglet: LogletId,
        /// Offset of the first entry.
        pub first: Offset,
        /// Number of entries.
        pub count: u32,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// A back-fill has ended. Accepted only from the node itself.
    pub struct FillEnded = 133 {
        /// The loglet.
        pub loglet: LogletId,
    }
}

message! {
    /// A check of a doubtful loglet has ended. Accepted only from the node itself.
    pub struct CheckEnded = 136 {
        /// The loglet.
        pub loglet: LogletId,
        /// Whether the check got an answer.
        pub done: bool,
    }
}

message! {
    /// Requests the entries from `from` on, once the known tail is above it. The answer comes without entries if the loglet is sealed or
    /// the time is up. Sent from level 2 on.
    pub struct ReadNext = 138 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The first offset.
        pub from: Offset,
        /// The approximate limit of the answer in bytes. The answer has at least one run, whatever its size.
        pub max_bytes: u32,
        /// How long to wait at most, in milliseconds.
        pub patience_ms: u32,
    }
}

rpc!(Append => Appended, SEQUENCER, Data);
rpc!(BackFill => Answer, LOG_SERVER, Control);
rpc!(Fill => Answer, LOG_SERVER, Data);
rpc!(ReadNext => Entries, LOG_SERVER, Control);

/// Every message between handles, sequencers and LogServers, and the configuration in the chain.
pub const FORMATS: &[Format] = &[
    Format::message::<Append>(),
    Format::message::<Appended>(),
    Format::message::<StoredUpTo>(),
    Format::message::<SealEnded>(),
    Format::message::<Store>(),
    Format::message::<Advance>(),
    Format::message::<Seal>(),
    Format::message::<Info>(),
    Format::message::<Wait>(),
    Format::message::<Answer>(),
    Format::message::<Repair>(),
    Format::message::<Read>(),
    Format::message::<Entries>(),
    Format::message::<ReadNext>(),
    Format::message::<Trim>(),
    Format::message::<Delete>(),
    Format::message::<BackFill>(),
    Format::message::<Fill>(),
    Format::message::<FillEnded>(),
    Format::message::<CheckEnded>(),
    Format::message::<Status>(),
    Format::message::<StatusOf>(),
    Format::message::<StatusPage>(),
    Format::stored::<NativeConfig>("NativeConfig").like(|| {
        let servers = (1..=3).map(|n| (NodeId(n), StorageId(u128::from(n)))).collect();
        NativeConfig { servers, sequencer: (NodeId(1), Incarnation(9)) }.to_bytes()
    }),
];

//! Messages of the NativeLoglet (native §3). Kinds 100–119 to and from the sequencer, 120–149 to and from LogServers.
//!
//! Those that any server of loglets answers are in `atoll_loglet_store::message`.

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::{Incarnation, message, rpc};
use atoll_loglet_store::handle_order::HandlePlace;

use crate::roles::{LOG_SERVER, SEQUENCER};

pub use atoll_loglet_store::message::*;

// ---- to the sequencer ----

message! {
    /// Order these entries. One frame per batch.
    pub struct Append = 100 {
        /// Which.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The life of the sequencer that is meant (native-T6).
        pub life: Incarnation,
        /// Its place in the order of the handle that sends.
        pub place: HandlePlace,
        /// Where none of the entries is.
        pub not_below: NotBelow,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// A server's standing, posted to the sequencer: cumulative, one per turn (contracts §3.6).
    pub struct StoredUpTo = 102 {
        /// Which.
        pub loglet: LogletId,
        /// What became of the newest Store.
        pub verdict: Verdict,
        /// Which round of Stores that was; a sequencer goes back once per round (X10).
        pub round: u32,
        /// The next offset that the server takes without a gap: what is staged, no promise.
        pub expects: Offset,
        /// Durable state. While `sealed` is false, `local_tail` > p ≥ known tail means that p is stored.
        pub state: ServerState,
    }
}

message! {
    /// The seal procedure that the sequencer asked for has ended. Only from the node itself.
    pub struct SealEnded = 103 {
        /// Which.
        pub loglet: LogletId,
        /// A majority is sealed.
        pub sealed: bool,
    }
}

// ---- to a LogServer ----

message! {
    /// Keep these entries: from the sequencer, in order.
    pub struct Store = 120 {
        /// Which.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// The life of the sequencer that sends (native-T6).
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
    /// The known tail has moved and no Store follows (X14): from the sequencer.
    pub struct Advance = 121 {
        /// Which.
        pub loglet: LogletId,
        /// The life of the sequencer that sends (native-T6).
        pub life: Incarnation,
        /// Rule K (a).
        pub known_tail: Offset,
        /// An answer is wanted: the first one may have been lost.
        pub confirm: bool,
    }
}

message! {
    /// This loglet is sealed, and ends at `upto`. The server seals itself if it slept through the
    /// seal, and fetches what it lacks below.
    pub struct BackFill = 131 {
        /// Which.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The sealed tail that was installed.
        pub upto: Offset,
    }
}

message! {
    /// A copy fetched by back-fill. Only from the node itself.
    pub struct Fill = 132 {
        /// Which.
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
    /// A back-fill has ended. Only from the node itself.
    pub struct FillEnded = 133 {
        /// Which.
        pub loglet: LogletId,
    }
}

message! {
    /// A check of a doubtful loglet has ended. Only from the node itself.
    pub struct CheckEnded = 136 {
        /// Which.
        pub loglet: LogletId,
        /// It had an answer.
        pub done: bool,
    }
}

rpc!(Append => Appended, SEQUENCER, Data);
rpc!(BackFill => Answer, LOG_SERVER, Control);
rpc!(Fill => Answer, LOG_SERVER, Data);

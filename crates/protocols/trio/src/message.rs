//! The messages that only this protocol has. It shares the others (Info, Wait, Seal, Read, Repair, Trim, Delete, Status, and their answers)
//! with all loglets whose entries are in the journals of nodes.

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::{Format, Incarnation, NodeId, message, rpc};
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::message::{Answer, Appended, NotBelow, Ordered};

use crate::TrioConfig;
use crate::roles::{CLERK, MIRROR};

message! {
    /// Appends these entries. A handle sends it to the clerk.
    pub struct Append = 600 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration. It is never empty, because the clerk remembers no loglet.
        pub config: Bytes,
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
    /// Stores these entries at the next offsets. The clerk sends it to the store.
    pub struct Relay = 601 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The life of the clerk (native-T6).
        pub life: Incarnation,
        /// The number of the relay in that life.
        pub tag: u64,
        /// The node of the handle.
        pub sender: NodeId,
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
    /// The store's answer to a relay.
    pub struct Relayed = 602 {
        /// The life of the clerk that sent the relay.
        pub life: Incarnation,
        /// The number of the relay in that life.
        pub tag: u64,
        /// The outcome.
        pub outcome: Ordered,
        /// A tail that is readable.
        pub known_tail: Offset,
    }
}

message! {
    /// This loglet is sealed, and ends at `upto`: the mirror fetches the entries that it lacks below that offset.
    pub struct BackFill = 603 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration.
        pub config: Bytes,
        /// The sealed tail that was installed.
        pub upto: Offset,
    }
}

message! {
    /// A copy that a back-fill has fetched. The mirror accepts it only from its own node.
    pub struct Fill = 604 {
        /// The loglet.
        pub loglet: LogletId,
        /// The offset of the first entry.
        pub first: Offset,
        /// The number of entries.
        pub count: u32,
    }
    + payload
    /// The batch.
    batch
}

message! {
    /// A back-fill has ended. The mirror accepts it only from its own node.
    pub struct FillEnded = 605 {
        /// The loglet.
        pub loglet: LogletId,
    }
}

rpc!(Append => Appended, CLERK, Data);
rpc!(BackFill => Answer, MIRROR, Control);
rpc!(Fill => Answer, MIRROR, Data);

/// The messages that only this protocol has, and the configuration in the chain.
pub const FORMATS: &[Format] = &[
    Format::message::<Append>(),
    Format::message::<Relay>(),
    Format::message::<Relayed>(),
    Format::message::<BackFill>(),
    Format::message::<Fill>(),
    Format::message::<FillEnded>(),
    Format::stored::<TrioConfig>("TrioConfig"),
];

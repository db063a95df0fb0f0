//! The one message that only a LocalLoglet has. It shares the others (Info, Wait, Seal, Read, Repair, Trim, Delete and their answers) with
//! the LogServer: its store does the part of a LogServer that stores entries. See `native/message.rs`.

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::{Format, message, rpc};

use crate::roles::LOCAL_STORE;
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::message::{Appended, NotBelow};

message! {
    /// Stores these entries at the next offsets.
    pub struct LocalAppend = 300 {
        /// The loglet.
        pub loglet: LogletId,
        /// The configuration, or empty.
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

rpc!(LocalAppend => Appended, LOCAL_STORE, Data);

/// The message that only this protocol has, and the configuration in the chain.
pub const FORMATS: &[Format] =
    &[Format::message::<LocalAppend>(), Format::stored::<crate::LocalConfig>("LocalConfig")];

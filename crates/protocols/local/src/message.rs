//! The one message that only a LocalLoglet has. The rest (Info, Wait, Seal, Read, Repair, Trim, Delete and their answers) it
//! shares with the LogServer, of which its store is the half that keeps entries: see `native/message.rs`.

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::{message, rpc};

use crate::roles::LOCAL_STORE;
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::message::{Appended, NotBelow};

message! {
    /// Keep these entries, at the next offsets.
    pub struct LocalAppend = 300 {
        /// Which.
        pub loglet: LogletId,
        /// The configuration, or empty.
        pub config: Bytes,
        /// Its place in the order of the handle that sends.
        pub place: HandlePlace,
        /// Where none of the entries is.
        pub not_below: NotBelow,
    }
    + payload
    /// The batch.
    batch
}

rpc!(LocalAppend => Appended, LOCAL_STORE, Data);

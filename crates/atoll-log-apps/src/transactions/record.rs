//! The records of transactions.

use bytes::Bytes;

use crate::history::Index;
use crate::sessions::Stamp;

/// The longest key.
pub const MAX_KEY_BYTES: usize = 4 << 10;
/// The most bytes of one intention.
pub const MAX_INTENT_BYTES: usize = 512 << 10;

atoll_core::choice! {
    /// Something that a transaction has read.
    pub enum Read {
        /// A key, and the index of the version that was seen; 0 if it has never had one.
        1 = Key { key: Bytes, version: Index },
        /// All keys in `[from, to)`. A range stays a range, so that a key that appears in it later is a conflict, too.
        2 = Range { from: Bytes, to: Bytes },
    }
}

atoll_core::choice! {
    /// A record of the log of transactions.
    pub enum TxnRecord {
        /// An intention: what a transaction has read at a snapshot, and what it writes if it commits.
        1 = Intent { stamp: Stamp, snapshot: Index, reads: Vec<Read>, writes: Vec<(Bytes, Option<Bytes>)> },
        /// A transaction that every replica carries out at this position. It cannot be overtaken.
        2 = Call { stamp: Stamp, procedure: String, arguments: Bytes },
        /// Snapshots below this index are not kept any more.
        3 = Forget { below: Index },
    }
}

//! The records of a unit in the journal, and its checkpoint.

use bytes::Bytes;

use atoll_contract::LogletId;

use crate::message::Token;

/// Version of [`CellHead`].
pub const CELL_FORMAT: u8 = 1;
/// Version of [`Saved`] lists.
pub const STATE_FORMAT: u8 = 1;

atoll_core::choice! {
    /// A fact record. Replaying one twice changes nothing.
    pub enum Fact {
        /// A log exists here.
        0 = Create {
            /// The log.
            log: LogletId,
            /// The projection.
            config: Bytes,
            /// Its epoch.
            epoch: u64
        },
        /// An epoch is the current one (corfu-C16).
        1 = Epoch {
            /// The log.
            log: LogletId,
            /// The epoch.
            epoch: u64
        },
        /// Addresses are junk.
        2 = Junk {
            /// The log.
            log: LogletId,
            /// The ranges.
            ranges: Vec<(u64, u64)>
        },
        /// Addresses were deleted alone.
        3 = Deleted {
            /// The log.
            log: LogletId,
            /// The first address.
            first: u64,
            /// The end, exclusive.
            end: u64
        },
        /// The log was deleted permanently.
        4 = Tombstone {
            /// The log.
            log: LogletId
        },
        /// All addresses below one are deleted.
        5 = Trimmed {
            /// The log.
            log: LogletId,
            /// The first address that stays.
            to: u64
        },
    }
}

atoll_core::record! {
    /// The head of an entry record. The payload is the content.
    pub struct CellHead {
        /// [`CELL_FORMAT`].
        pub format: u8,
        /// The log.
        pub log: LogletId,
        /// The first address.
        pub first: u64,
        /// The number of addresses.
        pub count: u32,
        /// The append.
        pub token: Token,
    }
}

atoll_core::record! {
    /// One log in the checkpoint. Data is not in it: the journal keeps the records of data until they are freed.
    pub struct Saved {
        /// The log.
        pub log: LogletId,
        /// The projection.
        pub config: Bytes,
        /// The current epoch.
        pub epoch: u64,
        /// The watermark (corfu-C15).
        pub watermark: u64,
        /// Junk.
        pub junk: Vec<(u64, u64)>,
        /// Addresses at or above the watermark that were deleted alone.
        pub deleted: Vec<(u64, u64)>,
    }
}

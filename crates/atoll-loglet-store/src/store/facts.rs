//! What a role that keeps entries has in the journal: facts, entries, and the checkpoint that replaces facts (contracts X4).

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};

/// Version of [`EntryHead`].
pub(super) const ENTRY_FORMAT: u8 = 1;
/// Version of [`CheckpointState`].
pub(super) const CHECKPOINT_FORMAT: u8 = 1;

atoll_core::choice! {
    /// A fact record. Replaying one twice changes nothing.
    pub enum Fact {
        /// A loglet exists here.
        0 = Create {
            /// Which.
            loglet: LogletId,
            /// Its configuration.
            config: Bytes
        },
        /// The seal bit.
        1 = Seal {
            /// Which.
            loglet: LogletId
        },
        /// Offsets below `to` are given up.
        2 = Trim {
            /// Which.
            loglet: LogletId,
            /// Not this one.
            to: Offset,
            /// It outlives its entries (native-T12).
            local_tail: Offset
        },
        /// Deleted for ever (native-T10).
        3 = Tombstone {
            /// Which.
            loglet: LogletId
        },
        /// Where the sealed loglet ends.
        4 = Known {
            /// Which.
            loglet: LogletId,
            /// Everything below is committed.
            known_tail: Offset
        },
    }
}

atoll_core::record! {
    /// The head of an entry record; its payload is the encoded batch as it came.
    pub struct EntryHead {
        /// [`ENTRY_FORMAT`].
        pub format: u8,
        /// Which.
        pub loglet: LogletId,
        /// Offset of the first entry.
        pub first: Offset,
        /// Number of entries.
        pub count: u32,
        /// By back-fill: no evidence of a tail.
        pub filled: bool,
        /// The known tail at the time: persisted along at no cost.
        pub known_tail: Offset,
    }
}

atoll_core::record! {
    /// One loglet in the checkpoint.
    pub struct KeptState {
        /// Which.
        pub loglet: LogletId,
        /// Its configuration.
        pub config: Bytes,
        /// The seal bit; may be staged still.
        pub sealed: bool,
        /// Durable local tail: nothing that rests on staged entries.
        pub local_tail: Offset,
        /// Known tail.
        pub known_tail: Offset,
        /// Trim; may be staged still.
        pub trim: Offset,
        /// Where it ends is known.
        pub settled: bool,
    }
}

atoll_core::record! {
    /// All facts. Tombstones grow by 16 bytes for every segment that was ever deleted.
    pub struct CheckpointState {
        /// [`CHECKPOINT_FORMAT`].
        pub format: u8,
        /// Every loglet.
        pub kept: Vec<KeptState>,
        /// Every tombstone.
        pub tombstones: Vec<LogletId>,
    }
}

//! The journal records of a role that stores entries: facts, entries, and the checkpoint that replaces facts (contracts X4).

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
            /// The loglet.
            loglet: LogletId,
            /// Its configuration.
            config: Bytes
        },
        /// The seal bit.
        1 = Seal {
            /// The loglet.
            loglet: LogletId
        },
        /// Offsets below `to` are given up.
        2 = Trim {
            /// The loglet.
            loglet: LogletId,
            /// The first offset that stays.
            to: Offset,
            /// The tail outlives the entries (native-T12).
            local_tail: Offset
        },
        /// Deleted for ever (native-T10).
        3 = Tombstone {
            /// The loglet.
            loglet: LogletId
        },
        /// Where the sealed loglet ends.
        4 = Known {
            /// The loglet.
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
        /// The loglet.
        pub loglet: LogletId,
        /// Offset of the first entry.
        pub first: Offset,
        /// Number of entries.
        pub count: u32,
        /// The entry came by back-fill: it is not evidence of a tail.
        pub filled: bool,
        /// The known tail at the time of writing: persisted along with the entry at no cost.
        pub known_tail: Offset,
    }
}

atoll_core::record! {
    /// One loglet in the checkpoint.
    pub struct KeptState {
        /// The loglet.
        pub loglet: LogletId,
        /// Its configuration.
        pub config: Bytes,
        /// The seal bit; may still be only staged.
        pub sealed: bool,
        /// Durable local tail, which rests on no staged entry.
        pub local_tail: Offset,
        /// Known tail.
        pub known_tail: Offset,
        /// The trim; may still be only staged.
        pub trim: Offset,
        /// The end of the loglet is known.
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

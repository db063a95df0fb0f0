//! The journal records of a role that stores entries: facts, entries, and the checkpoint that replaces facts (contracts X4).

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};

/// Version of [`EntryHead`].
pub(super) const ENTRY_FORMAT: u8 = 1;
/// Version of [`CheckpointState`].
pub(super) const STATE_FORMAT: u8 = 1;

atoll_core::choice! {
    /// A fact record. Replaying one twice changes nothing.
    pub enum Fact {
        /// A Loglet exists here.
        0 = Create {
            /// The Loglet.
            loglet: LogletId,
            /// Its configuration.
            config: Bytes
        },
        /// The seal bit.
        1 = Seal {
            /// The Loglet.
            loglet: LogletId
        },
        /// Offsets below `to` are trimmed.
        2 = Trim {
            /// The Loglet.
            loglet: LogletId,
            /// The first offset that stays.
            to: Offset,
            /// The local tail, which must not fall when the entries are gone (native-T12).
            local_tail: Offset
        },
        /// The Loglet was deleted permanently (native-T10).
        3 = Tombstone {
            /// The Loglet.
            loglet: LogletId
        },
        /// Where the sealed Loglet ends.
        4 = Known {
            /// The Loglet.
            loglet: LogletId,
            /// Everything below is globally committed.
            known_tail: Offset
        },
    }
}

atoll_core::record! {
    /// The head of an entry record. The payload is the encoded batch as it was received.
    pub struct EntryHead {
        /// [`ENTRY_FORMAT`].
        pub format: u8,
        /// The Loglet.
        pub loglet: LogletId,
        /// The offset of the first entry.
        pub first: Offset,
        /// The number of entries.
        pub count: u32,
        /// Whether the entries came by back-fill. Such entries are no evidence of a tail.
        pub filled: bool,
        /// The known tail at the time of writing. It is persisted with the entries at no extra cost.
        pub known_tail: Offset,
    }
}

atoll_core::record! {
    /// One Loglet in the checkpoint.
    pub struct KeptState {
        /// The Loglet.
        pub loglet: LogletId,
        /// Its configuration.
        pub config: Bytes,
        /// The seal bit; may still be only staged.
        pub sealed: bool,
        /// The local tail, which depends on no staged entry.
        pub local_tail: Offset,
        /// The known tail.
        pub known_tail: Offset,
        /// The trim point; may still be only staged.
        pub trim: Offset,
        /// Whether the end of the Loglet is known.
        pub settled: bool,
    }
}

atoll_core::record! {
    /// All facts. The tombstones grow by 16 bytes with every segment that is deleted.
    pub struct CheckpointState {
        /// [`STATE_FORMAT`].
        pub format: u8,
        /// Every Loglet.
        pub kept: Vec<KeptState>,
        /// Every tombstone.
        pub tombstones: Vec<LogletId>,
    }
}

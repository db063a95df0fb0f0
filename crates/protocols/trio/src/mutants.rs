//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// The store acknowledges an append that comes after its seal, and stores nothing.
    TRIO_LATE_ACK = "TrioLateAck", caught by ["trio"];
    /// The mirror reports an entry that it lacks as trimmed, so the reader does not ask the store.
    TRIO_LACK_IS_TRIMMED = "TrioLackIsTrimmed", caught by ["trio"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("trio: the clerk is killed and returns (native-T6)", &["trio.clerk.other_life"]),
    listed(
        "trio: the mirror is filled after the seal, and read (X7)",
        &["trio.mirror.filled", "trio.read.mirror"],
    ),
];

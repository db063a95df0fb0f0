//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// An append is acknowledged before its entries are synced.
    LOCAL_ACK_EARLY = "LocalAckEarly", caught by ["local"];
    /// A seal is answered before its bit, and the entries before it, are synced (native-T4).
    LOCAL_SEAL_EARLY = "LocalSealEarly", caught by ["local"];
    /// A tail counts entries that are not synced yet (native-T9).
    LOCAL_STAGED_TAIL = "LocalStagedTail", caught by ["local"];
    /// A retry is acknowledged although the first attempt is not synced yet (X1).
    LOCAL_RETRY_EARLY = "LocalRetryEarly", caught by ["vlog-retries"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("local: appends wait for room in a full window", &["local.held", "local.admitted"]),
    listed("local: retries, also of what is not synced yet (X1)", &["local.duplicate"]),
];

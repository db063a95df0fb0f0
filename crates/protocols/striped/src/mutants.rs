//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// An append is acknowledged when its stripe has it, although earlier positions are not filled.
    STRIPED_ACKS_EARLY = "StripedAcksEarly", caught by ["striped"];
    /// A blocked appender does not pad the stripes that lag behind.
    STRIPED_NO_PADS = "StripedNoPads", caught by ["striped-idle"];
    /// The sealed tail is the end of the longest stripe.
    STRIPED_LONGEST = "StripedLongest", caught by ["striped"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "striped: appends wait for an idle stripe, and pad it",
        &["striped.append.blocked", "striped.pads"],
    ),
    listed("striped: the answer to a pad is lost", &["striped.pads.unknown"]),
    listed(
        "striped: a stripe is sealed while an append is blocked",
        &["striped.append.sealed_while_blocked"],
    ),
    listed("striped: a check finds some stripes sealed", &["striped.check_tail.some_sealed"]),
];

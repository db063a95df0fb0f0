//! Invariants that the code checks itself, also in release builds (rmwpaxos §11). The test oracles, which see all messages and all facts,
//! check the others.

use atoll_core::invariant;

use super::ballot::Ballot;

/// Checks rmw-I1: promises and votes never fall, and a promise is never below the vote.
pub(super) fn acceptor_moved(name: &str, before: (Ballot, Ballot), after: (Ballot, Ballot)) {
    let ((promised, voted), (promised_now, voted_now)) = (before, after);
    invariant!(
        promised_now >= promised,
        "register {name:?}: promise went back from {promised} to {promised_now}"
    );
    invariant!(voted_now >= voted, "register {name:?}: vote went back from {voted} to {voted_now}");
    invariant!(
        promised_now >= voted_now,
        "register {name:?}: voted {voted_now} above promise {promised_now}"
    );
}

/// Checks rmw-I7: phase 2 uses exactly the ballot that a majority promised in this attempt (rmw-T6).
pub(super) fn phase_two(ballot: Ballot, promised_by: usize, majority: usize) {
    invariant!(promised_by >= majority, "phase 2 at {ballot} with {promised_by} promises of {majority}");
}

/// Checks rmw-I4: a chosen state follows from the previous one by the writes of one batch.
pub(super) fn version_rises(name: &str, from: u64, to: u64, mutations: u64) {
    invariant!(to == from + mutations, "register {name:?}: {mutations} writes took version {from} to {to}");
}

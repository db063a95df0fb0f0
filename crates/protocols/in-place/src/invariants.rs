//! Invariants that the code checks itself, also in release builds (rmwpaxos §11). The oracle, which sees all messages and all cells, checks
//! the others.

use atoll_core::invariant;

use crate::ballot::Ballot;

/// Checks rmw-I1: promises and votes never fall, and a promise is never below the vote.
pub(crate) fn acceptor_moved(key: &[u8], before: (Ballot, Ballot), after: (Ballot, Ballot)) {
    let ((promised, voted), (promised_now, voted_now)) = (before, after);
    let key = key.escape_ascii();
    invariant!(promised_now >= promised, "key {key}: promise went back from {promised} to {promised_now}");
    invariant!(voted_now >= voted, "key {key}: vote went back from {voted} to {voted_now}");
    invariant!(promised_now >= voted_now, "key {key}: voted {voted_now} above promise {promised_now}");
}

/// Checks rmw-I7: phase 2 uses exactly the ballot that a majority promised in this attempt (rmw-T6).
pub(crate) fn phase_two(ballot: Ballot, promised_by: usize, majority: usize) {
    invariant!(promised_by >= majority, "phase 2 at {ballot} with {promised_by} promises of {majority}");
}

/// Checks rmw-I4: a proposed state follows from its base by the commands of one batch.
pub(crate) fn clock_rises(key: &[u8], from: u64, to: u64, recorded: u64) {
    let key = key.escape_ascii();
    invariant!(to == from + recorded, "key {key}: {recorded} commands took the clock from {from} to {to}");
}

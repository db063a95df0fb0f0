//! Known bugs of this protocol that tests can inject, and the coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// A quorum counts as consistent if its contents are equal, whatever the ballots.
    IN_PLACE_T1 = "InPlaceT1", caught by ["in-place"];
    /// A command is done again although an earlier attempt was chosen.
    IN_PLACE_T2 = "InPlaceT2", caught by ["in-place"];
    /// An acceptor refuses a copy of a write that it has voted for, and the proposer takes a refusal for a failure.
    IN_PLACE_T3 = "InPlaceT3", caught by ["in-place"];
    /// A token is used more than once.
    IN_PLACE_T4 = "InPlaceT4", caught by ["in-place"];
    /// A proposer that starts again has the identity that it had before.
    IN_PLACE_T5 = "InPlaceT5", caught by ["in-place-relapses"];
    /// The first write of a proposer skips phase 1.
    IN_PLACE_T7 = "InPlaceT7", caught by ["in-place"];
    /// A read or a refusal is answered from the base of a token.
    IN_PLACE_T8 = "InPlaceT8", caught by ["in-place"];
    /// An acceptor that restarts in memory takes the place of the one that has forgotten everything.
    IN_PLACE_T9 = "InPlaceT9", caught by ["in-place"];
    /// An acceptor drops a key as soon as it votes for its deletion.
    IN_PLACE_T11 = "InPlaceT11", caught by ["in-place"];
    /// An acceptor still serves a group that it has sealed.
    IN_PLACE_UNSEALED = "InPlaceUnsealed", caught by ["in-place-moves"];
    /// A transaction commits although nobody knows whether a key is locked for it.
    IN_PLACE_TX1 = "InPlaceTx1", caught by ["in-place-txn"];
    /// Only the coordinator knows what a committed transaction does to its keys. Others just end its locks.
    IN_PLACE_TX3 = "InPlaceTx3", caught by ["in-place-txn"];
    /// A read returns what a locked key held before the transaction.
    IN_PLACE_TX5_OLD = "InPlaceTx5Old", caught by ["in-place-txn"];
    /// A read returns what the transaction of a locked key intends.
    IN_PLACE_TX5_NEW = "InPlaceTx5New", caught by ["in-place-txn"];
    /// Keys that are only checked are not locked.
    IN_PLACE_TX6 = "InPlaceTx6", caught by ["in-place-txn"];
    /// A transaction that is asked for a first time does not look whether a repeat of it was faster.
    IN_PLACE_TXN_TWICE = "InPlaceTxnTwice", caught by ["in-place-txn"];
    /// A repeat of a transaction says that nothing happened if it fails itself.
    IN_PLACE_TXN_DENIES = "InPlaceTxnDenies", caught by ["in-place-txn"];
    /// A key remembers a repeat no longer than other commands, so the attempt before it may be done as well, much later.
    IN_PLACE_FORGETS_REPEATS = "InPlaceForgetsRepeats", caught by [];
    /// A command is refused while a vote for an earlier attempt can still win.
    IN_PLACE_DENIES = "InPlaceDenies", caught by [];
    /// A proposal that a key does not show counts as not chosen, although the key may have lost it.
    IN_PLACE_MISSES = "InPlaceMisses", caught by [];
    /// A command that an earlier proposal is known to contain waits for the next one of its proposer, and is looked for again after it.
    IN_PLACE_LATER = "InPlaceLater", caught by [];
    /// After a pause, a proposer names a ballot just above those that it saw before the pause, although its rivals have gone on since.
    IN_PLACE_STARVES = "InPlaceStarves", caught by ["in-place-crowd"];
    /// A proposal counts as over as soon as the last chosen state is without it, although a vote for it can still win.
    IN_PLACE_SETTLES = "InPlaceSettles", caught by [];
}

/// Marks that a long run must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "in-place: duplicated and swapped messages (rmw-T3)",
        &["in-place.acceptor.duplicate_write", "in-place.acceptor.laggard_write"],
    ),
    listed(
        "in-place: acknowledgements are lost, nacks come first (rmw-T2)",
        &["in-place.write.timed_out", "in-place.write.nacked"],
    ),
    listed(
        "in-place: a holder of a token is overtaken (rmw-T4, rmw-T8)",
        &["in-place.write.token", "in-place.write.stale_token"],
    ),
    listed(
        "in-place: equal contents, different ballots (rmw-T1)",
        &["in-place.write.through", "in-place.read.establish"],
    ),
    listed("in-place: deleted keys are forgotten (rmw-T11)", &["in-place.acceptor.forgets"]),
    listed("in-place: a proposal is overtaken, and known not to be chosen", &["in-place.propose.overtaken"]),
    listed(
        "in-place: coordinators of transactions die, others commit or abort for them (rmw-TX1 to rmw-TX5)",
        &["in-place.txn.rolls_forward", "in-place.txn.aborts_other"],
    ),
    listed(
        "in-place: transactions are repeated while they are under way",
        &["in-place.txn.done_before", "in-place.txn.looks_twice", "in-place.state.repeat"],
    ),
];

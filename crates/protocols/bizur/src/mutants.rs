//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// A replica takes an older counter of the same election over a newer one.
    BIZUR_B1 = "BizurB1", caught by ["keyspaces"];
    /// A candidate acts as the leader of its election before it has won it.
    BIZUR_B2 = "BizurB2", caught by ["keyspaces"];
    /// A restarted server stands again in the election that it won before.
    BIZUR_B3 = "BizurB3", caught by ["keyspaces"];
    /// A bucket counts as recovered once one replica has applied the recovery.
    BIZUR_B4 = "BizurB4", caught by ["keyspaces"];
    /// The leader changes its copy of a bucket before a majority has the change.
    BIZUR_B5 = "BizurB5", caught by ["keyspaces"];
    /// The first write of a term does not read the bucket.
    BIZUR_B6 = "BizurB6", caught by ["keyspaces"];
    /// A condition that does not hold is answered without asking whether the leader still leads.
    BIZUR_B7 = "BizurB7", caught by ["keyspaces"];
    /// A write that lost its majority is answered as not done.
    BIZUR_B10 = "BizurB10", caught by ["keyspaces"];
    /// A repeat of a write is done again.
    BIZUR_NO_DEDUPE = "BizurNoDedupe", caught by ["keyspaces"];
    /// A bucket remembers a repeat no longer than other writes, so the attempt before it may be done as well, much later.
    BIZUR_FORGETS_REPEATS = "BizurForgetsRepeats", caught by [];
    /// Two acknowledgements of the same replica count as two.
    BIZUR_B12 = "BizurB12", caught by ["keyspaces"];
    /// The next write of a bucket does not wait for the one before.
    BIZUR_B14 = "BizurB14", caught by ["keyspaces"];
    /// A replica in memory that restarts takes the place of the one that has forgotten everything (§5).
    BIZUR_AMNESIA = "BizurAmnesia", caught by ["keyspaces"];
    /// A watch is answered without asking whether the leader still leads.
    BIZUR_WATCH_UNPROVEN = "BizurWatchUnproven", caught by ["keyspaces"];
    /// A sealed replica still takes writes (§6).
    BIZUR_UNSEALED = "BizurUnsealed", caught by ["keyspaces-moves"];
    /// A sealed replica still confirms its leader (§6).
    BIZUR_SEALED_READS = "BizurSealedReads", caught by ["keyspaces-moves"];
    /// A replica shows its buckets to the next instance without sealing itself (§6).
    BIZUR_FETCH_UNSEALED = "BizurFetchUnsealed", caught by ["keyspaces-moves"];
    /// One replica of the instance before counts for a majority of it (§6).
    BIZUR_FETCH_ONE = "BizurFetchOne", caught by ["keyspaces-moves"];
    /// A new leader of the next instance copies buckets that were written there already (§6).
    BIZUR_COPIES_AGAIN = "BizurCopiesAgain", caught by ["keyspaces-moves"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("bizur: writes that arrive twice (bizur-B1)", &["bizur.replica.same_write"]),
    listed(
        "bizur: deposed leaders, lost elections, writes without an outcome (bizur-B8, bizur-B10)",
        &[
            "bizur.leader.deposed",
            "bizur.leader.lost_election",
            "bizur.leader.unknown",
            "bizur.bucket.repeat",
            "bizur.bucket.remembers_repeat",
        ],
    ),
    listed(
        "bizur: recovery of buckets, on access and in the background (bizur-B4)",
        &["bizur.leader.recovers_first", "bizur.leader.recovers_rest"],
    ),
    listed("bizur: forgotten writes", &["bizur.bucket.stale"]),
    listed(
        "bizur: shards that move (§6)",
        &["bizur.replica.seals", "bizur.replica.sealed", "bizur.leader.copied", "bizur.replica.retires"],
    ),
    listed("bizur: watches that a leader answers at a change", &["bizur.watch.notified"]),
];

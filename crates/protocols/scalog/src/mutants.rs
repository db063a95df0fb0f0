//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// A server reports records that are not synced yet.
    SCALOG_S1 = "ScalogS1", caught by ["scalog"];
    /// A replica that has not reported counts as zero, and a cut replaces the one before without a maximum.
    SCALOG_S2 = "ScalogS2", caught by ["scalog"];
    /// The numbers of a cut's records start at the sum after the cut, not at the sum before it.
    SCALOG_S3 = "ScalogS3", caught by ["scalog"];
    /// The maximum over the replicas of a shard is ordered, not the minimum.
    SCALOG_S5 = "ScalogS5", caught by ["scalog"];
    /// A follower of the ordering log skips entries that it missed.
    SCALOG_S7 = "ScalogS7", caught by ["scalog"];
    /// The ordering log is trimmed at the newest snapshot, although records can be read that the entries before it order.
    SCALOG_S8 = "ScalogS8", caught by ["scalog-shards"];
    /// A backup takes records that do not start at its next one.
    SCALOG_S10 = "ScalogS10", caught by ["scalog"];
    /// A primary that was restarted does not ask its backups what it replicated before.
    SCALOG_S12 = "ScalogS12", caught by ["scalog"];
    /// Records of a shard that has ended still get numbers, although their clients were told that they never will.
    SCALOG_S13 = "ScalogS13", caught by ["scalog-shards"];
    /// A new shard takes clients at once, so that their retries do not find what an earlier shard has.
    SCALOG_S15 = "ScalogS15", caught by ["scalog-shards"];
    /// An orderer counts the time in which it was stopped as time in which a shard was stuck.
    SCALOG_S17 = "ScalogS17", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed("scalog: orderers end a shard that is stuck", &["scalog.orderer.ends_stuck"]),
    listed("scalog: an orderer was stopped while a shard lagged", &["scalog.orderer.was_stopped"]),
    listed("scalog: a retry finds the places of the first attempt", &["scalog.server.duplicate"]),
    listed("scalog: a stream of records goes back to where its backup is", &["scalog.server.rewind"]),
    listed("scalog: a read waits until its number is covered", &["scalog.server.read_waits"]),
    listed("scalog: the ordering log itself is sealed", &["scalog.seal.ordering_log", "scalog.server.ended"]),
    listed("scalog: the ordering log is trimmed", &["scalog.orderer.trims"]),
    listed("scalog: a server resumes with a snapshot", &["scalog.server.resumed"]),
    listed("scalog: a handle resumes with a snapshot", &["scalog.handle.resumed"]),
    listed("scalog: shards are added and ended on demand", &["scalog.shard.add", "scalog.shard.end"]),
    listed("scalog: a server looks for entries of a sealed ordering log", &["scalog.back_fill"]),
];

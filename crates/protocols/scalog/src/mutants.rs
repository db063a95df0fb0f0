//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach. A bug without a scenario is found by a test of this crate.

use atoll_core::testing::Listed;

atoll_core::mutants! {
    /// A server reports records that are not synced yet.
    SCALOG_S1 = "ScalogS1", caught by [];
    /// A replica that has not reported counts as zero, and a cut replaces the one before without a maximum.
    SCALOG_S2 = "ScalogS2", caught by [];
    /// The numbers of a cut's records start at the sum after the cut, not at the sum before it.
    SCALOG_S3 = "ScalogS3", caught by [];
    /// The maximum over the replicas of a shard is ordered, not the minimum.
    SCALOG_S5 = "ScalogS5", caught by [];
    /// A follower of the ordering log skips entries that it missed.
    SCALOG_S7 = "ScalogS7", caught by [];
    /// A backup takes records that do not start at its next one.
    SCALOG_S10 = "ScalogS10", caught by [];
    /// A primary that was restarted does not ask its backups what it replicated before.
    SCALOG_S12 = "ScalogS12", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[];

//! Known bugs that any implementation of a contract may have; tests inject them. Each names the scenarios of the simulator in which an
//! oracle must find it.

atoll_core::mutants! {
    VLOG_REVIVED_LOGLET = "VlogRevivedLoglet", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    /// A contender takes a lease over although it was renewed after the contender had judged that it had expired.
    LEASE_BLIND_TAKEOVER = "LeaseBlindTakeover", caught by ["keyspace-leases"];
    /// A contender counts all the time that its clock shows, also that of a jump.
    LEASE_TRUSTS_CLOCK = "LeaseTrustsClock", caught by ["keyspace-leases"];
    /// A copy of a sealed segment leaves out one entry, has the one before it twice, and is not compared with its source.
    COPY_SKIPS_UNSEEN = "CopySkipsUnseen", caught by ["policy", "virtuallog"];
}

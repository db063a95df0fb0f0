//! Known bugs of this protocol, and of an ensemble, that tests can inject, each with the scenarios of the simulator in which an oracle must
//! find it, and the coverage marks that a long run must reach. The crate's own tests (`tests/protocol/known_bugs.rs`) must find each of the
//! bugs of the protocol, too.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    /// An append does not check the znode of the seal.
    ZOOKEEPER_SEAL_UNCHECKED = "ZooKeeperSealUnchecked", caught by ["zookeeper-loglet"];
    /// An append whose answer was lost counts as failed: it is appended again at the new tail, and what was appended in the meantime is not
    /// looked at.
    ZOOKEEPER_LOSS_IS_FAILURE = "ZooKeeperLossIsFailure", caught by ["zookeeper-loglet"];
    /// A tail is read from a server of the ensemble that may lag behind.
    ZOOKEEPER_STALE_TAIL = "ZooKeeperStaleTail", caught by ["zookeeper-loglet"];
    /// A handle that has appended goes on at once, however many others wait for their turn.
    ZOOKEEPER_GREEDY = "ZooKeeperGreedy", caught by [];
    /// The ensemble forgets a seal soon after it has confirmed it.
    ZOOKEEPER_FORGETS_SEALS = "ZooKeeperForgetsSeals", caught by ["zookeeper-loglet"];
    /// A copy of a sealed segment leaves out one entry, and has the one before it twice. The virtual log compares each copy
    /// before it installs it, so no scenario loses anything by it.
    ZOOKEEPER_COPY_SKIPS_ENTRY = "ZooKeeperCopySkipsEntry", caught by [];
    /// A handle creates its loglet in whatever ensemble answers, also in one that has never had it.
    ZOOKEEPER_CREATES_ANYWHERE = "ZooKeeperCreatesAnywhere", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "zookeeper-loglet: an append without an answer is found in the log",
        &["zookeeper.own_attempt_found"],
    ),
    listed(
        "zookeeper-loglet: another node's batch is in the way of an append",
        &["zookeeper.append_refused"],
    ),
    listed("zookeeper-loglet: buckets of batches are deleted", &["zookeeper.swept"]),
    listed("zookeeper-loglet: half of the nodes see only an old server", &["zookeeper.old_server"]),
    listed("zookeeper-loglet: nobody is answered for a while", &["zookeeper.away"]),
];

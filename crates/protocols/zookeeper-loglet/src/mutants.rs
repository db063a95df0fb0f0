//! Known bugs of this protocol that tests can inject. The simulator has no ensemble, so the tests of this crate must catch them
//! (`tests/protocol/known_bugs.rs`).

atoll_core::mutants! {
    /// An append does not check the znode of the seal.
    ZOOKEEPER_SEAL_UNCHECKED = "ZooKeeperSealUnchecked", caught by [];
    /// An append whose answer was lost counts as failed: it is appended again at the new tail, and what was appended in the meantime is not
    /// looked at.
    ZOOKEEPER_LOSS_IS_FAILURE = "ZooKeeperLossIsFailure", caught by [];
    /// A tail is read from a server of the ensemble that may lag behind.
    ZOOKEEPER_STALE_TAIL = "ZooKeeperStaleTail", caught by [];
    /// A handle that has appended goes on at once, however many others wait for their turn.
    ZOOKEEPER_GREEDY = "ZooKeeperGreedy", caught by [];
}

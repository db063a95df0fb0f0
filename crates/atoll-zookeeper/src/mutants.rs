//! Known bugs of the ZooKeeper door, which tests switch on. Each names the scenarios of the simulator in which an oracle must find
//! it.

atoll_core::mutants! {
    ZK_EXPIRY_UNGUARDED = "ZkExpiryUnguarded", caught by ["zookeeper"];
    ZK_TAKE_OVER_WITHOUT_TIMEOUT = "ZkTakeOverWithoutTimeout", caught by ["zookeeper"];
    ZK_EVENTS_AFTER_REPLIES = "ZkEventsAfterReplies", caught by ["zookeeper"];
    ZK_WATCHES_IGNORE_ZXID = "ZkWatchesIgnoreZxid", caught by ["zookeeper"];
    ZK_SERVES_BEHIND_SESSION = "ZkServesBehindSession", caught by ["zookeeper"];
    ZK_VERSION_UNCHECKED = "ZkVersionUnchecked", caught by ["zookeeper"];
    ZK_MULTI_IN_PARTS = "ZkMultiInParts", caught by ["zookeeper"];
    ZK_EPHEMERAL_STAYS = "ZkEphemeralStays", caught by ["zookeeper"];
    /// A session that is ending can still be used by its client.
    ZK_ENDING_LIVES = "ZkEndingLives", caught by ["zookeeper"];
    ZK_SYNC_WITHOUT_BARRIER = "ZkSyncWithoutBarrier", caught by ["zookeeper"];
    ZK_WRITE_AFTER_MOVE = "ZkWriteAfterMove", caught by ["zookeeper"];
    ZK_READS_PASS_WRITES = "ZkReadsPassWrites", caught by ["zookeeper"];
    ZK_WATCH_FIRES_AGAIN = "ZkWatchFiresAgain", caught by ["zookeeper"];
    /// A node that was due when a door looked is deleted even if it has changed since.
    ZK_REAP_UNGUARDED = "ZkReapUnguarded", caught by ["zookeeper"];
    /// Events of newer changes go out before the reply of a read that another thread makes from an older view.
    ZK_EVENTS_PASS_READS = "ZkEventsPassReads", caught by ["zookeeper"];
    /// A read that another thread makes is made from the newest view, and shows later writes of its own session.
    ZK_READS_ELSEWHERE_SEE_MORE = "ZkReadsElsewhereSeeMore", caught by ["zookeeper"];
    ZK_QUOTA_FORGETS_DELETES = "ZkQuotaForgetsDeletes", caught by ["zookeeper"];
    /// Creating a node whose name is `poison` panics, at every replica. For the drill of surgery on the log.
    ZK_POISON = "ZkPoison", caught by [];
}

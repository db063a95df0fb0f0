//! Known bugs of the node and its policy that tests switch on. Each lists the simulator scenarios in which an oracle must detect it.

use atoll_core::testing::Mutant;

atoll_core::mutants! {
    ZK_HALTED_KEEPS_SESSIONS = "ZkHaltedKeepsSessions", caught by ["zookeeper-stores"];
    POLICY_NO_CALM = "PolicyNoCalm", caught by ["lasting"];
    POLICY_HIDES_HEALTH = "PolicyHidesHealth", caught by ["lasting"];
    /// Nodes ignore that a peer vouches for a member.
    POLICY_NO_VOUCHING = "PolicyNoVouching", caught by ["lasting"];
    /// A node whose links are slow always blames the sequencers, and never itself.
    POLICY_NEVER_ME = "PolicyNeverMe", caught by ["slow-links"];
    /// Only the first 64 logs are guarded.
    POLICY_GUARDS_FEW = "PolicyGuardsFew", caught by ["many-logs"];
    /// The last report of a node stays when the node is removed, and heartbeats of removed nodes count.
    POLICY_KEEPS_REMOVED = "PolicyKeepsRemoved", caught by ["removed"];
    /// Only the first broken segment of a log is rebuilt, even if that fails each time.
    POLICY_FIRST_BROKEN = "PolicyFirstBroken", caught by ["broken-segments"];
    /// A shard is added as soon as one is full, without a pause after the last one.
    POLICY_ONE_FULL_SHARD = "PolicyOneFullShard", caught by ["scalog-full"];
    /// The policy of a log trims a segment that must stay yet.
    POLICY_TRIMS_ONE_MORE = "PolicyTrimsOneMore", caught by ["policy"];
    /// The policy of a log switches as soon as the replicas change, and again at once.
    POLICY_FLAPS = "PolicyFlaps", caught by ["policy"];
    /// Operations that begin while nobody has opened a keyspace yet open it for each of them.
    KEYSPACES_OPENS_EACH = "KeyspacesOpensEach", caught by [];
}

/// Returns the known bugs of every layer of a node. Those of its doors come from the list of doors.
pub fn of_all_layers() -> Vec<Mutant> {
    let layers = [
        atoll_backup::mutants::ALL,
        atoll_core::mutants::ALL,
        atoll_storage::mutants::ALL,
        atoll_contract::mutants::ALL,
        atoll_loglet_store::mutants::ALL,
        atoll_register_store::mutants::ALL,
        atoll_log::mutants::ALL,
        atoll_db::mutants::ALL,
        ALL,
    ];
    let mut all = layers.concat();
    all.extend(atoll_protocols::mutants());
    all
}

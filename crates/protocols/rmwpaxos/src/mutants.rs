//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    RMW_T1 = "RmwT1", caught by ["registers"];
    RMW_T2 = "RmwT2", caught by ["registers"];
    RMW_T3 = "RmwT3", caught by ["registers"];
    RMW_T4 = "RmwT4", caught by ["registers"];
    RMW_T5 = "RmwT5", caught by ["register-lives"];
    RMW_T6 = "RmwT6", caught by ["registers"];
    RMW_T7 = "RmwT7", caught by ["registers"];
    RMW_T9 = "RmwT9", caught by ["registers", "disks"];
    /// A write is denied while an acceptor's vote for it can still win. The simulator rarely gets there: a test of the model does.
    RMW_DENIES = "RmwDenies", caught by [];
    /// New registers may take all of the capacity. The registers of the simulator are never full: a trace of an acceptor shows it.
    RMW_NO_RESERVE = "RmwNoReserve", caught by [];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "rmwpaxos: duplicated and swapped messages (rmw-T3, rmw-T15)",
        &["rmw.acceptor.duplicate_write", "rmw.acceptor.duplicate_prepare"],
    ),
    listed(
        "rmwpaxos: acknowledgements are lost, nacks come first (rmw-T2)",
        &["rmw.write.timed_out", "rmw.write.nacked"],
    ),
    listed(
        "rmwpaxos: a holder of a token is overtaken (rmw-T4)",
        &["rmw.write.token", "rmw.write.stale_token"],
    ),
    listed(
        "rmwpaxos: equal values, different ballots (rmw-T1)",
        &["rmw.write.through", "rmw.read.establish"],
    ),
    listed(
        "rmwpaxos: a proposer restarts with messages of its last life under way (rmw-T5)",
        &["sim.fault.kill"],
    ),
    listed("rmwpaxos: duels (rmw-T13)", &["rmw.write.incremental_disagrees"]),
    listed("rmwpaxos: the groups change while a checkpoint is put together", &["rmw.checkpoint.anew"]),
    listed("rmwpaxos: lost disks (rmw-T9)", &["rmw.acceptor.wrong_identity"]),
    listed(
        "rmwpaxos: hand-overs, unfinished ones, and late installs (§9a)",
        &[
            "rmw.move.opened",
            "rmw.move.rolled_forward",
            "rmw.acceptor.late_install",
            "rmw.acceptor.moved",
            "rmw.acceptor.shut_out",
        ],
    ),
];

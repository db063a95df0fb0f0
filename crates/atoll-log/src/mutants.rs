//! Known bugs of the virtual log that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    X16 = "X16", caught by ["vlog-late"];
    VLOG_V1 = "VlogV1", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_V2 = "VlogV2", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_V3 = "VlogV3", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_V4 = "VlogV4", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_V7 = "VlogV7", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_V14 = "VlogV14", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    VLOG_INSTALL_WITHOUT_SEAL = "VlogInstallWithoutSeal", caught by ["vlog-seals", "virtuallog", "crashes", "all"];
    /// No node completes a reconfiguration whose reconfigurer died.
    VLOG_NO_ROLL_FORWARD = "VlogNoRollForward", caught by ["vlog-movers"];
    /// A chain may name a page before the page is durable.
    VLOG_PAGE_TOO_LATE = "VlogPageTooLate", caught by ["vlog-long"];
    /// A reader takes the entry that surgery holds.
    VLOG_PASSES_HOLDS = "VlogPassesHolds", caught by ["surgery"];
    /// A deleted log that is created anew starts at position 0 again.
    VLOG_ANEW_FROM_ZERO = "VlogAnewFromZero", caught by ["vlog-deleted"];
    DB_APPLIES_COPIES = "DbAppliesCopies", caught by ["zookeeper"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "virtuallog: a reconfigurer dies after each step",
        &[
            "vlog.extend.died_before_seal",
            "vlog.extend.died_after_seal",
            "vlog.extend.died_before_install",
            "vlog.roll_forward",
        ],
    ),
    listed(
        "virtuallog: two extends and a roll-forward at once",
        &["vlog.extend.met_by_other", "vlog.install.lost", "vlog.extend.again"],
    ),
    listed(
        "virtuallog: a client asleep over three reconfigurations and a truncate",
        &["sim.slept_over_changes"],
    ),
    listed("virtuallog: the outcome of an install is unknown", &["vlog.install.unknown"]),
    listed(
        "virtuallog: a segment is rebuilt under readers",
        &["vlog.modify", "vlog.read.gone", "vlog.trim.truncated"],
    ),
    listed(
        "virtuallog: seals race appends (vlog-V2 to vlog-V5)",
        &[
            "vlog.lane.sealed",
            "vlog.append.found",
            "vlog.append.sought",
            "vlog.check_tail.sealed",
            "vlog.follow.sealed",
        ],
    ),
    listed(
        "virtuallog: poison surgery with a learner that has another chain, and with one that has passed the entry",
        &[
            "db.surgery.done",
            "db.surgery.refused",
            "vlog.read.held",
            "vlog.read.held_meanwhile",
            "vlog.read.patched",
            "vlog.surgery.released",
            "sim.surgery.taken_over",
        ],
    ),
    listed("virtuallog: a minority of the MetaStore", &["rmw.write.timed_out", "vlog.lane.stalled"]),
    listed(
        "virtuallog V2, X16: a stopped node continues with what its client has sent elsewhere",
        &["sim.went_on_late"],
    ),
];

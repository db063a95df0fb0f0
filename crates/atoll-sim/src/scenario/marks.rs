//! The coverage marks of each scenario. A run with at least [`crate::coverage::SEEDS`] seeds must reach all of them. At least one in
//! eight seeds of the scenario must reach a mark to be listed here, so that a hundred seeds miss it once in a million runs.
//! [`crate::coverage`] lists rarer ones for runs of all scenarios. Marks of several scenarios are in shared lists.

/// Names of marks.
pub type Marks = &'static [&'static str];

/// Marks of every scenario with native Loglets.
const EVERY_LOG: Marks = &[
    "append.unknown",
    "native.check_tail.repair",
    "native.check_tail.sealed_while_waiting",
    "native.check_tail.some_sealed",
    "native.check_tail.wait",
    "native.read.not_here",
    "native.read.remote",
    "native.seal.draining",
    "native.seal.retry",
    "native.sequencer.failed_by_seal",
    "native.sequencer.reconnected",
    "native.sequencer.resend",
    "native.sequencer.skipped_committed",
    "native.sequencer.resend_tail",
    "native.server.back_fill",
    "native.server.check_doubtful",
    "native.server.filled",
    "native.server.not_here",
    "native.server.repaired",
    "native.server.seal_while_sealing",
    "native.server.seal_with_stores_in_flight",
    "native.server.slept_through_seal",
    "native.server.store_after_seal",
    "native.server.store_again",
    "native.server.stores_finished_by_seal",
    "native.wait.sealed",
];

/// Marks of every scenario with native Loglets whose journals grow.
const SEGMENTS: Marks = &["journal.segment.sparse", "store.move"];

/// Marks of every scenario with RMWPaxos registers, including those with virtual logs.
const REGISTER: Marks = &[
    "rmw.acceptor.laggard_write",
    "rmw.read.establish",
    "rmw.write.incremental_disagrees",
    "rmw.write.nacked",
    "rmw.write.stale_token",
    "rmw.write.through",
    "rmw.write.token",
];

/// Additional marks of every scenario with virtual logs.
const VIRTUAL: Marks = &[
    "lane.new_epoch",
    "logs.catch_up",
    "members.first_group",
    "native.back_fill.no_source",
    "native.check_tail.shared",
    "native.server.tombstone",
    "policy.back_fill",
    "policy.extend",
    "vlog.append.found",
    "vlog.check_tail.sealed",
    "vlog.extend.met_by_other",
    "vlog.follow.sealed",
    "vlog.install.lost",
    "vlog.lane.again",
    "vlog.lane.cold",
    "vlog.lane.pause_cut_short",
    "vlog.lane.sealed",
    "vlog.lane.stalled",
    "vlog.roll_forward",
];

/// Marks of scenarios in which registers move between groups.
const MOVES: Marks = &[
    "journal.closed",
    "journal.recover.gap",
    "rmw.acceptor.moved",
    "rmw.acceptor.shut_out",
    "rmw.checkpoint.step",
    "rmw.move.chosen",
    "rmw.move.fenced",
    "rmw.move.final",
    "rmw.move.installed",
    "rmw.move.listed",
    "rmw.move.opened",
    "rmw.proposer.adopts",
    "rmw.proposer.follows",
    "rmw.write.timed_out",
];

/// Additional marks of scenarios in which nodes return with lost disks.
const LOST_DISKS: Marks = &["rmw.acceptor.wrong_identity", "rmw.proposer.wrong_identity"];

/// Additional marks of scenarios in which the members change.
const CHANGES: Marks = &[
    "members.hand_over",
    "members.heard_of_group",
    "native.check_tail.repair_again",
    "native.sequencer.duplicate",
    "native.sequencer.no_quorum",
    "native.sequencer.other_life",
    "native.server.wrong_identity",
    "vlog.append.sought",
    "vlog.modify",
    "vlog.trim.truncated",
];

/// Additional marks of scenarios in which disks fail.
const FAULTS: Marks = &[
    "journal.checkpoint.from_reserve",
    "journal.recover.from_reserve",
    "journal.segment.fill_failed",
    "journal.segment.inline",
    "journal.space.full",
    "native.check_tail.unsettled",
    "native.rebuild.server_lost",
    "native.sequencer.go_back",
    "native.server.deletes_too",
    "native.server.disk_full",
    "native.server.out_of_order",
    "native.trim.background",
    "store.checkpoint.step",
];

/// `native`.
pub const NATIVE: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    &[
        "journal.closed",
        "journal.recover.gap",
        "lane.new_epoch",
        "native.back_fill.no_source",
        "native.check_tail.repair_again",
        "native.check_tail.unsettled",
        "native.sequencer.duplicate",
        "native.sequencer.go_back",
        "native.sequencer.lane_gap",
        "native.sequencer.no_quorum",
        "native.sequencer.other_life",
        "native.server.out_of_order",
        "native.server.tombstone",
        "native.trim.background",
    ],
];

/// `registers`.
pub const REGISTERS: &[Marks] = &[
    REGISTER,
    MOVES,
    LOST_DISKS,
    &[
        "rmw.acceptor.duplicate_write",
        "rmw.checkpoint.anew",
        "rmw.move.rolled_forward",
        "rmw.proposer.new_group",
        "rmw.proposer.opens_laggard",
    ],
];

/// `virtuallog`.
pub const VIRTUALLOG: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    REGISTER,
    VIRTUAL,
    &[
        "journal.closed",
        "journal.recover.gap",
        "native.check_tail.unsettled",
        "native.sequencer.duplicate",
        "native.sequencer.no_quorum",
        "native.sequencer.other_life",
        "native.server.deletes_too",
        "native.trim.background",
        "rmw.write.timed_out",
        "vlog.append.sought",
        "vlog.extend.again",
        "vlog.modify",
        "vlog.trim.truncated",
    ],
];

/// `vlog-long`.
pub const LONG: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    REGISTER,
    VIRTUAL,
    &[
        "vlog.extend.dropped_empty",
        "vlog.modify",
        "vlog.modify.in_page",
        "vlog.page.gone",
        "vlog.page.read",
        "vlog.page_out",
        "vlog.page_out.level",
        "vlog.page_out.lost",
        "vlog.trim.page",
        "vlog.trim.truncated",
    ],
];

/// `crashes`.
pub const CRASHES: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    REGISTER,
    VIRTUAL,
    &[
        "journal.recover.gap",
        "native.check_tail.repair_again",
        "native.sequencer.other_life",
        "native.server.deletes_too",
        "native.trim.background",
        "vlog.append.sought",
        "vlog.modify",
        "vlog.trim.truncated",
    ],
];

/// `disks`.
pub const DISKS: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    REGISTER,
    VIRTUAL,
    MOVES,
    LOST_DISKS,
    CHANGES,
    FAULTS,
    &[
        "journal.recover.rot",
        "native.sequencer.no_way_back",
        "native.server.damaged",
        "rmw.proposer.new_group",
        "sim.fault.failed_reads",
        "sim.fault.rot_live",
        "sim.read.failed",
        "vlog.install.unknown",
        "vlog.lane.disk_full",
    ],
];

/// `lost-files`.
pub const LOST_FILES: &[Marks] =
    &[LOST_DISKS, &["sim.fault.lost_files", "journal.recover.missing", "rmw.checkpoint.anew"]];

/// `put-back`.
pub const PUT_BACK: &[Marks] = &[
    LOST_DISKS,
    &[
        "journal.recover.older",
        "rmw.checkpoint.anew",
        "sim.fault.put_back_all",
        "sim.fault.put_back_files",
        "sim.fault.unmount",
        "sim.put_back.refused",
    ],
];

/// `membership`.
pub const MEMBERSHIP: &[Marks] = &[EVERY_LOG, SEGMENTS, REGISTER, VIRTUAL, MOVES, CHANGES];

/// `all`.
pub const ALL: &[Marks] = &[EVERY_LOG, SEGMENTS, REGISTER, VIRTUAL, MOVES, LOST_DISKS, CHANGES, FAULTS];

/// `register-lives`.
pub const REGISTER_LIVES: &[Marks] = &[REGISTER, &["journal.recover.gap", "rmw.write.timed_out"]];

/// `native-seals`.
pub const NATIVE_SEALS: &[Marks] = &[
    EVERY_LOG,
    &[
        "journal.segment.inline",
        "native.check_tail.repair_again",
        "native.check_tail.unsettled",
        "native.sequencer.duplicate",
        "native.sequencer.no_quorum",
    ],
];

/// `vlog-seals`.
pub const VLOG_SEALS: &[Marks] = &[
    EVERY_LOG,
    SEGMENTS,
    REGISTER,
    VIRTUAL,
    &[
        "journal.segment.inline",
        "native.check_tail.repair_again",
        "native.check_tail.unsettled",
        "native.sequencer.duplicate",
        "native.server.deletes_too",
        "rmw.write.timed_out",
    ],
];

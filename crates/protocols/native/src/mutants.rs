//! Known bugs of this protocol that tests can inject, each with the scenarios of the simulator in which an oracle must find it, and the
//! coverage marks that a long run must reach.

use atoll_core::testing::{Listed, listed};

atoll_core::mutants! {
    NATIVE_T1 = "NativeT1", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    NATIVE_T2 = "NativeT2", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    NATIVE_T3 = "NativeT3", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    NATIVE_T4 = "NativeT4", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    NATIVE_T5 = "NativeT5", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    NATIVE_T6 = "NativeT6", caught by ["native", "virtuallog"];
    NATIVE_T8 = "NativeT8", caught by ["disks"];
    NATIVE_T11 = "NativeT11", caught by ["native", "virtuallog"];
    NATIVE_T18 = "NativeT18", caught by ["native", "virtuallog"];
    NATIVE_T19 = "NativeT19", caught by ["native-seals", "native", "vlog-seals", "virtuallog", "crashes"];
    /// A server accepts an entry above a gap that was never reported as committed.
    NATIVE_N7 = "NativeN7", caught by ["native", "disks"];
    /// An entry that cannot be read now is reported as trimmed.
    NATIVE_UNREAD_IS_TRIMMED = "NativeUnreadIsTrimmed", caught by ["disks"];
    /// A copy of a sealed segment leaves out one entry, and has the one before it twice. The virtual log compares each copy
    /// before it installs it, so no scenario loses anything by it.
    NATIVE_COPY_SKIPS_ENTRY = "NativeCopySkipsEntry", caught by [];
    POLICY_LOWEST_ID = "PolicyLowestId", caught by ["lasting"];
}

/// Marks that a long run of the simulator must have reached. A run that misses one does not test what it should.
pub const COVERAGE: &[Listed] = &[
    listed(
        "native: a seal races each stage of a Store",
        &[
            "native.server.seal_with_stores_in_flight",
            "native.server.stores_finished_by_seal",
            "native.server.seal_while_sealing",
            "native.sequencer.failed_by_seal",
            "native.seal.draining",
        ],
    ),
    listed(
        "native: reconfigurers with different majorities",
        &["native.check_tail.some_sealed", "native.check_tail.repair", "native.check_tail.repair_again"],
    ),
    listed(
        "native: repair after the install while the sequencer tries on (native-T1, native-T2)",
        &["native.server.repaired", "native.server.store_after_seal"],
    ),
    listed("native: the sequencer is killed and returns (native-T6)", &["native.sequencer.other_life"]),
    listed("native: a crash between sync and reply", &["sim.crash.between_sync_and_reply"]),
    listed(
        "native: a lost disk (native-T8)",
        &["sim.fault.wipe", "native.server.wrong_identity", "native.rebuild.server_lost"],
    ),
    listed("native: rot (native-T9)", &["sim.fault.rot", "journal.recover.rot"]),
    listed(
        "native: trim and restart (native-T12), deletion (native-T10)",
        &["native.server.tombstone", "native.server.deletes_too"],
    ),
    listed("native: a sealer dies with a minority sealed", &["native.seal.died_with_a_minority"]),
    listed(
        "native: one, three and five servers",
        &["sim.native.one_server", "sim.native.three_servers", "sim.native.five_servers"],
    ),
    listed("native: rule K with five servers", &["sim.rule_k"]),
    listed(
        "native: waits end (native-T3, native-T14, native-T18)",
        &["native.check_tail.wait", "native.check_tail.sealed_while_waiting", "native.wait.sealed"],
    ),
    listed(
        "native: duplicates, gaps (native-T11, native-T20)",
        &["native.sequencer.duplicate", "native.server.out_of_order", "native.read.not_here"],
    ),
    listed(
        "native: back-fill (X7)",
        &["native.server.filled", "native.server.slept_through_seal", "policy.back_fill"],
    ),
    listed(
        "native: full and failing disks (native-T22)",
        &["journal.space.full", "native.server.disk_full", "journal.closed"],
    ),
];

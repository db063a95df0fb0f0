//! The scenarios that the protocol notes list, and what a long run must have reached of each: a run that never got there does not
//! test what it is meant to, whatever it passed.

use std::collections::BTreeMap;

/// Seeds from which on a run of every kind of scenario must reach all that is listed here. A rarer mark than one in ten seeds is
/// demanded of no shorter run.
pub const SEEDS: u64 = 100;

/// A listed scenario, and the marks of which each must be reached.
pub struct Listed {
    /// Protocol notes and words.
    pub what: &'static str,
    /// Coverage marks, of the product and of the simulator.
    pub marks: &'static [&'static str],
}

const fn listed(what: &'static str, marks: &'static [&'static str]) -> Listed {
    Listed { what, marks }
}

/// virtuallog §12, native-loglet §8, rmwpaxos §11, and the traps whose paths have marks. Poison surgery (virtuallog §7) is no part of
/// the product.
pub const LISTED: &[Listed] = &[
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
        "virtuallog: seals race appends (V2–V5)",
        &[
            "vlog.lane.sealed",
            "vlog.append.found",
            "vlog.append.sought",
            "vlog.check_tail.sealed",
            "vlog.follow.sealed",
        ],
    ),
    listed("virtuallog: a minority of the MetaStore", &["rmw.write.timed_out", "vlog.lane.stalled"]),
    listed(
        "virtuallog V2, X16: a stopped node goes on with what its client has sent elsewhere",
        &["sim.went_on_late"],
    ),
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
        "native: repair after the install while the sequencer tries on (T1, T2)",
        &["native.server.repaired", "native.server.store_after_seal"],
    ),
    listed("native: the sequencer is killed and returns (T6)", &["native.sequencer.other_life"]),
    listed("native: a crash between sync and reply", &["sim.crash.between_sync_and_reply"]),
    listed(
        "native: a lost disk (T8)",
        &["sim.fault.wipe", "native.server.wrong_identity", "native.rebuild.server_lost"],
    ),
    listed("journal: lost files are missed", &["sim.fault.lost_files", "journal.recover.missing"]),
    listed("native: rot (T9)", &["sim.fault.rot", "journal.recover.rot"]),
    listed(
        "native: trim and restart (T12), deletion (T10)",
        &["native.server.tombstone", "native.server.deletes_too"],
    ),
    listed("native: a sealer dies with a minority sealed", &["native.seal.died_with_a_minority"]),
    listed(
        "native: one, three and five servers",
        &["sim.native.one_server", "sim.native.three_servers", "sim.native.five_servers"],
    ),
    listed("native: rule K with five servers", &["sim.rule_k"]),
    listed(
        "native: waits end (T3, T14, T18)",
        &["native.check_tail.wait", "native.check_tail.sealed_while_waiting", "native.wait.sealed"],
    ),
    listed(
        "native: duplicates, gaps (T11, T20)",
        &["native.sequencer.duplicate", "native.server.out_of_order", "native.read.not_here"],
    ),
    listed(
        "native: back-fill (X7)",
        &["native.server.filled", "native.server.slept_through_seal", "policy.back_fill"],
    ),
    listed(
        "native: full and failing disks (T22)",
        &["journal.space.full", "native.server.disk_full", "journal.closed"],
    ),
    listed(
        "rmwpaxos: duplicated and swapped messages (T3, T15)",
        &["rmw.acceptor.duplicate_write", "rmw.acceptor.duplicate_prepare"],
    ),
    listed(
        "rmwpaxos: acknowledgements are lost, nacks come first (T2)",
        &["rmw.write.timed_out", "rmw.write.nacked"],
    ),
    listed("rmwpaxos: a holder of a token is overtaken (T4)", &["rmw.write.token", "rmw.write.stale_token"]),
    listed("rmwpaxos: equal values, different ballots (T1)", &["rmw.write.through", "rmw.read.establish"]),
    listed(
        "rmwpaxos: a proposer restarts with messages of its last life under way (T5)",
        &["sim.fault.kill"],
    ),
    listed("rmwpaxos: duels (T13)", &["rmw.write.incremental_disagrees"]),
    listed("rmwpaxos: lost disks (T9)", &["rmw.acceptor.wrong_identity"]),
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
    listed(
        "every kind of fault",
        &[
            "sim.fault.kill",
            "sim.fault.power_cut",
            "sim.fault.crash_all",
            "sim.fault.crash_mid_turn",
            "sim.fault.pause",
            "sim.fault.one_way",
            "sim.fault.split",
            "sim.fault.reset",
            "sim.fault.frames",
            "sim.fault.slow_disk",
            "sim.fault.full_disk",
            "sim.fault.failed_write",
            "sim.fault.failed_sync",
        ],
    ),
];

/// What is missing, in words: none if all was reached.
pub fn missing(marks: &BTreeMap<&'static str, u64>) -> Vec<String> {
    let lacks = |l: &Listed| {
        let missed: Vec<&str> = l.marks.iter().copied().filter(|m| !marks.contains_key(m)).collect();
        (!missed.is_empty()).then(|| format!("{}: {}", l.what, missed.join(", ")))
    };
    LISTED.iter().filter_map(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_reached_nothing_lacks_everything_and_one_that_reached_all_lacks_nothing() {
        assert_eq!(missing(&BTreeMap::new()).len(), LISTED.len());
        let all: BTreeMap<&'static str, u64> =
            LISTED.iter().flat_map(|l| l.marks.iter().map(|m| (*m, 1))).collect();
        assert!(missing(&all).is_empty());
        let mut one_less = all.clone();
        one_less.remove("sim.rule_k");
        assert_eq!(missing(&one_less), ["native: rule K with five servers: sim.rule_k"]);
    }
}

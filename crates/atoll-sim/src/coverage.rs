//! The situations that the protocol notes list, and the marks that show that a long run reached them. A run that reached none of them does
//! not test what it is meant to test, even if it passes.

use std::collections::BTreeMap;

use atoll_core::testing::{Listed, listed};

/// Runs with at least this many seeds must reach all their marks. Shorter runs may miss marks that fewer than one in ten seeds reach.
pub const SEEDS: u64 = 100;

/// The list of the simulator itself.
const FAULTS: Listed = listed(
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
);

/// Returns the lists of all crates: virtuallog §12, native §8, rmwpaxos §11, and the traps whose paths have marks.
pub fn all() -> Vec<Listed> {
    let layers = [atoll_log::mutants::COVERAGE, atoll_storage::mutants::COVERAGE, &[FAULTS]];
    let mut all = layers.concat();
    all.extend(atoll_protocols::coverage());
    all
}

/// Returns the missing marks as text. Empty if all were reached.
pub fn missing(marks: &BTreeMap<&'static str, u64>) -> Vec<String> {
    let lacks = |l: &Listed| {
        let missed: Vec<&str> = l.marks.iter().copied().filter(|m| !marks.contains_key(m)).collect();
        (!missed.is_empty()).then(|| format!("{}: {}", l.what, missed.join(", ")))
    };
    all().iter().filter_map(lacks).collect()
}

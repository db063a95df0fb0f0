//! Seeds that once failed, each kept with what it found; and a few seeds of every scenario, so that `cargo test` notices at once when
//! one breaks. Traces are compared between processes.

use std::process::Command;

use atoll_core::testing::Mutant;
use atoll_sim::runner::{catch_panics, run_one};
use atoll_sim::scenario;

/// Scenario, seed, what it once found. A seed shows its bug only as long as nothing before it draws chance otherwise, so each bug has a
/// test of its own where it was mended, too; what stays here must pass for ever.
const ONCE_FAILED: &[(&str, u64, &str)] = &[
    (
        "all",
        201,
        "a group of acceptors was handed over to two members, one of whose disks had just been lost: no hand-over after it could \
         end (rmwpaxos §9a; `a_hand_over_to_a_lost_disk_is_refused_and_changes_nothing`)",
    ),
    ("disks", 16, "the simulator asked a journal that was short of space again only after minutes"),
    ("all", 73, "a full disk stayed full for minutes, and the seed got nowhere"),
    ("native", 5, "the newest loglet was deleted, and nobody made another"),
];

fn passes(name: &str, seed: u64, why: &str) {
    let scenario = scenario::find(name).expect("a scenario of the list");
    let outcome = run_one(&scenario, seed, Mutant::None, None);
    assert!(outcome.failures.is_empty(), "{name} seed {seed} ({why}): {:?}", outcome.failures);
}

#[test]
fn what_once_failed_passes() {
    catch_panics();
    for (name, seed, why) in ONCE_FAILED {
        passes(name, *seed, why);
    }
}

#[test]
fn a_few_seeds_of_every_scenario_pass() {
    catch_panics();
    for scenario in scenario::all() {
        for seed in 1_000_000..1_000_003 {
            passes(scenario.name, seed, scenario.about);
        }
    }
}

/// The same seed in another process, and twice in this one: one trace.
#[test]
fn a_seed_is_one_trace_in_every_process() {
    let replay = |name: &str, seed: u64| {
        let done = Command::new(env!("CARGO_BIN_EXE_atoll-sim"))
            .args(["replay", "--scenario", name, "--seed", &seed.to_string()])
            .output()
            .expect("the simulator runs");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    for scenario in scenario::all() {
        let here = run_one(&scenario, 7, Mutant::None, None).trace;
        assert_eq!(run_one(&scenario, 7, Mutant::None, None).trace, here, "{}", scenario.name);
        let there = replay(scenario.name, 7);
        assert!(there.contains(&format!("trace {:016x} over {} events", here.0, here.1)), "{there}");
    }
    assert_ne!(replay("all", 7), replay("all", 8));
}

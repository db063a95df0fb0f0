//! Race points matter: they find a planted race that no schedule without them shows.

use atoll_core::testing::Mutant;
use atoll_sim::runner::{is_of_safety, run_one};
use atoll_sim::scenario::races::{SCENARIO, WITHOUT_POINTS, is_bizur};
use atoll_sim::scenario::{Outcome, Scenario};

/// How many seeds are tried.
const SEEDS: u64 = 24;

/// Returns the first violation of safety that a seed of Bizur shows.
fn found(scenario: &Scenario, mutant: Mutant) -> Option<String> {
    let violation = |outcome: Outcome| outcome.failures.into_iter().find(|failure| is_of_safety(failure));
    (0..SEEDS)
        .filter(|seed| is_bizur(*seed))
        .find_map(|seed| violation(run_one(scenario, seed, mutant, None)))
}

/// Bizur may take an older write for a newer one (bizur-B1). On a network that keeps the order of messages it never gets the older one
/// later, unless a race point has held it up.
#[test]
fn a_planted_race_is_found_with_race_points_and_not_without() {
    let mutant = atoll_bizur::mutants::BIZUR_B1;
    assert_eq!(found(&WITHOUT_POINTS, mutant), None);
    assert!(found(&SCENARIO, mutant).is_some(), "no seed shows the race");
    assert_eq!(found(&SCENARIO, Mutant::NONE), None);
}

#[test]
fn a_seed_decides_what_race_points_delay() {
    let trace = |scenario, seed| run_one(scenario, seed, Mutant::NONE, None).trace;
    let differs = |seed| {
        let with = trace(&SCENARIO, seed);
        assert_eq!(trace(&SCENARIO, seed), with, "seed {seed}");
        trace(&WITHOUT_POINTS, seed) != with
    };
    assert!((0..4).all(differs), "race points delay nothing");
}

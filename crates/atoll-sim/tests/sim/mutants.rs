//! The list of known bugs. Not a unit test: it needs every scenario, and the library would be built in full a second time.

use atoll_sim::mutants::{all, caught_last};
use atoll_sim::scenario;

#[test]
fn each_mutant_has_a_name_of_its_own_and_scenarios_that_exist() {
    let all = all();
    for (i, mutant) in all.iter().enumerate() {
        assert!(!all[..i].contains(mutant), "two mutants are called {mutant:?}");
        for name in mutant.caught_by() {
            assert!(scenario::find(name).is_some(), "{mutant:?} names the scenario {name:?}");
        }
    }
}

/// A line that names nothing would never be tried, and without a line a hunt begins with the first seed.
#[test]
fn each_mutant_has_the_seed_that_caught_it_last() {
    let write = "`atoll-sim mutants --record crates/atoll-sim/mutants.txt` writes the file anew";
    let mut last = caught_last().unwrap_or_else(|line| panic!("mutants.txt has the line {line:?}; {write}"));
    for mutant in all() {
        let Some((scenario, _)) = last.remove(mutant.name()) else {
            panic!("mutants.txt lacks {mutant:?}; {write}");
        };
        assert!(mutant.caught_by().contains(&scenario), "{mutant:?} does not name {scenario:?}; {write}");
    }
    assert!(last.is_empty(), "mutants.txt names {:?}, which are no mutants; {write}", last.keys());
}

//! The list of known bugs. Not a unit test: it needs every scenario, and the library would be built in full a second time.

use atoll_sim::mutants::all;
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

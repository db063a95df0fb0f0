//! Checks that each known bug is caught: a mutant is switched on at run time, and an oracle must find a safety violation. A lack of
//! progress or a failed assertion of the product does not count.

use atoll_core::testing::Mutant;

use crate::runner::{is_of_safety, run_many};
use crate::scenario::{self, Outcome};

/// Returns all mutants that a scenario must catch.
pub fn all() -> Vec<Mutant> {
    let all = atoll_node::mutants::of_all_layers().into_iter().chain(atoll_doors::mutants());
    all.filter(|m| !m.caught_by().is_empty()).collect()
}

/// Returns the mutant with a name, in upper or lower case.
pub fn find(name: &str) -> Option<Mutant> {
    all().into_iter().find(|m| m.name().eq_ignore_ascii_case(name))
}

/// Runs each mutant until it is caught, and prints a table. Returns true if all were caught.
pub fn hunt(mutants: &[Mutant], seeds: u64, threads: usize) -> bool {
    println!("{:<24} {:<12} {:>5} {:>6}  first violation", "mutant", "scenario", "seed", "tried");
    let mut all = true;
    for mutant in mutants {
        let mut caught = false;
        for name in mutant.caught_by() {
            let Some(s) = scenario::find(name) else { continue };
            let found = |o: &Outcome| o.failures.first().is_some_and(|why| is_of_safety(why));
            let sums = run_many(&s, 0..seeds, threads, *mutant, &found, &|_, _| {});
            if let Some((seed, why)) = sums.failures.iter().find(|(_, why)| is_of_safety(why)) {
                let tried = sums.passed + sums.failed;
                let why: String = why.chars().take(120).collect();
                println!("{:<24} {name:<12} {seed:>5} {tried:>6}  {why}", mutant.name());
                caught = true;
                break;
            }
        }
        if !caught {
            let asked = mutant.caught_by().join(", ");
            println!("{:<24} not caught within {seeds} seeds of {asked}", mutant.name());
            all = false;
        }
    }
    println!("{}", if all { "every mutant was caught" } else { "some mutants were not caught" });
    all
}

//! The hunt for known bugs: each mutant is put in at run time, and an oracle has to find it.

use atoll_core::testing::Mutant;

use crate::runner::run_many;
use crate::scenario;

/// The scenarios that are to catch a mutant, the best one first.
pub fn hunters(mutant: Mutant) -> Vec<&'static str> {
    let name = format!("{mutant:?}");
    if name.starts_with("Rmw") { vec!["registers"] } else { vec!["registers"] }
}

/// Tries each mutant until it is caught; prints a table. True if all were.
pub fn hunt(mutants: &[Mutant], seeds: u64, threads: usize) -> bool {
    println!("{:<24} {:<16} {:>6} {:>6}  first violation", "mutant", "scenario", "seed", "tried");
    let mut all = true;
    for mutant in mutants {
        let mut caught = false;
        for name in hunters(*mutant) {
            let Some(s) = scenario::find(name) else { continue };
            let sums = run_many(&s, 0..seeds, threads, *mutant, true, &|_, _| {});
            if let Some((seed, why)) = sums.failures.first() {
                let tried = sums.passed + sums.failed;
                let why: String = why.chars().take(110).collect();
                println!("{:<24} {name:<16} {seed:>6} {tried:>6}  {why}", format!("{mutant:?}"));
                caught = true;
                break;
            }
        }
        if !caught {
            println!(
                "{:<24} not caught within {seeds} seeds of {}",
                format!("{mutant:?}"),
                hunters(*mutant).join(", ")
            );
            all = false;
        }
    }
    println!("{}", if all { "every mutant was caught" } else { "some mutants were not caught" });
    all
}

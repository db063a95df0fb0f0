//! Checks that each known bug is caught: a mutant is switched on at run time, and an oracle must find a safety violation. A lack of
//! progress or a failed assertion of the product does not count.
//!
//! `mutants.txt` keeps the scenario and the seed that caught each mutant last. That seed is tried first. A change of the product changes
//! what seeds do, so a mutant that it does not catch any more is hunted from the first seed on.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_core::testing::Mutant;

use crate::runner::{is_of_safety, run_many};
use crate::scenario::{self, Outcome, Scenario};

/// Which seed caught which mutant last: one line per mutant, with its name, the scenario and the seed.
const CAUGHT_LAST: &str = include_str!("../mutants.txt");

/// How a mutant was caught.
struct Caught {
    scenario: &'static str,
    seed: u64,
    /// How many seeds were run, with this one.
    tried: u64,
    /// The violation that the oracle reported.
    why: String,
}

/// Returns all mutants that a scenario must catch.
pub fn all() -> Vec<Mutant> {
    let all = atoll_node::mutants::of_all_layers().into_iter().chain(atoll_doors::mutants());
    all.filter(|m| !m.caught_by().is_empty()).collect()
}

/// Returns the mutant with a name, in upper or lower case.
pub fn find(name: &str) -> Option<Mutant> {
    all().into_iter().find(|m| m.name().eq_ignore_ascii_case(name))
}

/// Reads the lines of `mutants.txt`: scenario and seed by the name of the mutant. Returns the line that it cannot read.
pub fn caught_last() -> Result<BTreeMap<&'static str, (&'static str, u64)>, &'static str> {
    let read = |line: &'static str| {
        let mut words = line.split_whitespace();
        let (mutant, scenario, seed) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
        words.next().is_none().then_some((mutant, (scenario, seed)))
    };
    CAUGHT_LAST.lines().map(|line| read(line).ok_or(line)).collect()
}

/// Runs each mutant until it is caught, prints a table, and returns whether all were caught. Writes the seeds that caught them to `record`.
/// Each gets `seeds` seeds at most per scenario, after the one that caught it last.
pub fn hunt(
    mutants: &[Mutant],
    seeds: u64,
    threads: usize,
    record: Option<&std::path::Path>,
) -> Result<bool, String> {
    let known = caught_last().map_err(|line| format!("mutants.txt has the line {line:?}"))?;
    let again = try_again(mutants, &known, threads);
    println!("{:<24} {:<12} {:>5} {:>6}  first violation", "mutant", "scenario", "seed", "tried");
    let (mut lines, mut missed, mut moved) = (String::new(), 0, 0);
    for (mutant, caught) in mutants.iter().zip(again) {
        let name = mutant.name();
        match caught.or_else(|| search(*mutant, seeds, threads)) {
            Some(c) => {
                println!("{name:<24} {:<12} {:>5} {:>6}  {}", c.scenario, c.seed, c.tried, c.why);
                lines += &format!("{name} {} {}\n", c.scenario, c.seed);
                moved += usize::from(known.get(name) != Some(&(c.scenario, c.seed)));
            }
            None => {
                println!("{name:<24} not caught within {seeds} seeds of {}", mutant.caught_by().join(", "));
                missed += 1;
            }
        }
    }
    if moved > 0 {
        println!(
            "{moved} were caught by other seeds than last time; --record crates/atoll-sim/mutants.txt saves that search"
        );
    }
    println!("{}", if missed == 0 { "every mutant was caught" } else { "some mutants were not caught" });
    if let Some(path) = record {
        std::fs::write(path, lines).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(missed == 0)
}

/// Runs each mutant with the seed that caught it last, several mutants at a time.
fn try_again(mutants: &[Mutant], known: &BTreeMap<&str, (&str, u64)>, threads: usize) -> Vec<Option<Caught>> {
    let next = AtomicUsize::new(0);
    let caught = Mutex::new(mutants.iter().map(|_| None).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutant) = mutants.get(at) else { return };
                    let last = known.get(mutant.name()).filter(|(name, _)| mutant.caught_by().contains(name));
                    let Some((scenario, seed)) =
                        last.and_then(|(name, seed)| Some((scenario::find(name)?, *seed)))
                    else {
                        continue;
                    };
                    let found = run(&scenario, seed..seed + 1, 1, *mutant);
                    caught.lock().unwrap_or_else(PoisonError::into_inner)[at] = found;
                }
            });
        }
    });
    caught.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a mutant with all seeds until it is caught.
fn search(mutant: Mutant, seeds: u64, threads: usize) -> Option<Caught> {
    mutant.caught_by().iter().find_map(|name| run(&scenario::find(name)?, 0..seeds, threads, mutant))
}

/// Runs a mutant until an oracle finds it.
fn run(scenario: &Scenario, seeds: std::ops::Range<u64>, threads: usize, mutant: Mutant) -> Option<Caught> {
    let found = |o: &Outcome| o.failures.first().is_some_and(|why| is_of_safety(why));
    let sums = run_many(scenario, &seeds.into(), threads, mutant, &found, &|_, _| {});
    let (seed, why) = sums.failures.iter().find(|(_, why)| is_of_safety(why))?;
    Some(Caught {
        scenario: scenario.name,
        seed: *seed,
        tried: sums.passed + sums.failed,
        why: why.chars().take(120).collect(),
    })
}

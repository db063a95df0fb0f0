//! Runs seeds on several threads. Each run is its own world on one thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_core::races::set_races;
use atoll_core::testing::{Mutant, set_mutant, take_marks, watch_local};

use crate::scenario::phases::Size;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::seeds::Seeds;

thread_local! {
    static PANIC: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Makes panics part of a run's outcome instead of printing them.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.set(Some(info.to_string().replace('\n', " ")));
    }));
}

/// Runs one seed. A panic of the product, such as a broken invariant, is reported as a failure.
pub fn run_one(scenario: &Scenario, seed: u64, mutant: Mutant, out: TraceOut) -> Outcome {
    set_mutant(mutant);
    watch_local(true);
    take_marks();
    let run = catch_unwind(AssertUnwindSafe(|| (scenario.run)(seed, out)));
    set_mutant(Mutant::NONE);
    // A run that panicked has left them on.
    set_races(None);
    let mut outcome = run.unwrap_or_else(|_| {
        let what = PANIC.take().unwrap_or_else(|| "a panic without words".to_owned());
        Outcome { failures: vec![format!("PANIC: {what}")], marks: take_marks(), ..Outcome::default() }
    });
    // A mutant that only slows a run down must not count as caught.
    let must_be_full = scenario.full && mutant == Mutant::NONE && outcome.failures.is_empty();
    if must_be_full && !outcome.size.reaches(&Size::FULL) {
        outcome.failures.push(format!("SMALL: {}; a full seed has at least {}", outcome.size, Size::FULL));
    }
    outcome
}

/// Returns whether a failure is a safety violation that an oracle found, and not a lack of progress, an error of the harness, or a panic of
/// the product.
pub fn is_of_safety(failure: &str) -> bool {
    !["LIVENESS", "SPIN", "HARNESS", "SMALL", "PANIC"].iter().any(|word| failure.starts_with(word))
}

/// Sums over several runs.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// How many runs had no violation.
    pub passed: u64,
    /// How many runs had a violation.
    pub failed: u64,
    /// The sizes of all runs together.
    pub size: Size,
    /// The minimum of each part of the size, over the runs that passed.
    pub least: Option<Size>,
    /// Faults of single frames.
    pub frame_faults: u64,
    /// Events handled.
    pub events: u64,
    /// Coverage marks, with the number of runs that reached each.
    pub marks: BTreeMap<&'static str, u64>,
    /// Seed and first violation of each failed run.
    pub failures: Vec<(u64, String)>,
    /// Combination of all trace hashes. Equal for equal code and seeds.
    pub trace: u64,
}

impl Sums {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        let size = outcome.size;
        match outcome.failures.into_iter().next() {
            None => {
                self.passed += 1;
                self.least = Some(self.least.map_or(size, |least| least.least(&size)));
            }
            Some(first) => {
                self.failed += 1;
                self.failures.push((seed, first));
            }
        }
        self.size.add(&size);
        self.frame_faults += outcome.totals.frame_faults;
        self.events += outcome.totals.events;
        self.trace ^= outcome.trace.0.rotate_left((seed % 64) as u32);
        for mark in outcome.marks.into_keys() {
            *self.marks.entry(mark).or_default() += 1;
        }
    }
}

/// Runs a scenario with each of the seeds, or until `enough` accepts an outcome. Calls `report` with each outcome.
pub fn run_many(
    scenario: &Scenario,
    seeds: &Seeds,
    threads: usize,
    mutant: Mutant,
    enough: &(dyn Fn(&Outcome) -> bool + Sync),
    report: &(dyn Fn(u64, &Outcome) + Sync),
) -> Sums {
    let next = AtomicU64::new(0);
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(seed) = seeds.nth(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    let outcome = run_one(scenario, seed, mutant, None);
                    report(seed, &outcome);
                    if enough(&outcome) {
                        next.store(seeds.len(), Ordering::Relaxed);
                    }
                    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                    sums.add(seed, outcome);
                }
            });
        }
    });
    let mut sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    sums.failures.sort();
    sums
}

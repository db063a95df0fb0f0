//! Runs seeds, on as many threads as wanted: every run is a world of its own on one thread.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_core::testing::{Mutant, set_mutant, take_marks, watch_local};

use crate::scenario::{Outcome, Scenario, TraceOut};

thread_local! {
    static PANIC: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Makes panics part of a run's outcome instead of its output.
pub fn catch_panics() {
    std::panic::set_hook(Box::new(|info| {
        PANIC.set(Some(info.to_string().replace('\n', " ")));
    }));
}

/// One run. A panic of the product, a broken invariant of its own above all, is a failure like any other.
pub fn run_one(scenario: &Scenario, seed: u64, mutant: Mutant, out: TraceOut) -> Outcome {
    set_mutant(mutant);
    watch_local(true);
    take_marks();
    let run = catch_unwind(AssertUnwindSafe(|| (scenario.run)(seed, out)));
    set_mutant(Mutant::None);
    run.unwrap_or_else(|_| {
        let what = PANIC.take().unwrap_or_else(|| "a panic without words".to_owned());
        Outcome { failures: vec![format!("PANIC: {what}")], marks: take_marks(), ..Outcome::default() }
    })
}

/// Sums over runs.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Runs without a violation.
    pub passed: u64,
    /// Runs with one.
    pub failed: u64,
    /// Operations answered.
    pub operations: u64,
    /// Faults done, and faults of single frames.
    pub faults: (u64, u64),
    /// Reconfigurations.
    pub reconfigurations: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Events handled.
    pub events: u64,
    /// Runs of a full scenario that were smaller than promised.
    pub small: u64,
    /// Coverage marks, with the number of runs that reached each.
    pub marks: BTreeMap<&'static str, u64>,
    /// Seed, first violation.
    pub failures: Vec<(u64, String)>,
    /// Exclusive-or of all traces: equal for equal code and seeds.
    pub trace: u64,
}

/// What a full seed promises: operations, faults, reconfigurations, virtual seconds.
pub const FULL_SEED: (u64, u64, u64, u64) = (1_000, 20, 5, 60);

impl Sums {
    fn add(&mut self, scenario: &Scenario, seed: u64, outcome: Outcome) {
        let (operations, faults, changes, seconds) = FULL_SEED;
        let full = outcome.operations >= operations
            && outcome.totals.faults >= faults
            && outcome.reconfigurations >= changes
            && outcome.virtual_ns >= seconds * 1_000_000_000;
        match outcome.failures.into_iter().next() {
            None => {
                self.passed += 1;
                self.small += u64::from(scenario.full && !full);
            }
            Some(first) => {
                self.failed += 1;
                self.failures.push((seed, first));
            }
        }
        self.operations += outcome.operations;
        self.faults.0 += outcome.totals.faults;
        self.faults.1 += outcome.totals.frame_faults;
        self.reconfigurations += outcome.reconfigurations;
        self.virtual_ns += outcome.virtual_ns;
        self.events += outcome.totals.events;
        self.trace ^= outcome.trace.0.rotate_left((seed % 64) as u32);
        for mark in outcome.marks.into_keys() {
            *self.marks.entry(mark).or_default() += 1;
        }
    }
}

/// Runs a scenario with every seed of the range; `tell` hears of each failure as it is found.
pub fn run_many(
    scenario: &Scenario,
    seeds: Range<u64>,
    threads: usize,
    mutant: Mutant,
    stop_at_first: bool,
    tell: &(dyn Fn(u64, &Outcome) + Sync),
) -> Sums {
    let next = AtomicU64::new(seeds.start);
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run_one(scenario, seed, mutant, None);
                    tell(seed, &outcome);
                    if stop_at_first && !outcome.failures.is_empty() {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                    sums.add(scenario, seed, outcome);
                }
            });
        }
    });
    let mut sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    sums.failures.sort();
    sums
}

//! Selects the orders that are played. The seeds are fixed, so that every run is the same.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

const SEED: u64 = 0xA701;
/// The number of orders that each scheduler plays.
const ORDERS: usize = 5_000;
/// The number of places at which the second scheduler switches away from the running thread.
const CHANGES: usize = 3;

fn play(scheduler: impl Scheduler + 'static, told: FailurePersistence, scenario: fn()) {
    let mut config = Config::new();
    config.failure_persistence = told;
    Runner::new(scheduler, config).run(scenario);
}

/// Plays a scenario with two schedulers. The first one switches to a random thread at every place. The second one lets a thread
/// continue except at a few places, which finds bugs that need a rare order.
fn explore(told: fn() -> FailurePersistence, scenario: fn()) {
    play(RandomScheduler::new_from_seed(SEED, ORDERS), told(), scenario);
    play(PctScheduler::new_from_seed(SEED, CHANGES, ORDERS), told(), scenario);
}

/// Checks that a scenario succeeds in all orders that are played. If it fails, it prints its schedule, which `shuttle::replay` can
/// repeat.
pub(crate) fn holds(scenario: fn()) {
    explore(|| FailurePersistence::Print, scenario);
}

/// Checks that a scenario fails in one of the orders, with a message that contains `seen`.
pub(crate) fn catches(scenario: fn(), seen: &str) {
    let failed = catch_unwind(AssertUnwindSafe(|| explore(|| FailurePersistence::None, scenario)));
    let Err(why) = failed else { panic!("the bug is there and was not found") };
    let words = match (why.downcast_ref::<String>(), why.downcast_ref::<&str>()) {
        (Some(words), _) => words.as_str(),
        (_, Some(words)) => words,
        _ => "",
    };
    assert!(words.contains(seen), "it was to fail with {seen:?}, and failed with {words:?}");
}

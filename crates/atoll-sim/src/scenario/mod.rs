//! Scenarios: a cluster, a load, faults, and what must be true at the end. One run is one scenario with one seed.

mod clocks;
pub mod database;
mod directed;
mod file_registers;
mod lasting;
mod many;
mod marks;
mod movers;
mod native;
pub mod nemesis;
pub mod node;
pub mod parts;
pub mod phases;
mod registers;
pub mod replicas;
mod seals;
mod stores;
mod tables;
pub mod upgrade;
mod virtuallog;
pub mod walls;
mod zookeeper;

use std::collections::BTreeMap;
use std::io::Write;

use crate::scenario::phases::Size;
use crate::world::Totals;

/// Where a run writes its events as text.
pub type TraceOut = Option<Box<dyn Write + Send>>;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Violations; empty if it passed.
    pub failures: Vec<String>,
    /// Hash and number of events of the trace.
    pub trace: (u64, u64),
    /// What the world did.
    pub totals: Totals,
    /// How large it was.
    pub size: Size,
    /// Coverage marks.
    pub marks: BTreeMap<&'static str, u64>,
}

/// One kind of run.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(u64, TraceOut) -> Outcome,
    /// Marks that some seed of a run of hundreds must reach.
    pub marks: &'static [marks::Marks],
    /// Whether each of its seeds has the size that is promised for a seed (60 s, 1,000 acknowledged writes, 20 faults, 5
    /// reconfigurations); directed scenarios are small.
    pub full: bool,
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    vec![
        native::SCENARIO,
        registers::SCENARIO,
        virtuallog::VIRTUALLOG,
        virtuallog::LONG,
        virtuallog::CRASHES,
        virtuallog::DISKS,
        virtuallog::LOST_FILES,
        virtuallog::PUT_BACK,
        virtuallog::MEMBERSHIP,
        virtuallog::ALL,
        registers::LIVES,
        seals::NATIVE,
        seals::VIRTUALLOG,
        directed::LATE,
        directed::RETRIES,
        directed::SLEEPERS,
        directed::RULE_K,
        directed::LOCAL,
        file_registers::SCENARIO,
        directed::DELETED,
        lasting::LASTING,
        lasting::SLOW_LINKS,
        movers::MOVERS,
        many::MANY_LOGS,
        database::SCENARIO,
        stores::DATABASE,
        clocks::SCENARIO,
        stores::ZOOKEEPER,
        zookeeper::SCENARIO,
        tables::SCENARIO,
        upgrade::SCENARIO,
    ]
}

/// The scenario of a name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|s| s.name == name)
}

//! Scenarios: a cluster, a load, faults, and the conditions at the end. A run is one scenario with one seed.

mod backup;
mod cells;
mod chains;
mod clocks;
mod corfu;
pub mod database;
mod directed;
mod file_registers;
mod full_shards;
mod in_place;
mod in_place_crowd;
mod in_place_txn;
mod keyspace_moves;
mod keyspaces;
mod lasting;
mod leases;
mod many;
mod marks;
mod movers;
mod native;
pub mod nemesis;
pub mod node;
mod outside;
pub mod parts;
pub mod phases;
mod policies;
pub mod races;
mod registers;
mod replaced;
pub mod replicas;
mod scalog;
mod scalog_clocks;
mod seals;
mod slow_leaders;
mod stores;
mod striped;
mod surgery;
mod tables;
pub mod upgrade;
mod virtuallog;
pub mod walls;
mod zookeeper;

use std::collections::BTreeMap;
use std::io::Write;

use crate::scenario::phases::Size;
use crate::world::Totals;

/// Where a run writes its trace as text, if anywhere.
pub type TraceOut = Option<Box<dyn Write + Send>>;

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The violations. Empty if the run passed.
    pub failures: Vec<String>,
    /// Hash and number of events of the trace.
    pub trace: (u64, u64),
    /// Counts of what happened in the world.
    pub totals: Totals,
    /// The size of the run.
    pub size: Size,
    /// The coverage marks that the run reached, with counts.
    pub marks: BTreeMap<&'static str, u64>,
}

/// A kind of run.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(u64, TraceOut) -> Outcome,
    /// Marks that a run of at least [`crate::coverage::SEEDS`] seeds must reach.
    pub marks: &'static [marks::Marks],
    /// Whether each of its seeds must have the full size: 60 virtual seconds, 1,000 acknowledged writes, 20 faults and 5 reconfigurations.
    /// Directed scenarios are smaller.
    pub full: bool,
}

/// Returns all scenarios.
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
        directed::TRIO,
        cells::SCENARIO,
        striped::STRIPED,
        striped::IDLE,
        corfu::CORFU,
        corfu::DEAD,
        corfu::POSITIONS,
        scalog::SCALOG,
        scalog::DEAD,
        scalog::SHARDS,
        scalog_clocks::SCENARIO,
        full_shards::SCENARIO,
        outside::OBJECT,
        outside::LOG_SERVICE,
        outside::ZOOKEEPER,
        policies::SCENARIO,
        chains::SCENARIO,
        file_registers::SCENARIO,
        keyspaces::SCENARIO,
        keyspace_moves::SCENARIO,
        in_place::SCENARIO,
        in_place::RELAPSES,
        in_place_txn::SCENARIO,
        races::SCENARIO,
        in_place_txn::MOVES,
        in_place_crowd::SCENARIO,
        leases::SCENARIO,
        slow_leaders::SCENARIO,
        slow_leaders::VOTES,
        directed::DELETED,
        lasting::LASTING,
        lasting::SLOW_LINKS,
        movers::MOVERS,
        replaced::REMOVED,
        replaced::BROKEN_SEGMENTS,
        many::MANY_LOGS,
        database::SCENARIO,
        stores::DATABASE,
        backup::SCENARIO,
        surgery::SCENARIO,
        clocks::SCENARIO,
        stores::ZOOKEEPER,
        zookeeper::SCENARIO,
        tables::SCENARIO,
        upgrade::SCENARIO,
    ]
}

/// Returns the scenario with a name.
pub fn find(name: &str) -> Option<Scenario> {
    all().into_iter().find(|s| s.name == name)
}

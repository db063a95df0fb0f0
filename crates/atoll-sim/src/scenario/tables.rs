//! Tables on whole nodes: transactions and queries over a virtual log that is reconfigured repeatedly, while an index is added and dropped.

use std::time::Duration;

use atoll_core::testing::watch_applied;
use atoll_db::Engine;
use atoll_node::database::LOG;
use atoll_tables::Tables;

use crate::oracle::tables::TablesOracle;
use crate::rng::Rng;
use crate::scenario::database::Engines;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, Tenant, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log;
use crate::workload::tables::{self as load, Sea};
use crate::world::World;
use crate::world::observer::Who;

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "tables",
    about: "transactions, conditional writes and queries by index over a log that is reconfigured; an index comes and goes",
    run,
    marks: &[&[
        "db.refilled",
        "sim.tables.read_by_index",
        "sim.tables.repeated",
        "sim.tables.schema_changed",
        "sim.tables.sent_again",
    ]],
    full: true,
};

/// Runs tables on every node.
struct Shoal(Engines<Tables>);

impl Tenant for Shoal {
    type App = Tables;

    fn app(&mut self, _who: &Who) -> Tables {
        Tables::default()
    }

    fn opened(&mut self, who: &Who, _handles: &NodeHandles, engine: Engine<Tables>) {
        self.0.put(who.node, who.incarnation, engine);
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    watch_applied(true);
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7461_626c);
    let (members, weather) = place(&mut rng);
    let engines = Engines::default();
    let assembly = Replicas::new(members, Shoal(engines.clone()));
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    let stage: Stage<NodeHandles> = stage(&mut world);
    let sea = Sea { stage: stage.clone(), engines: engines.clone(), oracle: TablesOracle::default() };
    for _ in 0..3 + rng.below(3) {
        let think = Duration::from_millis(25 + rng.below(50));
        stage.spawn("tables.client", load::client(sea.clone(), think));
    }
    stage.spawn("tables.changes", load::changes(sea.clone()));
    let every = Duration::from_millis(1_500 + rng.below(4_000));
    stage.spawn("operator", log::operator(stage.clone(), LOG.to_owned(), every, 1));
    let menu = Menu::USUAL.some(&mut rng);
    let faults = Faults::usual(menu, Duration::from_millis(300 + rng.below(1500)));
    let outcome = play(&mut world, &stage, &mut rng, faults, load::demand(sea));
    engines.close();
    watch_applied(false);
    outcome
}

//! Surgery on the log of the database (virtuallog §7): commands stop replicas, and an operator cuts them out, while nodes are killed, cut
//! off or slowed at any moment, and stores are lost. Some nodes have a program with a bug: what stops them, others apply.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::NodeId;
use atoll_db::Engine;

use crate::oracle::histories::HistoriesOracle;
use crate::rng::Rng;
use crate::scenario::database::Engines;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Flag, Stage, play, stage};
use crate::scenario::replicas::{Replicas, Tenant, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::surgery::{Door, Programs, Ward, Wards};
use crate::world::World;
use crate::world::clients::Cluster;
use crate::world::observer::Who;

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(25);

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "surgery",
    about: "poison commands stop replicas, and an operator excises or replaces them under faults; all histories stay the same",
    run,
    marks: &[&[
        "db.apply.excised",
        "db.refill.fenced",
        "db.refill.surgery",
        "db.resumed",
        "db.surgery.done",
        "db.surgery.refused",
        "db.tailer.fenced",
        "sim.surgery.passed",
        "vlog.read.held",
        "vlog.read.patched",
        "vlog.surgery.held",
        "vlog.surgery.released",
    ]],
    full: false,
};

/// Runs wards on every node, with a door that reports to the oracle.
struct Hospital {
    engines: Engines<Wards>,
    oracle: HistoriesOracle,
    programs: Programs,
    /// Set before the nodes start.
    cluster: Arc<OnceLock<Cluster<NodeHandles>>>,
    rng: Rng,
    /// Raised when the load is over. From then on, every node starts with the right program.
    over: Flag,
}

impl Tenant for Hospital {
    type App = Wards;

    fn app(&mut self, who: &Who) -> Wards {
        let fixed = self.over.is_up() || self.programs.is_fixed(who.node) || self.rng.below(3) == 0;
        Wards { fixed }
    }

    fn opened(&mut self, who: &Who, _handles: &NodeHandles, engine: Engine<Wards>) {
        let Some(cluster) = self.cluster.get() else { return };
        let (node, life): (NodeId, _) = (who.node, who.incarnation);
        let door = Door { node, life, oracle: self.oracle.clone(), cluster: cluster.clone() };
        let below = engine.view_for_door().below();
        self.oracle.opened(node, life, below, &|node, life| door.is_up(node, life));
        engine.observe(Arc::new(door));
        self.engines.put(node, life, engine);
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0073_7572_6765_7279);
    let (_, weather) = place(&mut rng);
    let members = [3, 3, 5][rng.below(3) as usize];
    let (engines, oracle, programs) = (Engines::default(), HistoriesOracle::default(), Programs::default());
    let (cluster, over) = (Arc::new(OnceLock::new()), Flag::default());
    let hospital = Hospital {
        engines: engines.clone(),
        oracle: oracle.clone(),
        programs: programs.clone(),
        cluster: cluster.clone(),
        rng: rng.fork(),
        over: over.clone(),
    };
    let assembly = Replicas::new(members, hospital);
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    let _ = cluster.set(world.cluster());
    let mut stage: Stage<NodeHandles> = stage(&mut world);
    stage.over = over;
    let ward = Ward { stage: stage.clone(), engines: engines.clone(), oracle, programs };
    for _ in 0..2 {
        let think = Duration::from_millis(20 + rng.below(60));
        stage.spawn("writer", ward.clone().writer(think));
    }
    let every = Duration::from_millis(1_000 + rng.below(2_000));
    stage.spawn("planter", ward.clone().planter(every));
    for _ in 0..1 + rng.below(2) {
        let every = Duration::from_millis(100 + rng.below(500));
        stage.spawn("surgeon", ward.clone().surgeon(every));
    }
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(500 + rng.below(2_000)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let outcome = play(&mut world, &stage, &mut rng, faults, ward.demand());
    engines.close();
    outcome
}

//! The backup of the database on whole nodes: they ship into an object store that fails, while they die, lose their stores and hand the
//! work to each other. Backups are restored meanwhile and at the end, and each restored state is compared with what the replicas had there.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_node::database::LOG;
use atoll_object::testing::Memory;

use crate::oracle::database::DatabaseOracle;
use crate::rng::Rng;
use crate::scenario::database::{Cellular, Engines};
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::backup::{Keeper, Terms};
use crate::workload::{database as load, log};
use crate::world::World;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "backup",
    about: "nodes back the database up into an object store that fails, and die; every restored moment is what the replicas had there",
    run,
    marks: &[&[
        "backup.gap",
        "backup.snapshot",
        "backup.trouble",
        "object.store.away",
        "object.store.cut_off",
        "object.store.lag",
        "object.store.wrong",
        "sim.backup.restored_at_position",
        "sim.backup.restored_at_time",
        "sim.backup.restored_under_faults",
        "sim.backup.several_snapshots",
    ]],
    full: false,
};

/// Length of the phase under faults: several snapshots are taken.
const DURING: Duration = Duration::from_secs(35);
/// What the store does to requests, as settings of its way, and how many of a thousand.
const FAULTS: [&str; 5] = ["store_lost", "store_unanswered", "store_late", "store_conflicts", "store_wrong"];
/// How many of a thousand looks show what held before, as lists of some stores do.
const LOOKS_LAG: &str = "store_lag";
/// How long half of the nodes cannot reach it, and how long nobody can.
const WINDOWS: [&str; 2] = ["store_cut_window_ms", "store_away_window_ms"];

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0062_6163_6b75_7021);
    let (members, weather) = place(&mut rng);
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let cells = Cellular { engines: engines.clone(), oracle: oracle.clone(), cluster: cluster.clone() };
    let mut assembly = Replicas::new(members, cells);
    let store = Memory::default();
    store.faults.set_one("store_delay_us", [100, 1_000, 5_000][rng.below(3) as usize]);
    for fault in FAULTS {
        store.faults.set_one(fault, [0, 5, 30][rng.below(3) as usize]);
    }
    // Drawn apart, so that seeds without it do what they did before there was this fault.
    let lags = Rng::new(seed ^ 0x6c61_6773).below(3) as usize;
    store.faults.set_one(LOOKS_LAG, [0, 100, 700][lags]);
    for window in WINDOWS {
        store.faults.set_one(window, [0, 500, 3_000][rng.below(3) as usize]);
    }
    assembly.backups = Some(store.clone());
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    let _ = cluster.set(world.cluster());
    let stage: Stage<NodeHandles> = stage(&mut world);
    let terms = Terms {
        every: Duration::from_millis([100, 300, 1_000][rng.below(3) as usize]),
        snapshots: Duration::from_millis([1, 5_000, 15_000][rng.below(3) as usize]),
        // In some seeds, older snapshots are deleted, or the log does not wait for the backup.
        keep: [None, None, Some(Duration::from_secs(5))][rng.below(3) as usize],
        hold: [10_000_000, 10_000_000, 20][rng.below(3) as usize],
    };
    let keeper = Keeper::new(stage.clone(), oracle.clone(), store.clone(), terms);
    for _ in 0..2 {
        let think = Duration::from_millis(40 + rng.below(60));
        stage.spawn("writer", load::writer(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    let every = Duration::from_millis(3_000 + rng.below(4_000));
    stage.spawn("operator", log::operator(stage.clone(), LOG.to_owned(), every, 1));
    stage.spawn("backup", keeper.clone().start());
    stage.spawn("restorer", keeper.clone().restore_meanwhile(Duration::from_secs(3)));
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(1_000 + rng.below(3_000)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = {
        let (stage, engines, oracle) = (stage.clone(), engines.clone(), oracle.clone());
        async move {
            FAULTS.into_iter().chain(WINDOWS).chain([LOOKS_LAG]).for_each(|fault| {
                store.faults.set_one(fault, 0);
            });
            load::demand(stage, engines, oracle).await;
            keeper.demand().await;
        }
    };
    let mut outcome = play(&mut world, &stage, &mut rng, faults, demand);
    engines.close();
    outcome.size.answered += oracle.answered();
    outcome
}

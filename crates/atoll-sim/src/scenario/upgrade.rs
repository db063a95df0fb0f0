//! Rolling upgrades: under load and faults, nodes are restarted one after the other with a program one feature level ahead, and back. Then
//! the level is raised. No replica may stop applying, and all states must be equal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Level, LevelRange};

use crate::oracle::database::DatabaseOracle;
use crate::rng::Rng;
use crate::scenario::database::{Cellular, Engines};
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, place};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::database::{self as load, Cells, engine_of};
use crate::workload::log;
use crate::world::World;
use crate::world::fault::{Death, Fault};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "upgrade",
    about: "nodes change to a program one feature level ahead, back and forward, and the level is raised, under load and faults",
    run,
    marks: &[&[
        "db.refilled",
        "levels.founded",
        "levels.raised",
        "sim.upgrade.mixed_raise_refused",
        "sim.upgrade.old_refused",
        "sim.upgrade.rolled_back",
    ]],
    full: false,
};

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(25);
/// The current program.
const OLD: LevelRange = LevelRange { lowest: Level::FIRST, highest: Level::CURRENT };
/// The next program.
const NEW: LevelRange = LevelRange { lowest: Level::FIRST, highest: Level::NEXT };

/// The program with which each host starts. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Programs(Arc<Mutex<BTreeMap<usize, LevelRange>>>);

impl Programs {
    /// Returns the levels that the program of a host can read at its next start.
    pub fn of(&self, host: usize) -> LevelRange {
        let programs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        programs.get(&host).copied().unwrap_or(LevelRange::OURS)
    }

    /// Replaces the program of a host from its next start on.
    pub fn put(&self, host: usize, reads: LevelRange) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(host, reads);
    }
}

#[derive(Clone)]
struct Fleet {
    stage: Stage<NodeHandles>,
    engines: Engines<Cells>,
    programs: Programs,
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7570_6772);
    let (members, weather) = place(&mut rng);
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let cells = Cellular { engines: engines.clone(), oracle: oracle.clone(), cluster: cluster.clone() };
    let programs = Programs::default();
    (0..members).for_each(|host| programs.put(host, OLD));
    let assembly = Replicas::new(members, cells).with_programs(programs.clone());
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    // This must happen before the nodes start, because their doors report violations there.
    let _ = cluster.set(world.cluster());
    let stage: Stage<NodeHandles> = stage(&mut world);
    let fleet = Fleet { stage: stage.clone(), engines: engines.clone(), programs };
    for _ in 0..2 + rng.below(2) {
        let think = Duration::from_millis(30 + rng.below(60));
        stage.spawn("writer", load::writer(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    let think = Duration::from_millis(100);
    stage.spawn("reader", load::reader(stage.clone(), engines.clone(), oracle.clone(), think));
    let every = Duration::from_millis(2_500 + rng.below(3_000));
    stage.spawn("operator", log::operator(stage.clone(), atoll_node::database::LOG.to_owned(), every, 1));
    stage.spawn("upgrader", upgrader(fleet.clone()));
    stage.spawn("doctor", doctor(fleet.clone()));
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(400 + rng.below(1500)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = demand(fleet, oracle.clone());
    let mut outcome = play(&mut world, &stage, &mut rng, faults, demand);
    engines.close();
    outcome.size.answered += oracle.answered();
    outcome
}

impl Fleet {
    fn hosts(&self) -> std::ops::Range<usize> {
        0..self.stage.cluster.hosts()
    }

    /// Kills a node and restarts it with this program.
    fn restart(&self, host: usize, reads: LevelRange) {
        self.programs.put(host, reads);
        let back_after = Some(1_000_000 + self.stage.below(200_000_000));
        self.stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
    }

    /// Restarts a share of the nodes with this program, one after the other. Does not wait for them to be up.
    async fn roll(&self, reads: LevelRange, share_permille: u64) {
        for host in self.hosts() {
            if self.stage.below(1000) < share_permille && self.programs.of(host) != reads {
                self.restart(host, reads);
                self.stage.pause(Duration::from_millis(900)).await;
            }
        }
    }

    /// Asks a random node to raise the level, and waits a few seconds. Fails the run if the level rises while some host has a program that
    /// cannot read it.
    async fn raise(&self) -> Option<Level> {
        let life = self.stage.cluster.any_from(self.stage.below(64) as usize)?;
        let mixed = self.hosts().any(|host| self.programs.of(host) == OLD);
        let upgrades = life.handles.0.upgrades.clone();
        let raised = life.env.launch("sim.raise", async move { upgrades.raise(None).await });
        let asked = self.stage.cluster.ask(&life, raised);
        let report = self.stage.env.within(Duration::from_secs(3), asked).await.ok()??.ok()?.ok()?;
        let active = report.table.active;
        if mixed && active >= Level::NEXT {
            self.stage.cluster.fail(format!("UPGRADE: raised to {active} over a program that reads {OLD}"));
        } else if mixed {
            hit("sim.upgrade.mixed_raise_refused");
        }
        Some(active)
    }

    /// Checks that no replica of a running node has stopped applying.
    fn look(&self) {
        for host in self.hosts() {
            let Some(life) = self.stage.cluster.host(host) else { continue };
            let halted = engine_of(&life, &self.engines).and_then(|engine| engine.halted());
            if let Some(halt) = halted {
                self.stage.cluster.fail(format!("UPGRADE: the replica of host {host} has stopped: {halt}"));
            }
        }
    }
}

/// Checks all replicas repeatedly.
async fn doctor(fleet: Fleet) {
    while !fleet.stage.over.is_up() {
        fleet.look();
        fleet.stage.pause(Duration::from_millis(200)).await;
    }
}

/// Upgrades, rolls back and upgrades again. Between these steps, some nodes run the old program and some the new one.
async fn upgrader(fleet: Fleet) {
    fleet.stage.pause(Duration::from_secs(3)).await;
    fleet.roll(NEW, 700).await;
    let _ = fleet.raise().await;
    fleet.stage.pause(Duration::from_secs(2)).await;
    // Roll all nodes back. If the level was raised because all of them ran the new program, they are refused until the new program returns.
    fleet.roll(OLD, 1000).await;
    hit("sim.upgrade.rolled_back");
    let _ = fleet.raise().await;
    fleet.stage.pause(Duration::from_secs(2)).await;
    // The only node of a cluster must return to a program that is not refused. Otherwise nothing is written until the end of the load.
    let share_permille = if fleet.hosts().len() == 1 { 1000 } else { 500 };
    fleet.roll(NEW, share_permille).await;
}

/// Demands that all nodes run the new program, that the level is raised, and that the old program is refused. Then all nodes must make
/// progress and have the same state.
async fn demand(fleet: Fleet, oracle: DatabaseOracle) {
    let stage = &fleet.stage;
    fleet.roll(NEW, 1000).await;
    stage.waits_for("the level to be raised".to_owned());
    while fleet.raise().await != Some(Level::NEXT) {
        fleet.look();
        stage.pause(Duration::from_millis(100)).await;
    }
    for host in fleet.hosts() {
        stage.waits_for(format!("host {host} to learn of the level"));
        while stage.cluster.host(host).is_none_or(|life| life.env.levels().active() < Level::NEXT) {
            stage.pause(Duration::from_millis(50)).await;
        }
    }
    let host = stage.below(fleet.hosts().len() as u64) as usize;
    if fleet.hosts().len() > 1 {
        stage.waits_for(format!("the old program to be refused on host {host}"));
        fleet.restart(host, OLD);
        let is_refused = || {
            let by_its_disk = stage.cluster.health(host).refused.is_some();
            let life = stage.cluster.host(host);
            by_its_disk || life.is_some_and(|life| life.handles.0.upgrades.refused().is_some())
        };
        while !is_refused() {
            fleet.look();
            stage.pause(Duration::from_millis(20)).await;
        }
        hit("sim.upgrade.old_refused");
        fleet.restart(host, NEW);
        while stage.cluster.host(host).is_none_or(|life| life.env.levels().reads() != NEW) {
            stage.cluster.inject(Fault::Boot { host });
            stage.pause(Duration::from_millis(50)).await;
        }
    }
    fleet.look();
    load::demand(fleet.stage.clone(), fleet.engines.clone(), oracle).await;
    fleet.look();
}

//! Directed: the clocks of single nodes are set far ahead or behind, one at a time, while the others are right. The log's time must follow
//! the right clocks, and their nodes must continue. The wrong node must continue once its clock is right again.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_db::{Engine, Options, OutOfService};

use crate::oracle::database::DatabaseOracle;
use crate::rng::Rng;
use crate::scenario::database::{Cellular, Engines};
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::replicas::{Replicas, place};
use crate::scenario::walls::{USUALLY_WRONG_MS, Walls};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::database::{self as load, Cells};
use crate::world::World;
use crate::world::fault::{Death, Fault};

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(40);
/// How long a clock is wrong.
const WRONG: Duration = Duration::from_secs(4);
/// Within this time, a node must notice that its clock is wrong, or right again, and the other nodes must make progress.
const SOON: Duration = Duration::from_secs(3);
/// The oracle knows the time of the clients' last turn, which is older than the nodes' time by at most this much.
const TURN_MS: u64 = 1_000;
/// While writes continue, the log's time is behind the true time by less than this, because the writes come from nodes whose clocks are
/// about right.
const BEHIND_MS: u64 = 10_000;
const DAY_MS: i64 = 86_400_000;

/// The scenario of a database.
pub const SCENARIO: Scenario = Scenario {
    name: "database-clocks",
    about: "directed: the clock of one node is far ahead or behind; the log's time stays right, and the others continue",
    run,
    marks: &[&[
        "db.clock.ahead",
        "sim.clocks.ahead",
        "sim.clocks.behind",
        "sim.clocks.started_wrong",
        "sim.clocks.refused",
        "sim.clocks.taken_again",
    ]],
    full: false,
};

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x636c_6f63_6b73);
    let (_, weather) = place(&mut rng);
    let members = [3, 3, 5][rng.below(3) as usize];
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let cells = Cellular { engines: engines.clone(), oracle: oracle.clone(), cluster: cluster.clone() };
    let assembly = Replicas::new(members, cells);
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    let _ = cluster.set(world.cluster());
    walls.follow(world.clients());
    let allowed_ms = Options::default().clock_ahead_at_most.as_millis() as u64;
    let truth = walls.clone();
    // A proposer compares its clock with other clocks, and both it and they may have the usual error.
    let most_ms = allowed_ms + 2 * USUALLY_WRONG_MS + TURN_MS;
    oracle.bound_time(Arc::new(move || truth.truth_ms() + most_ms));
    let stage: Stage<NodeHandles> = stage(&mut world);
    for _ in 0..3 {
        let think = Duration::from_millis(30 + rng.below(60));
        stage.spawn("writer", load::writer(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    let reader = load::reader(stage.clone(), engines.clone(), oracle.clone(), Duration::from_millis(100));
    stage.spawn("reader", reader);
    let clockmaker =
        Clockmaker { stage: stage.clone(), engines: engines.clone(), oracle: oracle.clone(), walls };
    stage.spawn("clocks", clockmaker.run());
    let menu = Menu { reset: 1, ..Menu::NONE };
    let faults = Faults {
        menu,
        every: Duration::from_millis(2_000),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = load::demand(stage.clone(), engines.clone(), oracle.clone());
    let mut outcome = play(&mut world, &stage, &mut rng, faults, demand);
    engines.close();
    outcome.size.answered += oracle.answered();
    outcome
}

/// Sets one clock wrong after the other.
struct Clockmaker {
    stage: Stage<NodeHandles>,
    engines: Engines<Cells>,
    oracle: DatabaseOracle,
    walls: Walls,
}

impl Clockmaker {
    async fn run(self) {
        self.stage.pause(Duration::from_secs(3)).await;
        while !self.stage.over.is_up() {
            let host = self.stage.below(self.stage.cluster.hosts() as u64) as usize;
            let ahead = self.stage.below(3) > 0;
            let by_ms = match self.stage.below(3) {
                0 => DAY_MS * 365 * 73,
                1 => DAY_MS * 2,
                _ => DAY_MS / 24,
            };
            hit(if ahead { "sim.clocks.ahead" } else { "sim.clocks.behind" });
            self.one_is_wrong(host, if ahead { by_ms } else { -by_ms }).await;
            self.stage.pause(Duration::from_secs(1)).await;
        }
    }

    fn engine(&self, host: usize) -> Option<Engine<Cells>> {
        let life = self.stage.cluster.host(host)?;
        self.engines.get(NodeId(host as u32 + 1), life.env.incarnation())
    }

    fn is_refused(&self, host: usize) -> bool {
        let why = self.engine(host).and_then(|engine| engine.out_of_service());
        matches!(why, Some(OutOfService::ClockAhead(_)))
    }

    async fn one_is_wrong(&self, host: usize, by_ms: i64) {
        let node = NodeId(host as u32 + 1);
        self.walls.set(node, by_ms);
        if self.stage.below(3) == 0 {
            hit("sim.clocks.started_wrong");
            let back_after = Some(self.stage.below(500_000_000));
            self.stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        }
        self.stage.pause(WRONG).await;
        let before = self.oracle.writes();
        self.stage.pause(SOON).await;
        // Writers end with the load, so then nothing can be checked.
        let judged = !self.stage.over.is_up();
        if judged && self.oracle.writes() == before {
            self.fail(format!(
                "nothing was written in {SOON:?} while the clock of host {host} is wrong by {by_ms} ms"
            ));
        }
        let (log_ms, truth_ms) = (self.oracle.time_ms(), self.walls.truth_ms());
        if judged && log_ms + BEHIND_MS < truth_ms {
            self.fail(format!("the log's time is {log_ms} ms at {truth_ms} ms: it stands still"));
        }
        if by_ms > 0 && self.is_refused(host) {
            hit("sim.clocks.refused");
        }
        self.others_are_taken(host);
        self.walls.set(node, 0);
        let taken = async {
            while self.engine(host).is_none() || self.is_refused(host) {
                self.stage.pause(Duration::from_millis(50)).await;
            }
        };
        match self.stage.env.within(SOON, taken).await {
            Ok(()) => hit("sim.clocks.taken_again"),
            Err(_) => self.fail(format!("host {host} is refused for {SOON:?} since its clock is right")),
        }
    }

    fn others_are_taken(&self, wrong: usize) {
        for host in (0..self.stage.cluster.hosts()).filter(|host| *host != wrong) {
            if self.is_refused(host) {
                self.fail(format!(
                    "the clock of host {host} is right and refused, that of host {wrong} is wrong"
                ));
            }
        }
    }

    fn fail(&self, what: String) {
        self.stage.cluster.fail(format!("CLOCKS: {what}"));
    }
}

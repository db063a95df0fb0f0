//! Chains that move between the cluster and two stores outside of it, on whole nodes: under load and reconfigurations, while nodes die, and
//! while each store is slow, loses requests and answers, is away, or cannot be reached from some of the nodes.

use std::time::Duration;

use atoll_core::testing::hit;
use atoll_node::places::HOME_NAME;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::elsewhere::{PLACES, StoreFaults, Stores};
use crate::workload::log::{self as load, live};
use crate::world::World;

/// Chains that move.
pub const SCENARIO: Scenario = Scenario {
    name: "chains",
    about: "chains move between the cluster and two stores while their logs are used and reconfigured; nodes die, and the stores fail",
    run,
    marks: &[
        &["sim.chains.moved", "registers.arrived", "registers.write_meets_move", "registers.store_silent"],
        &["sim.elsewhere.lost", "sim.elsewhere.unanswered", "sim.elsewhere.late", "sim.elsewhere.cut_off"],
    ],
    full: true,
};

const LOGS: [&str; 2] = ["log0", "log1"];
/// Once all is healed, a chain has moved home within this time.
const HOME_WITHIN: Duration = Duration::from_secs(20);

/// Starts the clients and the operators.
fn people(stage: &Stage<NodeHandles>, rng: &mut Rng) {
    let moves = Duration::from_millis(200 + rng.below(3_000));
    let changes = Duration::from_millis(500 + rng.below(3_000));
    let appenders = 1 + rng.below(3);
    let all = stage.clone();
    let stage = stage.clone();
    all.spawn("people", async move {
        for name in LOGS {
            load::create(&stage, name).await;
            let name = || name.to_owned();
            for _ in 0..appenders {
                stage.spawn("appender", load::appender(stage.clone(), name(), Duration::from_millis(60)));
            }
            stage.spawn("checker", load::checker(stage.clone(), name(), Duration::from_millis(150)));
            stage.spawn("reader", load::reader(stage.clone(), name(), Duration::from_millis(100)));
            stage.spawn("operator", load::operator(stage.clone(), name(), changes, 3));
            stage.spawn("trimmer", load::trimmer(stage.clone(), name(), Duration::from_secs(4)));
            // Two of them, so that moves meet.
            for _ in 0..2 {
                stage.spawn("mover", mover(stage.clone(), name(), moves));
            }
        }
    });
}

/// Moves a chain again and again, through any node. Most moves fail while a store or a node is away.
async fn mover(stage: Stage<NodeHandles>, name: String, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let to = [HOME_NAME, PLACES[0], PLACES[1]][stage.below(3) as usize];
        if move_once(&stage, &name, to).await {
            hit("sim.chains.moved");
        }
    }
}

/// Moves a chain through any node. Returns whether it is there.
async fn move_once(stage: &Stage<NodeHandles>, name: &str, to: &'static str) -> bool {
    let Some(life) = live(stage, stage.below(64) as usize) else { return false };
    let (places, name) = (life.handles.0.places.clone(), name.to_owned());
    let moved = life.handles.0.env.launch("mover", async move { places.move_chain(&name, to).await });
    matches!(stage.cluster.ask(&life, moved).await, Some(Ok(Ok(()))))
}

/// Lets the stores fail, each for some time, in another way each time.
async fn troubles(stage: Stage<NodeHandles>, stores: Stores, every: Duration) {
    loop {
        stage.pause(every).await;
        // Afterwards, everything is healed.
        if stage.over.is_up() {
            return;
        }
        let place = PLACES[stage.below(2) as usize];
        let mut faults = StoreFaults::default();
        match stage.below(6) {
            0 => faults.is_away = true,
            1 => faults.latency = Duration::from_millis(1 + stage.below(1_500)),
            2 => faults.cut_off = (0..stage.cluster.hosts()).filter(|_| stage.below(2) == 0).collect(),
            3 => (faults.lost, faults.unanswered, faults.late) = (5, 20, 5),
            _ => {}
        }
        stores.set(place, faults);
    }
}

/// Moves all chains home, which must succeed once all is healed.
async fn come_home(stage: &Stage<NodeHandles>) {
    for name in LOGS {
        stage.waits_for(format!("the chain of {name} to come home"));
        let until = stage.env.now().after(HOME_WITHIN);
        while !move_once(stage, name, HOME_NAME).await {
            if stage.env.now() > until {
                stage
                    .cluster
                    .fail(format!("the chain of {name} is not at home {HOME_WITHIN:?} after all was healed"));
                return;
            }
            stage.pause(Duration::from_millis(100)).await;
        }
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6368_6169_6e73);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let (weather, mut assembly) = nodes(&mut rng, hosts);
    let stores = Stores::default();
    assembly.options.places = stores.urls();
    assembly.options.protocols = assembly.options.protocols.clone().with(stores.clone());
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    stores.watch(&stage);
    people(&stage, &mut rng);
    let every = Duration::from_millis(500 + rng.below(2_000));
    stage.spawn("troubles", troubles(stage.clone(), stores.clone(), every));
    let menu = Menu::USUAL.some(&mut rng);
    let faults = Faults::usual(menu, Duration::from_millis(500 + rng.below(1_500)));
    // In some seeds, the demands are made of logs whose chains are elsewhere.
    let first_home = rng.below(2) == 0;
    let demand = {
        let (stage, stores) = (stage.clone(), stores.clone());
        async move {
            PLACES.into_iter().for_each(|place| stores.set(place, StoreFaults::default()));
            if first_home {
                come_home(&stage).await;
            }
            load::demand(stage.clone(), LOGS.map(str::to_owned).to_vec()).await;
            come_home(&stage).await;
        }
    };
    let outcome = play(&mut world, &stage, &mut rng, faults, demand);
    stores.unwatch();
    outcome
}

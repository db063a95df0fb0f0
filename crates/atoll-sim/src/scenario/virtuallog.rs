//! Several virtual logs on whole nodes, with reconfigurations all the time.

use std::time::Duration;

use atoll_node::assembly::Options;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Faults, SAFETY, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log as load;
use crate::world::{Weather, World};

/// See the module's words.
pub const VIRTUALLOG: Scenario = Scenario {
    name: "virtuallog",
    about: "several logs, pipelined appenders, readers, trims; extends, truncates, rebuilds; nodes die in the middle",
    run: |seed, out| run(seed, out, 0x76_6c6f67, Menu::USUAL),
    marks: &[],
    full: true,
};

/// All nodes lose power at once, again and again.
pub const CRASHES: Scenario = Scenario {
    name: "crashes",
    about: "power cuts of all nodes at one instant, kills, torn writes; nothing else",
    run: |seed, out| run(seed, out, 0x63_72617368, CRASH_MENU),
    marks: &[],
    full: true,
};

const CRASH_MENU: Menu = Menu {
    crash: 6,
    crash_all: 4,
    crash_mid_turn: 4,
    pause: 0,
    split: 0,
    one_way: 0,
    reset: 0,
    mood: 0,
    slow_disk: 1,
    full_disk: 0,
    failing_disk: 0,
    rot: 0,
    wipe: 0,
};

fn run(seed: u64, out: TraceOut, salt: u64, menu: Menu) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt);
    let hosts = [1, 3, 3, 4, 5][rng.below(5) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let mut options = Options::default();
    // Most of a run's events would be heartbeats; detection stays well below the length of the faults.
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let assembly = Nodes { members: hosts, founders: hosts.min(3), options, starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let names: Vec<String> = (0..1 + rng.below(2)).map(|n| format!("log{n}")).collect();
    for name in &names {
        people(&stage, &mut rng, name);
    }
    let menu = menu.some(&mut rng);
    let every = Duration::from_millis(300 + rng.below(1500));
    let demand = load::demand(stage.clone(), names);
    play(&mut world, &stage, &mut rng, Faults { menu, every, during: SAFETY }, demand)
}

/// Everybody who uses one log.
fn people(stage: &Stage<NodeHandles>, rng: &mut Rng, name: &str) {
    let appenders = 1 + rng.below(3);
    let reconfigure = Duration::from_millis(1_500 + rng.below(4_000));
    let (stage, name) = (stage.clone(), name.to_owned());
    let trims = rng.below(2) == 0;
    let all = stage.clone();
    all.spawn("people", async move {
        load::create(&stage, &name).await;
        for _ in 0..appenders {
            let think = Duration::from_millis(220 * appenders);
            stage.spawn("appender", load::appender(stage.clone(), name.clone(), think));
        }
        stage.spawn("checker", load::checker(stage.clone(), name.clone(), Duration::from_millis(300)));
        stage.spawn("reader", load::reader(stage.clone(), name.clone(), Duration::from_millis(100)));
        stage.spawn("operator", load::operator(stage.clone(), name.clone(), reconfigure));
        if trims {
            stage.spawn("trimmer", load::trimmer(stage.clone(), name.clone(), Duration::from_secs(4)));
        }
    });
}

//! Directed: seals race appends on a network that holds up single directions for short moments. Entries reach one server long before the
//! others, and sealers find different majorities. Servers that missed a seal are repaired after the next segment is installed
//! (native-T1–native-T3, native-T5, native-T19; vlog-V1, vlog-V3, vlog-V4).

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::{NodeId, StorageId};
use atoll_native::NativeOptions;
use atoll_node::assembly::Options;
use atoll_rmwpaxos::{GroupConfig, Member, Options as RmwOptions};

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::Nodes;
use crate::scenario::parts::Parts;
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut, marks};
use crate::workload::{log, native};
use crate::world::{Weather, World};

/// With native Loglets and no virtual log.
pub const NATIVE: Scenario = Scenario {
    name: "native-seals",
    about: "directed: seals race appends of bare loglets; entries on few servers, different majorities, late repairs",
    run: run_native,
    marks: marks::NATIVE_SEALS,
    full: false,
};

/// With a virtual log.
pub const VIRTUALLOG: Scenario = Scenario {
    name: "vlog-seals",
    about: "directed: extends race appends and checks; stale clients meet sealed tails that grow",
    run: run_virtuallog,
    marks: marks::VLOG_SEALS,
    full: false,
};

const NOTHING: Menu = Menu { pause: 1, reset: 4, slow_disk: 2, ..Menu::NONE };

fn faults(rng: &mut Rng, hosts: usize) -> Faults {
    Faults {
        during: Duration::from_secs(15),
        nervous: hosts + rng.below(2 * hosts as u64) as usize,
        ..Faults::usual(NOTHING, Duration::from_millis(1_500))
    }
}

fn weather(rng: &mut Rng) -> Weather {
    Weather {
        latency_ns: 100_000,
        sync_ns: [100_000, 2_000_000][rng.below(2) as usize],
        ..Weather::default()
    }
}

fn run_native(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x006e_7365_616c);
    let hosts = [3, 3, 4, 5, 5][rng.below(5) as usize];
    let weather = weather(&mut rng);
    let Ok(group) = GroupConfig::new(1, vec![Member { node: NodeId(1), storage: StorageId(1) }]) else {
        return Outcome::default();
    };
    let assembly = Parts { group, hosts, rmw: RmwOptions::default(), native: NativeOptions::default() };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let islands = native::Islands::default();
    let every = Duration::from_millis(100 + rng.below(400));
    {
        let (stage, islands) = (stage.clone(), islands.clone());
        stage.clone().spawn("people", async move {
            while !native::make(&stage, &islands, LogletSpec::default()).await {
                stage.pause(Duration::from_millis(5)).await;
            }
            for _ in 0..3 {
                let think = Duration::from_millis(5);
                stage.spawn("appender", native::appender(stage.clone(), islands.clone(), think));
            }
            for _ in 0..4 {
                let think = Duration::from_millis(25);
                stage.spawn("checker", native::checker(stage.clone(), islands.clone(), think));
            }
            let think = Duration::from_millis(50);
            stage.spawn("reader", native::reader(stage.clone(), islands.clone(), think));
            stage.spawn("sealer", native::sealer(stage.clone(), islands.clone(), every));
        });
    }
    let faults = faults(&mut rng, hosts);
    let demand = native::demand(stage.clone(), islands);
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn run_virtuallog(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0076_7365_616c);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let weather = weather(&mut rng);
    let mut options = Options::default();
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let assembly = Nodes { members: hosts, founders: 3, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let every = Duration::from_millis(60 + rng.below(300));
    {
        let stage = stage.clone();
        stage.clone().spawn("people", async move {
            let name = "log0".to_owned();
            log::create(&stage, &name).await;
            for _ in 0..3 {
                let think = Duration::from_millis(5);
                stage.spawn("appender", log::appender(stage.clone(), name.clone(), think));
            }
            for _ in 0..3 {
                let think = Duration::from_millis(15);
                stage.spawn("checker", log::checker(stage.clone(), name.clone(), think));
            }
            let think = Duration::from_millis(20);
            stage.spawn("reader", log::reader(stage.clone(), name.clone(), think));
            for _ in 0..2 {
                stage.spawn("extender", log::extender(stage.clone(), name.clone(), every));
            }
        });
    }
    let faults = faults(&mut rng, hosts);
    let demand = log::demand(stage.clone(), vec!["log0".to_owned()]);
    play(&mut world, &stage, &mut rng, faults, demand)
}

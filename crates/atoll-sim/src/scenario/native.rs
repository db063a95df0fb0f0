//! Native Loglets without a virtual log, one after the other, under faults.

use std::time::Duration;

use atoll_contract::LogletSpec;
use atoll_core::{NodeId, StorageId};
use atoll_native::NativeOptions;
use atoll_rmwpaxos::{GroupConfig, Member, Options};

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::Parts;
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut, marks};
use crate::workload::native as load;
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "native",
    about: "bare NativeLoglets: appends, checks, reads, trims; seals by sealers that die; deletions; sleepers",
    run,
    marks: marks::NATIVE,
    full: true,
};

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6e61_7469_7665);
    let hosts = [1, 3, 3, 4, 5, 6][rng.below(6) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 500_000, 3_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let group = GroupConfig::new(1, vec![Member { node: NodeId(1), storage: StorageId(1) }]);
    let Ok(group) = group else { return Outcome::default() };
    let assembly = Parts { group, hosts, rmw: Options::default(), native: NativeOptions::default() };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let islands = load::Islands::default();
    let appenders = 1 + rng.below(4);
    let every = Duration::from_millis(500 + rng.below(4_000));
    {
        let (stage, islands) = (stage.clone(), islands.clone());
        let all = stage.clone();
        all.spawn("people", async move {
            while !load::make(&stage, &islands, LogletSpec::default()).await {
                stage.pause(Duration::from_millis(50)).await;
            }
            for _ in 0..appenders {
                let think = Duration::from_millis(60 * appenders);
                stage.spawn("appender", load::appender(stage.clone(), islands.clone(), think));
            }
            for _ in 0..2 {
                let think = Duration::from_millis(200);
                stage.spawn("checker", load::checker(stage.clone(), islands.clone(), think));
            }
            let think = Duration::from_millis(150);
            stage.spawn("reader", load::reader(stage.clone(), islands.clone(), think));
            stage.spawn("operator", load::operator(stage.clone(), islands.clone(), every));
            stage.spawn("sleeper", load::sleeper(stage.clone(), islands.clone()));
        });
    }
    let menu = Menu::USUAL.some(&mut rng);
    let every = Duration::from_millis(200 + rng.below(1500));
    let demand = load::demand(stage.clone(), islands);
    play(&mut world, &stage, &mut rng, Faults::usual(menu, every), demand)
}

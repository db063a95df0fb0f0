//! Leases on keys of a keyspace under faults, with clocks that jump by hours.

use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::{NodeId, StorageId};
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::keyspaces::{Nodes, bizur};
use crate::scenario::nemesis::Menu;
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::Reef;
use crate::workload::leases::{self as load, Harbour};
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "keyspace-leases",
    about: "leases with fencing numbers: one holder, nothing expires early although clocks jump by hours, and each can be had at last",
    run,
    marks: &[&[
        "lease.expired",
        "lease.late_step",
        "lease.takes_over",
        "sim.fault.clock",
        "sim.leases.abandoned",
        "sim.leases.lost",
        "sim.leases.released",
        "sim.leases.renewed",
        "sim.leases.taken",
    ]],
    full: false,
};

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6c65_6173_6573);
    let hosts = [3, 3, 5][rng.below(3) as usize];
    let weather = Weather {
        latency_ns: [50_000, 300_000, 2_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 3_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let storages: Vec<u128> =
        (0..hosts).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let Ok(group) = GroupConfig::new(1, (0..hosts).map(named).collect()) else { return Outcome::default() };
    let assembly = Nodes { group, install: bizur(hosts) };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let spec = KeyspaceSpec {
        engine: atoll_bizur::ENGINE.to_owned(),
        durability: Durability::Disk,
        replicas: Some(3),
        shards: Some(1 + rng.below(3) as u32),
        buckets: Some([1, 4][rng.below(2) as usize]),
        ..KeyspaceSpec::default()
    };
    let harbour = Harbour::new(Reef::new(spec));
    let (clients, keys) = (3 + rng.below(5), 1 + rng.below(3));
    stage.spawn("operator", load::operator(stage.clone(), harbour.clone()));
    for number in 0..clients {
        stage.spawn("contender", load::contender(stage.clone(), harbour.clone(), 100 + number, keys));
    }
    stage.spawn("jumper", load::jumper(stage.clone()));
    let every = Duration::from_millis(300 + rng.below(1000));
    let faults = Faults {
        during: Duration::from_secs(20),
        nervous: rng.below(2) as usize,
        ..Faults::usual(Menu::USUAL.some(&mut rng), every)
    };
    let demand = load::demand(stage.clone(), harbour, keys);
    play(&mut world, &stage, &mut rng, faults, demand)
}

//! Keyspaces on Bizur that move under faults: to more, fewer and other nodes, one move before the last one has ended, by movers that die in
//! the middle. A host may lose its disk again and again; moves replace its replicas.

use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::{NodeId, StorageId};
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::keyspaces::{Nodes, bizur};
use crate::scenario::nemesis::Menu;
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{self as load, Reef};
use crate::workload::moves;
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "keyspaces-moves",
    about: "keyspaces on Bizur move to other nodes under faults: movers die, disks and memory are lost, replicas are replaced",
    run,
    marks: &[&[
        "bizur.client.follows",
        "bizur.leader.copied",
        "bizur.move.copied",
        "bizur.move.sealed",
        "bizur.replica.retires",
        "bizur.replica.sealed",
        "bizur.replica.seals",
        "sim.keyspace.move_completed",
        "sim.keyspace.moved",
        "sim.keyspace.moved_off",
        "sim.keyspace.mover_fails",
    ]],
    full: false,
};

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b76_6d6f_7665);
    let hosts = [4, 5, 6][rng.below(3) as usize];
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
    let in_memory = rng.below(4) == 0;
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_bizur::ENGINE.to_owned(),
        durability: if in_memory { Durability::Memory } else { Durability::Disk },
        replicas: Some(3),
        shards: Some(1 + rng.below(3) as u32),
        buckets: Some([1, 2, 40][rng.below(3) as usize]),
        ..KeyspaceSpec::default()
    })
    .that_moves(atoll_bizur::groups_of);
    let (clients, keys) = (2 + rng.below(6), 1 + rng.below(4));
    let think = Duration::from_millis(6 * clients);
    for number in 0..clients {
        stage.spawn("client", load::client(stage.clone(), reef.clone(), 100 + number, keys, think));
    }
    stage.spawn("watcher", load::watcher(stage.clone(), reef.clone(), keys));
    stage.spawn("operator", load::operator(stage.clone(), reef.clone()));
    stage.spawn("tender", moves::tender(stage.clone(), reef.clone()));
    // The acceptors of the registers do not move, so only one host may lose its disk, and no other may be dead at the end.
    let victim = rng.below(hosts as u64) as usize;
    let menu = match (in_memory, rng.below(2)) {
        // Each death costs a replica its memory.
        (true, _) => Menu { crash: 1, crash_all: 0, crash_mid_turn: 0, ..Menu::USUAL },
        (false, 0) => Menu { wipe: 2, rot: 1, ..Menu::USUAL },
        (false, _) => Menu::USUAL,
    };
    // A shard with a single replica does not outlive the disk of that one.
    let least = if menu.wipe + menu.rot > 0 { 3 } else { 1 };
    stage.spawn("mover", moves::mover(stage.clone(), reef.clone(), least));
    let every = Duration::from_millis(200 + rng.below(1000));
    let dead = if rng.below(2) == 0 { vec![victim] } else { Vec::new() };
    let faults = Faults {
        during: Duration::from_secs(20),
        nervous: rng.below(3) as usize,
        may_lose: Box::new(move |host| host == victim),
        ..Faults::usual(menu.some(&mut rng), every)
    };
    let demand = moves::demand(stage.clone(), reef, keys, dead);
    play(&mut world, &stage, &mut rng, faults, demand)
}

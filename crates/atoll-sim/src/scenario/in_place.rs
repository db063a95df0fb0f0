//! In-place keyspaces under faults, on disks and in memory: duels of proposers, tokens, repeats, forgotten deletions, lost disks.
//!
//! The clients and their oracle are those of the keyspaces on Bizur. The oracle of the protocol checks ballots and states on the wire.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::{Directory, NodeId, StorageId};
use atoll_in_place::{AcceptorOptions, InPlaceProvider, Options};
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::keyspaces::{Install, Nodes};
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::Everybody;
use crate::scenario::phases::{Faults, play, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{self as load, Reef};
use crate::workload::relapses;
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "in-place",
    about: "in-place keyspaces, on disks and in memory: duels, tokens, repeats, deleted keys, lost disks and memory, a dead minority",
    run,
    marks: &[&[
        "in-place.acceptor.duplicate_write",
        "in-place.acceptor.forgets",
        "in-place.acceptor.laggard_write",
        "in-place.acceptor.not_member",
        "in-place.read.establish",
        "in-place.write.incremental_disagrees",
        "in-place.write.nacked",
        "in-place.write.stale_token",
        "in-place.write.through",
        "in-place.write.timed_out",
        "in-place.write.token",
        "sim.keyspace.created_again",
        "sim.keyspace.dead_minority",
        "sim.keyspace.deleted",
        "sim.keyspace.says_lost",
    ]],
    full: false,
};

/// Draws the options of nodes. Some runs forget deleted keys soon, and some give up proposers that are not in use.
fn options(rng: &mut Rng) -> Options {
    Options {
        forget_after: Duration::from_millis([5, 100, 2_000][rng.below(3) as usize]),
        open_keys: [1, 2, 1_000][rng.below(3) as usize],
        reply_timeout: Duration::from_millis([40, 150][rng.below(2) as usize]),
        ..Options::default()
    }
}

/// Adds in-place keyspaces to a node of a cluster of `hosts` nodes.
pub(super) fn in_place(hosts: usize, options: Options) -> Install {
    Box::new(move |core, who| {
        let (env, directory) = (core.env(), Arc::new(Everybody(hosts)) as Arc<dyn Directory>);
        let acceptor = atoll_in_place::Acceptor::new(env.clone(), who.storage, AcceptorOptions::default());
        core.add_role(atoll_in_place::roles::ACCEPTOR, Box::new(acceptor));
        Arc::new(InPlaceProvider::new(env, directory, options))
    })
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x696e_706c);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let in_memory = rng.below(3) == 0;
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
    let install = in_place(hosts, options(&mut rng));
    let mut world = World::new(rng.bits(), hosts, weather, Nodes { group, install }, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_in_place::ENGINE.to_owned(),
        durability: if in_memory { Durability::Memory } else { Durability::Disk },
        replicas: Some(if hosts == 5 && rng.below(2) == 0 { 5 } else { 3 }),
        shards: Some(1 + rng.below(3) as u32),
        ..KeyspaceSpec::default()
    });
    let (clients, keys) = (2 + rng.below(6), 1 + rng.below(4));
    let think = Duration::from_millis(6 * clients);
    for number in 0..clients {
        stage.spawn("client", load::client(stage.clone(), reef.clone(), 100 + number, keys, think));
    }
    stage.spawn("operator", load::operator(stage.clone(), reef.clone()));
    // One host may lose its disk, again and again. Nothing moves replicas, so the others must keep theirs, and no other host may be
    // dead at the end.
    let victim = rng.below(hosts as u64) as usize;
    let menu = match (in_memory, rng.below(3)) {
        // Each death costs a replica its memory.
        (true, _) => Menu { crash: 2, crash_all: 0, crash_mid_turn: 1, ..Menu::USUAL },
        (false, 0) => Menu { rot: 3, wipe: 1, lost_files: 2, ..Menu::USUAL },
        (false, 1) => Menu { full_disk: 2, failing_disk: 3, ..Menu::USUAL },
        (false, _) => Menu::USUAL,
    };
    let dead = if rng.below(2) == 0 { vec![victim] } else { Vec::new() };
    let every = Duration::from_millis(200 + rng.below(1000));
    let faults = Faults {
        during: Duration::from_secs(20),
        nervous: rng.below(3) as usize,
        may_lose: Box::new(move |host| host == victim),
        ..Faults::usual(menu.some(&mut rng), every)
    };
    let demand = load::demand(stage.clone(), reef, keys, dead);
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Directed: nodes die between the promises and the votes for a new key, and write it again.
pub const RELAPSES: Scenario = Scenario {
    name: "in-place-relapses",
    about: "directed: nodes die between the promises and the votes for a new key in place, and then write it again",
    run: run_relapses,
    marks: &[&["sim.keyspace.relapse"]],
    full: false,
};

fn run_relapses(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7265_6c61);
    let hosts = [3, 5][rng.below(2) as usize];
    let weather = Weather {
        latency_ns: [50_000, 300_000][rng.below(2) as usize],
        sync_ns: [50_000, 200_000][rng.below(2) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let storages: Vec<u128> =
        (0..hosts).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let Ok(group) = GroupConfig::new(1, (0..hosts).map(named).collect()) else { return Outcome::default() };
    let assembly = Nodes { group, install: in_place(hosts, Options::default()) };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_in_place::ENGINE.to_owned(),
        durability: Durability::Disk,
        replicas: Some(hosts as u32),
        shards: Some(1),
        ..KeyspaceSpec::default()
    });
    let script = relapses::script(stage.clone(), reef);
    play_script(&mut world, &stage, script, Duration::from_secs(60))
}

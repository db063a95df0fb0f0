//! Transactions of several keys of in-place keyspaces under faults: coordinators that die, repeats while the first attempt is under way.
//! And the same while the replicas move to other nodes, and the nodes that move them die.

use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::{NodeId, StorageId};
use atoll_in_place::Options;
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::in_place::in_place;
use crate::scenario::keyspaces::Nodes;
use crate::scenario::nemesis::Menu;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{Handles, Reef};
use crate::workload::transfer_moves as moves;
use crate::workload::transfers::{self as load, Bank};
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "in-place-txn",
    about: "transactions of several keys in place: constant sums at every read, no skew, nothing done twice, nothing blocked",
    run,
    marks: &[&[
        "in-place.txn.aborted_by_other",
        "in-place.txn.aborts_other",
        "in-place.txn.conflict",
        "in-place.txn.done_before",
        "in-place.txn.looks_twice",
        "in-place.txn.meets_lock",
        "in-place.txn.read_meets_lock",
        "in-place.txn.rolls_forward",
        "sim.txn.audit",
        "sim.txn.dead_minority",
        "sim.txn.impatient",
        "sim.txn.node_died",
        "sim.txn.quiet_audit",
        "sim.txn.refused",
    ]],
    full: false,
};

/// Draws the options of nodes. Some runs abort transactions of others soon, and some give up proposers that are not in use.
fn options(rng: &mut Rng) -> Options {
    Options {
        txn_grace: Duration::from_millis([10, 60, 300][rng.below(3) as usize]),
        open_keys: [2, 8, 1_000][rng.below(3) as usize],
        reply_timeout: Duration::from_millis([40, 150][rng.below(2) as usize]),
        forget_after: Duration::from_millis([30, 2_000][rng.below(2) as usize]),
        ..Options::default()
    }
}

/// See the module documentation.
pub const MOVES: Scenario = Scenario {
    name: "in-place-moves",
    about: "in-place keyspaces move from three to five to three other nodes under transactions and faults; healed, no request fails",
    run: run_moves,
    marks: &[&[
        "in-place.move.cleared",
        "in-place.move.opened",
        "in-place.move.sealed",
        "in-place.move.sealed_again",
        "keyspaces.opened_again",
        "keyspaces.waits_for_move",
        "sim.move.completed",
        "sim.move.done",
        "sim.move.without_failure",
        "sim.txn.audit",
        "sim.txn.quiet_audit",
    ]],
    full: false,
};

/// How long the phase under faults lasts.
const DURING: Duration = Duration::from_secs(20);
/// The same while replicas move, which makes many more messages.
const MOVES_DURING: Duration = Duration::from_secs(4);

/// A cluster, and accounts in an in-place keyspace.
struct Setting {
    world: World<Nodes>,
    stage: Stage<Handles>,
    bank: Bank,
}

/// Returns what to ask for to get so many replicas of each shard on these nodes.
fn place(nodes: std::ops::RangeInclusive<u32>, replicas: u32) -> KeyspaceSpec {
    let nodes = nodes.map(NodeId).collect();
    KeyspaceSpec { replicas: Some(replicas), nodes, ..KeyspaceSpec::default() }
}

/// Builds a cluster of so many hosts, and starts the clients. The keyspace is as `first` says.
fn setting(rng: &mut Rng, hosts: usize, first: KeyspaceSpec, out: TraceOut) -> Option<Setting> {
    let weather = Weather {
        latency_ns: [50_000, 300_000, 2_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 3_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let storages: Vec<u128> =
        (0..hosts).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let group = GroupConfig::new(1, (0..hosts.min(5)).map(named).collect()).ok()?;
    let options = options(rng);
    let install = in_place(hosts, options);
    let mut world = World::new(rng.bits(), hosts, weather, Nodes { group, install }, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let engine = atoll_in_place::ENGINE.to_owned();
    let reef = Reef::new(KeyspaceSpec { engine, durability: Durability::Disk, ..first });
    let bank = Bank::new(reef, 2 + rng.below(4), options.txn_grace);
    let clients = 2 + rng.below(5);
    let think = Duration::from_millis(8 * clients);
    stage.spawn("opener", load::opener(stage.clone(), bank.clone(), clients, think));
    Some(Setting { world, stage, bank })
}

fn faults(rng: &mut Rng, during: Duration) -> Faults {
    let every = Duration::from_millis(200 + rng.below(1000));
    let nervous = rng.below(3) as usize;
    Faults { during, nervous, ..Faults::usual(Menu::USUAL.some(rng), every) }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7478_6e73);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let shards = Some(1 + rng.below(4) as u32);
    let first = KeyspaceSpec { replicas: Some(3), shards, ..KeyspaceSpec::default() };
    let Some(mut set) = setting(&mut rng, hosts, first, out) else { return Outcome::default() };
    let dead = if rng.below(2) == 0 { vec![rng.below(hosts as u64) as usize] } else { Vec::new() };
    let faults = faults(&mut rng, DURING);
    let demand = load::demand(set.stage.clone(), set.bank, dead);
    play(&mut set.world, &set.stage, &mut rng, faults, demand)
}

fn run_moves(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6d6f_7665);
    let first = KeyspaceSpec { shards: Some(1 + rng.below(3) as u32), ..place(1..=3, 3) };
    let Some(mut set) = setting(&mut rng, 6, first, out) else { return Outcome::default() };
    let places = vec![place(1..=5, 5), place(4..=6, 3), place(1..=3, 3), place(2..=6, 5)];
    set.stage.spawn("mover", moves::mover(set.stage.clone(), set.bank.clone(), places.clone()));
    set.stage.spawn("tender", moves::tender(set.stage.clone()));
    let faults = faults(&mut rng, MOVES_DURING);
    let demand = moves::demand_moves(set.stage.clone(), set.bank, places);
    play(&mut set.world, &set.stage, &mut rng, faults, demand)
}

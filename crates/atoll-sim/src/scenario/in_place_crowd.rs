//! Directed: a crowd at one key of a healthy in-place keyspace, through several nodes. The proposers of the key take it from each other,
//! and none may starve (rmwpaxos §4, liveness). In some runs a node is far from the others. In some, shards move meanwhile, so that a node
//! has several handles in use, each with another layout.

use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::testing::hit;
use atoll_core::{NodeId, StorageId};
use atoll_in_place::Options;
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::in_place::in_place;
use crate::scenario::keyspaces::Nodes;
use crate::scenario::phases::{play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::crowd::{self, Plan};
use crate::workload::keyspace::Reef;
use crate::world::fault::Fault;
use crate::world::network::Slow;
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "in-place-crowd",
    about: "directed: a crowd uses one key in place through several healthy nodes; each request ends soon, and all do as much as one",
    run,
    marks: &[&[
        "in-place.write.incremental_disagrees",
        "in-place.write.nacked",
        "in-place.write.through",
        "in-place.write.token",
        "sim.crowd.far",
        "sim.crowd.forgotten",
        "sim.crowd.moves",
        "sim.keyspace.moved",
    ]],
    full: false,
};

/// How long a request may take.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// The same if shards move.
const ENDS_WITHIN_A_MOVE: Duration = Duration::from_secs(2);
/// The same if a node is far from the others: no request may fail, and each is tried for so long.
const ENDS_WITHIN_FAR: Duration = Duration::from_secs(3);
/// How much later a frame arrives from a node that is far away, or there.
const FAR: Slow = Slow { by_ns: 8_000_000, jitter_ns: 1_000_000, resent_permille: 0 };

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0063_726f_7764);
    let hosts = [3, 4, 5][rng.below(3) as usize];
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
    let install = in_place(hosts, Options::default());
    let mut world = World::new(rng.bits(), hosts, weather, Nodes { group, install }, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let (is_far, moves) = (rng.below(4) == 0, hosts > 3 && rng.below(2) == 0);
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_in_place::ENGINE.to_owned(),
        durability: Durability::Disk,
        replicas: Some(if hosts == 5 && !moves && rng.below(2) == 0 { 5 } else { 3 }),
        shards: Some(if moves { 2 } else { 1 }),
        ..KeyspaceSpec::default()
    });
    let first = rng.below(hosts as u64) as usize;
    let crowded = 2 + rng.below(hosts as u64 - 1) as usize;
    let plan = Plan {
        hosts: (0..crowded).map(|n| (first + n) % hosts).collect(),
        clients: [3, 10, 40][rng.below(3) as usize],
        ends_within: match (is_far, moves) {
            (true, _) => ENDS_WITHIN_FAR,
            (false, true) => ENDS_WITHIN_A_MOVE,
            (false, false) => ENDS_WITHIN,
        },
        is_even: !is_far && !moves,
        moves,
    };
    if is_far {
        hit("sim.crowd.far");
        // It comes when the others are there.
        let far = plan.hosts[1];
        for near in (0..hosts).filter(|near| *near != far) {
            for (from, to) in [(far, near), (near, far)] {
                stage.cluster.inject(Fault::SlowLink { from, to, slow: FAR });
            }
        }
    }
    let script = crowd::script(stage.clone(), reef, plan);
    play_script(&mut world, &stage, script, Duration::from_secs(60))
}

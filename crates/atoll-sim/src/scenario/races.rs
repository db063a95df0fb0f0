//! Keyspaces with race points, on a network that loses, doubles and swaps nothing: what goes wrong here goes wrong because of the moments
//! at which nodes and procedures do their steps. Nodes also die and are stopped.

use std::time::Duration;

use atoll_contract::keyspace::KeyspaceSpec;
use atoll_core::races::set_races;
use atoll_core::{NodeId, StorageId};
use atoll_in_place::Options;
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::in_place::in_place;
use crate::scenario::keyspaces::{Nodes, bizur};
use crate::scenario::nemesis::Menu;
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{self as load, Reef};
use crate::world::{Weather, World};

const HOSTS: usize = 3;

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "keyspace-races",
    about: "keyspaces of both engines on a calm network, with race points in their code; nodes die and are stopped",
    run: |seed, out| run(seed, true, out),
    marks: &[&["bizur.replica.older_write", "in-place.acceptor.laggard_write", "in-place.write.stale_token"]],
    full: false,
};

/// The same without race points: for the test that they matter.
pub const WITHOUT_POINTS: Scenario = Scenario {
    name: "keyspace-races-without-points",
    about: "the same without race points",
    run: |seed, out| run(seed, false, out),
    marks: &[],
    full: false,
};

/// Returns whether a seed runs Bizur. The others run in-place keyspaces.
pub fn is_bizur(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

fn run(seed: u64, with_points: bool, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7261_6365);
    let weather = Weather { latency_ns: 50_000, sync_ns: 50_000, ..Weather::default() };
    let storages: Vec<u128> =
        (0..HOSTS).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let Ok(group) = GroupConfig::new(1, (0..HOSTS).map(named).collect()) else { return Outcome::default() };
    let (engine, install) = match is_bizur(seed) {
        true => (atoll_bizur::ENGINE, bizur(HOSTS)),
        false => (atoll_in_place::ENGINE, in_place(HOSTS, Options::default())),
    };
    let mut world = World::new(rng.bits(), HOSTS, weather, Nodes { group, install }, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    // One shard with one bucket lets all keys meet. In-place keyspaces have no buckets.
    let reef = Reef::new(KeyspaceSpec {
        engine: engine.to_owned(),
        replicas: Some(HOSTS as u32),
        shards: Some(1),
        buckets: is_bizur(seed).then_some(1),
        ..KeyspaceSpec::default()
    });
    let (clients, keys) = (3 + rng.below(4), 1 + rng.below(3));
    let think = Duration::from_millis(4 * clients);
    for number in 0..clients {
        stage.spawn("client", load::client(stage.clone(), reef.clone(), 100 + number, keys, think));
    }
    let (at, created) = (stage.clone(), reef.clone());
    stage.spawn("creator", async move { load::provide(&at, &created).await });
    let menu = Menu { crash: 3, pause: 3, ..Menu::NONE };
    let every = Duration::from_millis(300 + rng.below(700));
    let faults = Faults { during: Duration::from_secs(8), ..Faults::usual(menu, every) };
    let progress = load::demand(stage.clone(), reef, keys, Vec::new());
    let demand = async move {
        // From here on, the cluster is healthy, and so must not be slow either.
        set_races(None);
        progress.await;
    };
    // Drawn in any case, so that nothing else differs without race points.
    let points = rng.bits();
    set_races(with_points.then_some(points));
    let outcome = play(&mut world, &stage, &mut rng, faults, demand);
    set_races(None);
    outcome
}

//! RMWPaxos registers under faults, with hand-overs of the group.

use std::time::Duration;

use atoll_core::{NodeId, StorageId};
use atoll_native::NativeOptions;
use atoll_rmwpaxos::{GroupConfig, Member, Options};

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::{Handles, Parts};
use crate::scenario::phases::{Faults, Flag, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut, marks};
use crate::workload::register as load;
use crate::world::fault::{Death, Fault};
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "registers",
    about: "RMWPaxos registers: reads and conditional writes from all nodes, duels, hand-overs of the group",
    run,
    marks: marks::REGISTERS,
    full: true,
};

/// Directed: proposers that die soon after they start, on one contended register (rmw-T5).
pub const LIVES: Scenario = Scenario {
    name: "register-lives",
    about: "directed: proposers die and return within milliseconds; what a life began meets the next one",
    run: run_lives,
    marks: marks::REGISTER_LIVES,
    full: false,
};

fn run_lives(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6c69_7665);
    let storages: Vec<u128> = (0..3).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let Ok(group) = GroupConfig::new(1, (0..3).map(named).collect()) else { return Outcome::default() };
    let assembly = Parts { group, hosts: 3, rmw: Options::default(), native: NativeOptions::default() };
    // Messages of one life are often still in flight when the next life starts.
    let latency_ns = [100_000, 1_000_000, 4_000_000, 4_000_000][rng.below(4) as usize];
    let weather = Weather { latency_ns, ..Weather::default() };
    let mut world = World::new(rng.bits(), 3, weather, assembly, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let names = vec!["r0".to_owned()];
    for _ in 0..3 {
        let client = load::client(stage.clone(), names.clone(), Duration::from_millis(8));
        stage.spawn("client", client);
    }
    stage.spawn("deaths", deaths(stage.clone()));
    let menu = Menu { reset: 1, pause: 1, ..Menu::NONE };
    let faults = Faults {
        during: Duration::from_secs(10),
        nervous: rng.below(4) as usize,
        ..Faults::usual(menu, Duration::from_millis(500))
    };
    let demand = load::demand(stage.clone(), names);
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Kills one node after the other soon after it started, and restarts it at once.
async fn deaths(stage: Stage<Handles>) {
    while !stage.over.is_up() {
        let host = stage.below(3) as usize;
        for _ in 0..1 + stage.below(12) {
            stage.pause(Duration::from_millis(10 + stage.below(60))).await;
            let back_after = Some(stage.below(1_000_000));
            stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        }
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7265_6769);
    let members = [1, 3, 3, 3, 5][rng.below(5) as usize];
    // A group of one can be handed over, too, because there is a second host.
    let hosts = (members + rng.below(3) as usize).max(2);
    let weather = Weather {
        latency_ns: [50_000, 300_000, 2_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 3_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let storages: Vec<u128> =
        (0..hosts).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let Ok(group) = GroupConfig::new(1, (0..members).map(named).collect()) else {
        return Outcome::default();
    };
    let assembly = Parts { group, hosts, rmw: Options::default(), native: NativeOptions::default() };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let names: Vec<String> = (0..1 + rng.below(4)).map(|n| format!("r{n}")).collect();
    let clients = 2 + rng.below(6);
    // With this time, most seeds have enough writes within the usual length.
    let think = Duration::from_millis(10 * clients);
    for _ in 0..clients {
        stage.spawn("client", load::client(stage.clone(), names.clone(), think));
    }
    let deciding = Flag::default();
    stage.spawn("operator", operator(stage.clone(), hosts, deciding.clone()));
    // In some runs disks are lost. The operator then hands over to a group with the new disks.
    let wipe = rng.below(3) * u64::from(members > 1);
    let menu = Menu { wipe, ..Menu::USUAL }.some(&mut rng);
    let every = Duration::from_millis(200 + rng.below(1500));
    let demand = load::demand(stage.clone(), names);
    let faults = Faults { may_lose: may_lose(&stage, deciding), ..Faults::usual(menu, every) };
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Allows the loss of one acceptor's disk at a time. The next one may be lost only when the open group names no lost disk.
fn may_lose(stage: &Stage<Handles>, deciding: Flag) -> Box<dyn Fn(usize) -> bool + Send> {
    let stage = stage.clone();
    Box::new(move |host| {
        let wire = stage.oracles.wire.lock();
        let Some(group) = wire.plugins.newest_group() else { return false };
        let fine = |node: NodeId, storage| stage.cluster.storage(node.0 as usize - 1) == Some(storage);
        let inside = group.members.iter().any(|m| m.node.0 as usize - 1 == host);
        let settled = !deciding.is_up() && !wire.plugins.may_be_handing_over();
        settled
            && (!inside || group.members.len() >= 3)
            && group.members.iter().all(|m| fine(m.node, m.storage))
    })
}

/// Hands the registers over to other groups from time to time.
async fn operator(stage: Stage<Handles>, hosts: usize, deciding: Flag) {
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(4_000)).await;
        let size = [1, 3, 5][stage.below(3) as usize].min(hosts);
        let first = stage.below(hosts as u64) as usize;
        let members: Vec<usize> = (0..size).map(|i| (first + i) % hosts).collect();
        let lives: Vec<_> =
            members.iter().filter_map(|h| stage.cluster.storage(*h).map(|s| (*h, s))).collect();
        if lives.len() < size {
            continue;
        }
        let members =
            lives.iter().map(|(h, s)| Member { node: NodeId(*h as u32 + 1), storage: *s }).collect();
        let Some(life) = stage.cluster.any_from(first) else { continue };
        // From here on, no disk may be lost: the choice of the next group (rmw-H1) is final.
        deciding.raise();
        let _ = life.handles.registers.hand_over(members).await;
        deciding.lower();
    }
}

//! Keyspaces on Bizur under faults, on disks and in memory: elections, recoveries, repeats, deletions that die half-way.

use std::sync::Arc;
use std::time::Duration;

use atoll_bizur::{BizurNode, BizurProvider, ClientOptions, NodeOptions};
use atoll_contract::KeyspaceProvider;
use atoll_contract::keyspace::{Catalog, Durability, KeyspaceSpec};
use atoll_core::{Directory, Frame, NodeCore, NodeId, StorageId, roles};
use atoll_node::keyspaces::Keyspaces;
use atoll_rmwpaxos::{Acceptor, GroupConfig, Member, Options, RmwRegisters};

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::parts::{Everybody, WhoAmI, describe, identity};
use crate::scenario::phases::{Faults, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{self as load, Handles, Reef};
use crate::world::observer::Who;
use crate::world::{Assembly, Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "keyspaces",
    about: "keyspaces on Bizur, on disks and in memory: conditional writes and repeats through all nodes, deletions, lost memory",
    run,
    marks: &[&[
        "bizur.bucket.repeat",
        "bizur.client.no_answer",
        "bizur.leader.deposed",
        "bizur.leader.lost_election",
        "bizur.leader.recovers_first",
        "bizur.leader.recovers_rest",
        "bizur.leader.resend",
        "bizur.leader.unknown",
        "bizur.node.not_member",
        "bizur.node.stands_for_silent",
        "bizur.node.stands_on_demand",
        "bizur.replica.same_write",
        "sim.keyspace.created_again",
        "sim.keyspace.dead_minority",
        "sim.keyspace.deleted",
        "sim.keyspace.says_lost",
        "sim.keyspace.watch_showed",
        "bizur.watch.notified",
    ]],
    full: false,
};

/// Adds the role of an engine to a node, and returns what creates its keyspaces.
pub(super) type Install = Box<dyn Fn(&mut NodeCore, &Who) -> Arc<dyn KeyspaceProvider> + Send>;

/// Nodes with acceptors of registers and with replicas of keyspaces.
pub(super) struct Nodes {
    /// The acceptors of the registers with the layouts.
    pub(super) group: GroupConfig,
    /// Adds the engine.
    pub(super) install: Install,
}

/// Adds Bizur to a node of a cluster of `hosts` nodes.
pub(super) fn bizur(hosts: usize) -> Install {
    Box::new(move |core, who| {
        let (env, directory) = (core.env(), Arc::new(Everybody(hosts)) as Arc<dyn Directory>);
        let node = BizurNode::new(env.clone(), who.storage, NodeOptions::default());
        core.add_role(atoll_bizur::roles::REPLICA, Box::new(node));
        Arc::new(BizurProvider::new(env, directory, ClientOptions::default()))
    })
}

impl Assembly for Nodes {
    type Handles = Handles;

    fn describe(&self, frame: &Frame) -> String {
        describe(frame)
    }

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, Handles) {
        let mut core = NodeCore::new(who.node, who.incarnation, seed);
        let env = core.env();
        core.add_role(roles::MEMBER, Box::new(WhoAmI(identity(who))));
        let acceptor = Acceptor::new(who.node, who.storage, Some(self.group.clone()));
        core.add_role(atoll_rmwpaxos::roles::ACCEPTOR, Box::new(acceptor));
        let provider = (self.install)(&mut core, who);
        let registers = Arc::new(RmwRegisters::new(env.clone(), self.group.clone(), Options::default()));
        let catalog = Catalog::new(env.clone(), registers.clone(), [provider.clone()]);
        let keyspaces = Keyspaces::new(env, registers, vec![provider.clone()]);
        (core, Handles { catalog, provider, keyspaces, open: Arc::default() })
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6269_7a75);
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
    let assembly = Nodes { group, install: bizur(hosts) };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    world.name_disks(&storages);
    let stage = stage(&mut world);
    let replicas = if hosts == 5 && rng.below(2) == 0 { 5 } else { 3 };
    let spec = KeyspaceSpec {
        engine: atoll_bizur::ENGINE.to_owned(),
        durability: if in_memory { Durability::Memory } else { Durability::Disk },
        replicas: Some(replicas),
        shards: Some(1 + rng.below(3) as u32),
        buckets: Some([1, 2, 40][rng.below(3) as usize]),
        ..KeyspaceSpec::default()
    };
    let reef = Reef::new(spec);
    let (clients, keys) = (2 + rng.below(6), 1 + rng.below(4));
    let think = Duration::from_millis(6 * clients);
    for number in 0..clients {
        stage.spawn("client", load::client(stage.clone(), reef.clone(), 100 + number, keys, think));
    }
    for _ in 0..2 {
        stage.spawn("watcher", load::watcher(stage.clone(), reef.clone(), keys));
    }
    stage.spawn("operator", load::operator(stage.clone(), reef.clone()));
    let menu = match in_memory {
        // Each death costs a replica its memory.
        true => Menu { crash: 2, crash_all: 0, crash_mid_turn: 1, ..Menu::USUAL },
        false => Menu::USUAL,
    };
    let dead = if rng.below(2) == 0 { vec![rng.below(hosts as u64) as usize] } else { Vec::new() };
    let every = Duration::from_millis(200 + rng.below(1000));
    let faults = Faults {
        during: Duration::from_secs(20),
        nervous: rng.below(3) as usize,
        ..Faults::usual(menu.some(&mut rng), every)
    };
    let demand = load::demand(stage.clone(), reef, keys, dead);
    play(&mut world, &stage, &mut rng, faults, demand)
}

//! Directed: disks and links are slow, and nobody dies. No leader of a shard is replaced then, although clients wait long for its answers.
//! At the end, a leader falls silent, and another replica must stand for its shards within the time of the failure detection. And elections
//! on disks that are so slow that no vote comes back within the time after which a candidate first gives up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_bizur::ElectId;
use atoll_bizur::message::{PleaseVote, ReplicaRead, ReplicaWrites, ShardKey};
use atoll_contract::keyspace::{Durability, KeyspaceSpec};
use atoll_core::testing::hit;
use atoll_core::{Message, NodeId, StorageId};
use atoll_rmwpaxos::{GroupConfig, Member};

use crate::rng::Rng;
use crate::scenario::keyspaces::{Nodes, bizur};
use crate::scenario::nemesis;
use crate::scenario::phases::{Stage, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::keyspace::{self as load, Handles, Reef};
use crate::world::fault::{Death, Fault};
use crate::world::network::Slow;
use crate::world::observer::{Observer, OnWire, Violations};
use crate::world::{Weather, World};

/// See the module documentation.
pub const SCENARIO: Scenario = Scenario {
    name: "slow-leaders",
    about: "directed: slow disks and links replace no leader of a shard of a keyspace; a silent leader is replaced at once",
    run,
    marks: &[&[
        "bizur.client.no_answer",
        "bizur.node.stands_for_silent",
        "sim.slow_leaders.disks",
        "sim.slow_leaders.links",
        "sim.slow_leaders.killed",
        "sim.slow_leaders.paused",
    ]],
    full: false,
};

/// How long everything is slow.
const LASTS: Duration = Duration::from_secs(15);
/// The mean sync of a slow disk, in ms. A round must find a majority within the 700 ms after which a leader gives up.
const SLOW_SYNC_MS: u64 = 110;
/// The longest latency of a slow link, in ms. The first beats over it are late by as much, and must not seem to be missing.
const SLOW_LINK_MS: u64 = 45;
/// How soon after a leader falls silent another replica stands: after 100 ms of silence, at the next look, which comes every 25 ms, on a
/// clock that may be 5 % slow, once it has synced that it stands.
const SILENT_WITHIN: Duration = Duration::from_millis(180);

/// What the oracle sees of elections and terms.
#[derive(Debug, Default)]
struct Seen {
    /// Whether everything is slow and nobody is dead or silent.
    is_calm: bool,
    /// The highest election of each shard in which somebody stood.
    stood: BTreeMap<ShardKey, ElectId>,
    /// The highest election of each shard in which a leader acted.
    terms: BTreeMap<ShardKey, ElectId>,
    /// The node that fell silent, and when another one must have stood for the shards that it led.
    silent: Option<(NodeId, u64)>,
}

/// Counts changes of leaders from outside of the nodes. Cheap to clone.
#[derive(Clone, Debug, Default)]
struct Elections(Arc<Mutex<Seen>>);

impl Elections {
    fn with<T>(&self, f: impl FnOnce(&mut Seen) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the node that led some shard last.
    fn leader(&self) -> Option<NodeId> {
        self.with(|seen| seen.terms.values().next().map(|elect| elect.server.node))
    }
}

impl Seen {
    fn stands(&mut self, m: &PleaseVote, verdict: &mut Violations) {
        let last = self.stood.entry(m.to.shard).or_default();
        if m.elect <= *last {
            return;
        }
        if self.is_calm {
            verdict.fail(format!(
                "bizur: a live leader is replaced: node {} stands in {} of shard {}, after {last}, while nobody is dead or silent",
                m.elect.server.node, m.elect, m.to.shard.shard
            ));
        }
        *last = m.elect;
    }

    fn acts(&mut self, shard: ShardKey, elect: ElectId) {
        let term = self.terms.entry(shard).or_default();
        *term = elect.max(*term);
    }

    fn look(&mut self, at: u64, verdict: &mut Violations) {
        let Some((node, _)) = self.silent.take_if(|(_, until)| at > *until) else { return };
        for (shard, term) in &self.terms {
            let stood = self.stood.get(shard);
            if term.server.node == node && stood.is_none_or(|stood| stood <= term) {
                verdict.fail(format!(
                    "bizur: a silent leader stays: node {node} led shard {}, and nobody stands {SILENT_WITHIN:?} after it fell silent",
                    shard.shard
                ));
            }
        }
    }
}

impl Observer for Elections {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        let frame = wire.frame();
        self.with(|seen| {
            seen.look(wire.at, verdict);
            match frame.kind {
                PleaseVote::KIND => {
                    if let Ok(m) = PleaseVote::from_frame(frame.clone()) {
                        seen.stands(&m, verdict);
                    }
                }
                ReplicaRead::KIND => {
                    if let Ok(m) = ReplicaRead::from_frame(frame.clone()) {
                        seen.acts(m.to.shard, m.elect);
                    }
                }
                ReplicaWrites::KIND => {
                    if let Ok(m) = ReplicaWrites::from_frame(frame.clone()) {
                        m.writes.iter().for_each(|write| seen.acts(write.to.shard, write.elect));
                    }
                }
                _ => {}
            }
        });
    }
}

/// The mean sync of all disks during slow elections, in ms. A candidate and a voter sync one after the other, each for half of it at least,
/// and a candidate first gives up after 200 ms. Rounds of a leader still find a majority within 700 ms.
const SLOW_VOTE_MS: u64 = 210;

/// Elections on slow disks.
pub const VOTES: Scenario = Scenario {
    name: "slow-votes",
    about: "directed: disks are so slow that no vote arrives in the time after which a candidate first gives up; each shard gets a leader",
    run: run_votes,
    marks: &[&["bizur.leader.elected", "bizur.leader.slow_election"]],
    full: false,
};

/// A cluster with fast disks and links, and Bizur on each node.
fn cluster(rng: &mut Rng, out: TraceOut) -> Option<(World<Nodes>, Weather)> {
    let hosts = [3, 3, 5][rng.below(3) as usize];
    let weather = Weather {
        latency_ns: [50_000, 300_000, 2_000_000][rng.below(3) as usize],
        sync_ns: 200_000,
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let storages: Vec<u128> =
        (0..hosts).map(|_| u128::from(rng.bits()) << 64 | u128::from(rng.bits())).collect();
    let named = |n: usize| Member { node: NodeId(n as u32 + 1), storage: StorageId(storages[n]) };
    let group = GroupConfig::new(1, (0..hosts).map(named).collect()).ok()?;
    let assembly = Nodes { group, install: bizur(hosts) };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    world.name_disks(&storages);
    Some((world, weather))
}

fn run_votes(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x766f_7465);
    let Some((mut world, weather)) = cluster(&mut rng, out) else { return Outcome::default() };
    let stage = stage(&mut world);
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_bizur::ENGINE.to_owned(),
        durability: Durability::Disk,
        replicas: Some(3),
        shards: Some(1 + rng.below(3) as u32),
        buckets: Some([1, 2, 40][rng.below(3) as usize]),
        ..KeyspaceSpec::default()
    });
    let script = elect(stage.clone(), reef, 1 + rng.below(6), weather.sync_ns);
    play_script(&mut world, &stage, script, LASTS)
}

/// Demands a leader of each shard on slow disks, and another one after a node has died for good.
async fn elect(stage: Stage<Handles>, reef: Reef, keys: u64, sync_ns: u64) {
    load::provide(&stage, &reef).await;
    for host in 0..stage.cluster.hosts() {
        stage.cluster.inject(Fault::SlowDisk { host, factor: SLOW_VOTE_MS * 1_000_000 / sync_ns });
    }
    stage.over.raise();
    load::write_all(&stage, &reef, keys, 1).await;
    let host = stage.below(stage.cluster.hosts() as u64) as usize;
    stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    load::write_all(&stage, &reef, keys, 2).await;
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x736c_6f77_6c65);
    let Some((mut world, weather)) = cluster(&mut rng, out) else { return Outcome::default() };
    let stage = stage(&mut world);
    let elections = Elections::default();
    world.observe(Box::new(elections.clone()));
    let reef = Reef::new(KeyspaceSpec {
        engine: atoll_bizur::ENGINE.to_owned(),
        durability: if rng.below(4) == 0 { Durability::Memory } else { Durability::Disk },
        replicas: Some(3),
        shards: Some(1 + rng.below(3) as u32),
        buckets: Some([1, 2, 40][rng.below(3) as usize]),
        ..KeyspaceSpec::default()
    });
    let keys = 1 + rng.below(6);
    let clients = 2 + rng.below(5);
    let script = script(stage.clone(), rng.fork(), (reef, keys, clients), elections, weather.sync_ns);
    play_script(&mut world, &stage, script, LASTS * 4)
}

async fn script(
    stage: Stage<Handles>,
    mut rng: Rng,
    (reef, keys, clients): (Reef, u64, u64),
    elections: Elections,
    sync_ns: u64,
) {
    load::provide(&stage, &reef).await;
    // Each shard has a leader before anything is slow.
    load::write_all(&stage, &reef, keys, 1).await;
    let think = Duration::from_millis(10 * clients);
    for number in 0..clients {
        stage.spawn("client", load::client(stage.clone(), reef.clone(), 100 + number, keys, think));
    }
    stage.pause(Duration::from_secs(1)).await;
    elections.with(|seen| seen.is_calm = true);
    slow_down(&stage, &mut rng, sync_ns);
    stage.env.sleep(LASTS).await;
    elections.with(|seen| seen.is_calm = false);
    nemesis::heal(&stage.cluster, stage.cluster.hosts());
    stage.env.sleep(Duration::from_secs(2)).await;
    fall_silent(&stage, &elections).await;
    stage.over.raise();
    nemesis::heal(&stage.cluster, stage.cluster.hosts());
    load::write_all(&stage, &reef, keys, 2).await;
}

/// Makes the disks of some hosts slow, or all links, or both.
fn slow_down(stage: &Stage<Handles>, rng: &mut Rng, sync_ns: u64) {
    let hosts = stage.cluster.hosts();
    let what = rng.below(3);
    if what != 1 {
        hit("sim.slow_leaders.disks");
        // With one fast disk among three, a write waits for only one of the slow ones.
        let fast = rng.below(2) as usize * rng.below(hosts as u64) as usize;
        for host in fast..hosts {
            let sync_ms = SLOW_SYNC_MS / 2 + rng.below(SLOW_SYNC_MS / 2);
            stage.cluster.inject(Fault::SlowDisk { host, factor: sync_ms * 1_000_000 / sync_ns });
        }
    }
    if what != 0 {
        hit("sim.slow_leaders.links");
        for from in 0..hosts {
            for to in (0..hosts).filter(|to| *to != from) {
                let by_ns = (SLOW_LINK_MS / 2 + rng.below(SLOW_LINK_MS / 2)) * 1_000_000;
                stage.cluster.inject(Fault::SlowLink {
                    from,
                    to,
                    slow: Slow { by_ns, jitter_ns: 3_000_000, resent_permille: 0 },
                });
            }
        }
    }
}

/// A leader dies, or is paused.
async fn fall_silent(stage: &Stage<Handles>, elections: &Elections) {
    let Some(node) = elections.leader() else { return };
    let host = node.0 as usize - 1;
    if stage.below(2) == 0 {
        hit("sim.slow_leaders.killed");
        stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    } else {
        hit("sim.slow_leaders.paused");
        stage.cluster.inject(Fault::Pause { host, nanos: 1_000_000_000 });
    }
    let until = stage.env.now().after(SILENT_WITHIN).0;
    elections.with(|seen| seen.silent = Some((node, until)));
    stage.env.sleep(Duration::from_secs(2)).await;
}

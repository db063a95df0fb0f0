//! One lasting cause: nodes that stay dead, links that stay cut in one or both directions, disks that hang. While it lasts, every node that
//! reaches a majority must make progress, and the chain may change only a few times. Nothing may wait for the end of the cause.

mod cause;

use std::time::Duration;

use atoll_contract::ClientId;
use atoll_core::testing::hit;
use atoll_core::{Env, NodeId, Tick};
use atoll_node::assembly::Options;
use atoll_node::members::Health;

use self::cause::Cause;

use crate::rng::Rng;
use crate::scenario::nemesis;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Stage, play_script, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log as load;
use crate::world::fault::Fault;
use crate::world::{Weather, World};

/// See the module documentation.
pub const LASTING: Scenario = Scenario {
    name: "lasting",
    about: "directed: nodes stay dead, links stay cut, disks hang, stay closed or full; the majority continues, with few reconfigurations",
    run: |seed, out| run(seed, out, Cause::draw),
    marks: &[&[
        "sim.lasting.dead",
        "sim.lasting.never_back",
        "sim.lasting.cut",
        "sim.lasting.one_way",
        "sim.lasting.data_cut",
        "sim.lasting.closed",
        "sim.lasting.hung",
        "sim.lasting.full",
        "sim.lasting.turning",
        "sim.lasting.bridge",
        "sim.lasting.star",
        "sim.lasting.places",
        "sim.lasting.views",
        "members.vouched",
    ]],
    full: false,
};

/// How long a cause lasts.
const LASTS: Duration = Duration::from_secs(20);
/// The most changes of the chain that one cause may trigger, and that its end may trigger.
const MOST_CHANGES: u64 = 3;
/// After the first move, a segment whose members work lives at least this long.
const LEAST_LIFE: Duration = Duration::from_secs(3);
/// How long each link stays cut in [`Cause::Turning`].
const TURN: Duration = Duration::from_millis(1_500);
/// How long all links work between two of these cuts.
const BETWEEN_TURNS: Duration = Duration::from_millis(150);
/// The most changes of the chain in [`Cause::Turning`]: one for every second turn. Two of the three links are the sequencer's, so without
/// damping nearly every turn would move the log. But a segment whose members work lives for at least 3 s, which is nearly two turns.
const MOST_CHANGES_TURNING: u64 =
    LASTS.as_secs() * 1_000 / (TURN.as_millis() as u64 + BETWEEN_TURNS.as_millis() as u64) / 2 + 1;
const LOG: &str = "log0";

/// Links that are slow or lose packets, without any cut. A node that is slow for all must not be believed about other nodes.
pub const SLOW_LINKS: Scenario = Scenario {
    name: "slow-links",
    about: "directed: links are slow or lose packets; every node continues, with few reconfigurations",
    run: |seed, out| run(seed, out, Cause::draw_slow),
    marks: &[&[
        "sim.lasting.slow_node",
        "sim.lasting.slow_link",
        "sim.lasting.slow_links",
        "sim.lasting.lossy",
    ]],
    full: false,
};

fn run(seed: u64, out: TraceOut, draw: fn(&mut Rng, usize) -> Cause) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x006c_6173_7469_6e67);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        ..Weather::default()
    };
    let mut options = Options::default();
    // Even seeds use the product's timings. Odd seeds use slower ones, as the other scenarios do.
    let slower = seed % 2 == 1;
    if slower {
        options.timings.heartbeat_every = Duration::from_millis(150);
        options.timings.silent_after = Duration::from_millis(600);
    }
    let five_servers = rng.below(2) == 0 && hosts == 5;
    if five_servers {
        options.protocols.set("replicas", 5);
    }
    let first = draw(&mut rng, hosts);
    let mut causes = vec![first];
    // Five servers tolerate two causes.
    if five_servers && rng.below(2) == 0 {
        let second = draw(&mut rng, hosts);
        let alone = |c| matches!(c, Cause::NeverBack(_) | Cause::Turning | Cause::Bridge(_) | Cause::Star(_));
        if !alone(first) && !alone(second) {
            causes.push(second);
        }
    }
    // The registers must tolerate as many failures as the log.
    let founders = hosts - usize::from(hosts == 4);
    let assembly = Nodes { members: hosts, founders, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let plan = Plan { causes, hosts, slower };
    let script = plan.play(stage.clone(), rng.fork());
    play_script(&mut world, &stage, script, LASTS * 6)
}

struct Plan {
    causes: Vec<Cause>,
    hosts: usize,
    slower: bool,
}

impl Plan {
    /// Returns the hosts whose clients must make progress while these nodes are the servers of the log.
    fn expected(&self, servers: &[NodeId]) -> Vec<usize> {
        (0..self.hosts).filter(|h| !self.causes.iter().any(|c| c.loses(*h, servers))).collect()
    }

    fn longest_pause(&self) -> Duration {
        let most = self.causes.iter().map(|c| c.longest_pause()).max().unwrap_or_default();
        let most = if self.slower { most * 2 } else { most };
        // With two causes, the log may move to a node that the second cause cuts off from some clients, before anybody knows it. Those
        // clients wait for the minimum life of that segment (vlog-V18).
        let parts = |c: &Cause| matches!(c, Cause::Cut(..) | Cause::OneWay(..) | Cause::DataCut(..));
        if self.causes.len() > 1 && self.causes.iter().any(parts) { most + LEAST_LIFE } else { most }
    }

    async fn play(self, stage: Stage<NodeHandles>, mut rng: Rng) {
        load::create(&stage, LOG).await;
        let watch = PauseLog::default();
        for host in 0..self.hosts {
            stage.spawn("writer", writer(stage.clone(), host, watch.clone()));
        }
        stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(50)));
        // All nodes join, and the chain stops changing.
        stage.pause(Duration::from_millis(4_000 + rng.below(2_000))).await;
        let before = changes(&stage);
        let servers = serving(&stage).map_or(Vec::new(), |(servers, _)| servers);
        watch.begin(stage.env.now(), self.expected(&servers));
        for cause in &self.causes {
            hit(cause.mark());
            cause.faults(self.hosts).into_iter().for_each(|fault| stage.cluster.inject(fault));
        }
        match self.causes[..] {
            [Cause::Turning] => turn(&stage).await,
            _ => stage.env.sleep(LASTS).await,
        }
        let pauses = watch.end(&stage.env);
        self.judge(&stage, "while it lasts", changes(&stage) - before, &pauses);
        self.judge_places(&stage, &servers);
        self.judge_lives(&stage);
        let before = changes(&stage);
        nemesis::heal(&stage.cluster, self.hosts);
        stage.env.sleep(LASTS / 2).await;
        self.judge(&stage, "after its end", changes(&stage) - before, &[]);
        stage.over.raise();
        load::demand(stage.clone(), vec![LOG.to_owned()]).await;
    }

    /// Checks that the chain did not change too often, and that the clients of no expected host waited too long.
    fn judge(&self, stage: &Stage<NodeHandles>, when: &str, changes: u64, pauses: &[(usize, Duration)]) {
        let causes = &self.causes;
        let most = match causes[..] {
            [Cause::Turning] => MOST_CHANGES_TURNING,
            // Several lost packets in a row between two members count as a cause of their own.
            [Cause::Lossy(_)] => MOST_CHANGES * 2,
            _ => MOST_CHANGES * causes.len() as u64,
        };
        if changes > most {
            stage.cluster.fail(format!(
                "STORM: {causes:?} of {} hosts: {changes} changes of the chain {when}, allowed are {most}",
                self.hosts
            ));
        }
        let longest = self.longest_pause();
        for (host, pause) in pauses {
            if *pause > longest {
                stage.cluster.fail(format!(
                    "PAUSE: {causes:?} of {} hosts: clients of host {host} waited {pause:?} {when}, allowed is {longest:?}",
                    self.hosts
                ));
            }
        }
    }

    /// Checks that a node whose disk fails was replaced: as a server if there is a spare, and as a sequencer in any case. If it was one of
    /// the log's `servers` when the cause began, also checks that all other nodes know the health of its disk.
    fn judge_places(&self, stage: &Stage<NodeHandles>, servers: &[NodeId]) {
        let Some((now, sequencer)) = serving(stage) else { return };
        let has_spare = self.expected(servers).len() >= now.len();
        for (host, health) in self.causes.iter().filter_map(|c| c.without_disk()) {
            hit("sim.lasting.places");
            let node = node_of(host);
            // Only writes reveal a disk that fails or hangs, and a node that is only the sequencer writes nothing.
            let notices = health != Health::Full && servers.contains(&node);
            let sequences = notices && sequencer == node;
            if (has_spare && now.contains(&node)) || sequences {
                stage.cluster.fail(format!(
                    "PLACE: {:?} of {} hosts: after {LASTS:?} node {node} still serves the log: servers {now:?}, sequencer {sequencer}",
                    self.causes, self.hosts
                ));
            }
            if self.causes.len() == 1 && servers.contains(&node) {
                self.judge_views(stage, node, health, &self.expected(servers));
            }
        }
    }

    /// Checks that a node that reaches a majority is up for all nodes, including those that it cannot reach. Otherwise these would
    /// repeatedly take over the sessions of its clients, and the clients would return each time.
    fn judge_lives(&self, stage: &Stage<NodeHandles>) {
        let [Cause::Bridge(_)] = self.causes[..] else { return };
        for host in 0..self.hosts {
            let Some(life) = stage.cluster.host(host) else { continue };
            let members = &life.handles.0.members;
            if let Some(gone) = (0..self.hosts).map(node_of).find(|node| !members.is_up(*node)) {
                stage.cluster.fail(format!(
                    "GONE: {:?}: after {LASTS:?} host {host} takes node {gone} for gone, which reaches a majority",
                    self.causes
                ));
            }
        }
    }

    fn judge_views(&self, stage: &Stage<NodeHandles>, node: NodeId, health: Health, hosts: &[usize]) {
        for host in hosts {
            let Some(life) = stage.cluster.host(*host) else { continue };
            hit("sim.lasting.views");
            let known = life.handles.0.members.health_of(node).0;
            if known != health {
                stage.cluster.fail(format!(
                    "HIDDEN: {:?} of {} hosts: after {LASTS:?} host {host} takes the disk of node {node} for {known:?}",
                    self.causes, self.hosts
                ));
            }
        }
    }
}

fn node_of(host: usize) -> NodeId {
    NodeId(host as u32 + 1)
}

/// Returns the servers and the sequencer of the active segment.
fn serving(stage: &Stage<NodeHandles>) -> Option<(Vec<NodeId>, NodeId)> {
    stage.oracles.wire.lock().chain.serving(LOG)
}

/// Cuts one of three links after the other.
async fn turn(stage: &Stage<NodeHandles>) {
    let until = stage.env.now().after(LASTS);
    let links = [(0, 1), (1, 2), (2, 0)];
    for (a, b) in links.into_iter().cycle() {
        if stage.env.now() >= until {
            return;
        }
        for blocked in [true, false] {
            for (from, to) in [(a, b), (b, a)] {
                stage.cluster.inject(Fault::Block { from, to, blocked });
            }
            stage.env.sleep(if blocked { TURN } else { BETWEEN_TURNS }).await;
        }
    }
}

/// Returns the number of changes of the chain so far.
fn changes(stage: &Stage<NodeHandles>) -> u64 {
    stage.oracles.wire.lock().chain.extends()
}

/// The longest pause between two acknowledged records, for the clients of each host.
#[derive(Clone, Debug, Default)]
struct PauseLog(std::sync::Arc<std::sync::Mutex<Vec<(usize, Tick, Duration)>>>);

impl PauseLog {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(usize, Tick, Duration)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn begin(&self, now: Tick, hosts: Vec<usize>) {
        *self.lock() = hosts.into_iter().map(|h| (h, now, Duration::ZERO)).collect();
    }

    fn acknowledged(&self, now: Tick, host: usize) {
        if let Some((_, last, longest)) = self.lock().iter_mut().find(|(h, ..)| *h == host) {
            *longest = (*longest).max(now.since(*last));
            *last = now;
        }
    }

    fn end(&self, env: &Env) -> Vec<(usize, Duration)> {
        let now = env.now();
        std::mem::take(&mut *self.lock())
            .into_iter()
            .map(|(h, last, l)| (h, l.max(now.since(last))))
            .collect()
    }
}

/// Appends one record after the other through one node only.
async fn writer(stage: Stage<NodeHandles>, host: usize, watch: PauseLog) {
    let client = ClientId(stage.env.random() | 1);
    let (mut seq, mut pending) = (0, Vec::new());
    let up = |stage: &Stage<NodeHandles>| stage.cluster.host(host).is_some();
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(30)).await;
        if pending.is_empty() {
            seq += 1;
            pending.push(load::record(&stage, client, seq));
        }
        let mut at = host;
        if up(&stage) && load::round(&stage, LOG, &mut at, &mut pending).await && up(&stage) {
            watch.acknowledged(stage.env.now(), host);
        }
        stage.report();
    }
}

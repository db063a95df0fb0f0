//! Directed scenarios that follow examples from the protocol notes: nodes and clients that continue with outdated knowledge (vlog-V2,
//! vlog-V3, contracts X16), and the five servers of rule K (native §4).

use std::time::Duration;

use atoll_contract::{Batch, ClientId, Entry, LogletProvider, LogletSpec, OpId};
use atoll_core::testing::hit;
use atoll_core::{NodeId, StorageId};
use atoll_native::NativeOptions;
use atoll_node::assembly::Options;
use atoll_rmwpaxos::{GroupConfig, Member, Options as RmwOptions};
use bytes::Bytes;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::parts::{Handles, Parts};
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{again, delete, late, log, native};
use crate::world::fault::Fault;
use crate::world::{Weather, World};

/// Nodes that are paused with appends of clients that move to other nodes.
pub const LATE: Scenario = Scenario {
    name: "vlog-late",
    about: "directed: nodes are stopped with an append, its client moves on, the log moves on, the node continues",
    run: run_late,
    marks: &[&["sim.went_on_late", "sim.fault.pause", "vlog.append.outdated"]],
    full: false,
};

/// Clients that submit records again. The limits are so low that a short run exceeds them.
pub const RETRIES: Scenario = Scenario {
    name: "vlog-retries",
    about: "directed: records are handed in again at the same door while they are pending, and late; few are remembered",
    run: run_retries,
    marks: &[&["sim.retried_at_the_same_door", "sim.first_attempt_came_late", "deduplicator.forgotten"]],
    full: false,
};

/// Nodes that are paused during several changes of the chain.
pub const SLEEPERS: Scenario = Scenario {
    name: "vlog-sleepers",
    about: "directed: nodes are stopped over three extends, a trim and a truncate, and continue with their old chain",
    run: run_sleepers,
    marks: &[&["sim.slept_over_changes"]],
    full: false,
};

/// A log that is deleted and created again, repeatedly.
pub const DELETED: Scenario = Scenario {
    name: "vlog-deleted",
    about: "directed: a log is extended, deleted and created anew while it is used; nodes die in the middle of it",
    run: run_deleted,
    marks: &[&["sim.deleted", "vlog.create.anew"]],
    full: false,
};

/// A single node with local logs.
pub const LOCAL: Scenario = Scenario {
    name: "local",
    about: "directed: a single node with a LocalLoglet: killed and cut off power in the middle of anything, and extended",
    run: run_local,
    marks: &[&["sim.fault.kill", "sim.fault.power_cut", "sim.fault.crash_mid_turn", "sim.local.extended"]],
    full: false,
};

/// A log of the kind that only tests use.
pub const TRIO: Scenario = Scenario {
    name: "trio",
    about: "directed: a log of a protocol for tests, which joins by one line: extended, trimmed; nodes are killed and lose connections",
    run: run_trio,
    marks: &[&[
        "sim.fault.kill",
        "sim.trio.extended",
        "policy.back_fill",
        "trio.clerk.other_life",
        "trio.mirror.filled",
        "trio.read.mirror",
    ]],
    full: false,
};

/// The example of rule K.
pub const RULE_K: Scenario = Scenario {
    name: "native-rule-k",
    about: "directed: five servers; an entry on one, sealed tails without and with it, and a server that knows of no seal",
    run: run_rule_k,
    marks: &[&["sim.rule_k"]],
    full: false,
};

fn weather(rng: &mut Rng) -> Weather {
    Weather {
        latency_ns: [50_000, 200_000][rng.below(2) as usize],
        sync_ns: [100_000, 2_000_000][rng.below(2) as usize],
        ..Weather::default()
    }
}

fn kills(_: &mut Rng) -> Faults {
    let menu = Menu { crash: 4, crash_mid_turn: 2, pause: 1, reset: 2, slow_disk: 1, ..Menu::NONE };
    Faults { during: Duration::from_secs(20), ..Faults::usual(menu, Duration::from_millis(1_000)) }
}

fn few_faults(rng: &mut Rng) -> Faults {
    let menu = Menu { crash: rng.below(2), reset: 2, slow_disk: 1, ..Menu::NONE };
    Faults { during: Duration::from_secs(20), ..Faults::usual(menu, Duration::from_millis(2_500)) }
}

fn run_late(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6c61_7465);
    // The even seeds keep the traces that they had before trims were added.
    let trims = seed % 2 == 1;
    on_nodes(rng.fork(), out, [3, 4, 5][rng.below(3) as usize], Limits::USUAL, move |stage, name| {
        for _ in 0..2 {
            stage.spawn("leaver", late::leaver(stage.clone(), name.clone(), Duration::from_millis(80)));
        }
        if trims {
            stage.spawn("trimmer", log::trimmer(stage.clone(), name, Duration::from_millis(150)));
        }
    })
}

fn run_sleepers(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x736c_6570);
    on_nodes(rng.fork(), out, 4 + rng.below(2) as usize, Limits::USUAL, |stage, name| {
        stage.spawn("sleeper", late::sleeper(stage.clone(), name, Duration::from_millis(500)));
    })
}

fn run_deleted(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6465_6c65);
    let limits = Limits { page_items: Some(2), ..Limits::USUAL };
    on_nodes(rng.fork(), out, [3, 4, 5][rng.below(3) as usize], limits, |stage, name| {
        stage.spawn("extender", log::extender(stage.clone(), name.clone(), Duration::from_millis(150)));
        stage.spawn("deleter", delete::deleter(stage.clone(), name, Duration::from_millis(1_500)));
    })
}

fn run_local(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x006c_6f63_616c);
    let weather = weather(&mut rng);
    let mut options = Options::default();
    Limits { window_bytes: [10_000, 1 << 20][rng.below(2) as usize], ..Limits::USUAL }.set(&mut options);
    let assembly = Nodes { members: 1, founders: 1, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), 1, weather, assembly, out);
    let stage = stage(&mut world);
    {
        let stage = stage.clone();
        stage.clone().spawn("people", async move {
            let name = "log0".to_owned();
            log::create_kind(&stage, &name, "local").await;
            let think = Duration::from_millis(20);
            for _ in 0..2 {
                stage.spawn("appender", log::appender(stage.clone(), name.clone(), think));
            }
            stage.spawn("reader", log::reader(stage.clone(), name.clone(), think));
            stage.spawn("checker", log::checker(stage.clone(), name.clone(), think));
            stage.spawn("extender", extend(stage.clone(), name, "local", "sim.local.extended"));
        });
    }
    let menu = Menu { crash: 6, crash_mid_turn: 4, pause: 1, slow_disk: 1, failing_disk: 1, ..Menu::NONE };
    let faults =
        Faults { during: Duration::from_secs(20), ..Faults::usual(menu, Duration::from_millis(800)) };
    let demand = log::demand(stage.clone(), vec!["log0".to_owned()]);
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Extends the log repeatedly; the next segment is of the given kind again. Each success counts for the mark.
async fn extend(stage: Stage<NodeHandles>, name: String, kind: &'static str, mark: &'static str) {
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(700)).await;
        let Some(life) = stage.cluster.any_from(0) else { continue };
        let Some(log) = life.handles.log(&name) else { continue };
        let spec = LogletSpec::of(kind);
        if matches!(stage.cluster.ask(&life, log.extend(spec)).await, Some(Ok(Ok(_)))) {
            hit(mark);
        }
        stage.report();
    }
}

fn run_trio(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7472_696f);
    let limits = Limits { kind: "trio", faults: kills, ..Limits::USUAL };
    on_nodes(rng.fork(), out, [3, 3, 4][rng.below(3) as usize], limits, |stage, name| {
        stage.spawn("extender", extend(stage.clone(), name.clone(), "trio", "sim.trio.extended"));
        stage.spawn("trimmer", log::trimmer(stage.clone(), name, Duration::from_secs(3)));
    })
}

fn run_retries(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7265_7472);
    let limits = Limits {
        dedupe_spans: [4, 16, 64, 512 * 1024][rng.below(4) as usize],
        batches_in_flight: [1, 8][rng.below(2) as usize],
        window_bytes: [10_000, 1 << 20][rng.below(2) as usize],
        kind: ["native", "native", "local"][rng.below(3) as usize],
        ..Limits::USUAL
    };
    on_nodes(rng.fork(), out, [3, 4, 5][rng.below(3) as usize], limits, move |stage, name| {
        let think = Duration::from_millis(40);
        for _ in 0..2 {
            stage.spawn("impatient", again::impatient(stage.clone(), name.clone(), think));
        }
        let crowd = 3 * limits.dedupe_spans.min(64) as u64;
        stage.spawn("belated", again::belated(stage.clone(), name, crowd, think * 4));
    })
}

/// Limits that are small enough for a run to exceed them.
#[derive(Clone, Copy)]
struct Limits {
    /// How many spans of operations a sequencer, or the store of a local Loglet, remembers.
    dedupe_spans: usize,
    /// How many batches a lane may have in flight.
    batches_in_flight: usize,
    /// How many bytes may be in flight in a lane. At a sequencer or local store a quarter of them may, so that they hold appends.
    window_bytes: usize,
    /// The kind of the first segment.
    kind: &'static str,
    /// How many segments an index page holds. None is the default.
    page_items: Option<usize>,
    /// Draws the faults.
    faults: fn(&mut Rng) -> Faults,
}

impl Limits {
    /// The defaults of the product.
    const USUAL: Limits = Limits {
        dedupe_spans: 512 * 1024,
        batches_in_flight: 8,
        window_bytes: 64 << 20,
        kind: "native",
        page_items: None,
        faults: few_faults,
    };

    fn set(self, options: &mut Options) {
        options.protocols.set("dedupe_spans", self.dedupe_spans as u64);
        options.log.max_inflight_batches = self.batches_in_flight;
        options.log.page_items = self.page_items.unwrap_or(options.log.page_items);
        options.protocols.set("window_bytes", self.window_bytes as u64 / 4);
        options.log.lane_window_bytes = options.log.lane_window_bytes.min(self.window_bytes);
    }
}

fn on_nodes(
    mut rng: Rng,
    out: TraceOut,
    hosts: usize,
    limits: Limits,
    people: impl Fn(&Stage<NodeHandles>, String) + Send + 'static,
) -> Outcome {
    // A lane may send its whole window as one batch, which is one journal record. The journal segments must be large enough for it.
    let weather = Weather { segment_bytes: 256 * 1024, ..weather(&mut rng) };
    let mut options = Options::default();
    limits.set(&mut options);
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let assembly = Nodes { members: hosts, founders: 3, options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    {
        let stage = stage.clone();
        stage.clone().spawn("people", async move {
            let name = "log0".to_owned();
            log::create_kind(&stage, &name, limits.kind).await;
            let think = Duration::from_millis(20);
            stage.spawn("appender", log::appender(stage.clone(), name.clone(), think));
            stage.spawn("reader", log::reader(stage.clone(), name.clone(), think));
            stage.spawn("checker", log::checker(stage.clone(), name.clone(), think));
            people(&stage, name);
        });
    }
    let faults = (limits.faults)(&mut rng);
    let demand = log::demand(stage.clone(), vec!["log0".to_owned()]);
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn run_rule_k(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7275_6c65);
    let weather = weather(&mut rng);
    let Ok(group) = GroupConfig::new(1, vec![Member { node: NodeId(1), storage: StorageId(1) }]) else {
        return Outcome::default();
    };
    let assembly = Parts { group, hosts: 5, rmw: RmwOptions::default(), native: NativeOptions::default() };
    let mut world = World::new(rng.bits(), 5, weather, assembly, out);
    let stage = stage(&mut world);
    let islands = native::Islands::default();
    {
        let (stage, islands) = (stage.clone(), islands.clone());
        stage.clone().spawn("people", async move {
            while !stage.over.is_up() {
                if !five(&stage, &islands).await {
                    stage.cluster.inject(Fault::HealNetwork);
                }
                stage.report();
                stage.pause(Duration::from_millis(50)).await;
            }
        });
    }
    let faults = Faults {
        during: Duration::from_secs(20),
        ..Faults::usual(Menu { reset: 1, ..Menu::NONE }, Duration::from_secs(4))
    };
    let demand = native::demand(stage.clone(), islands);
    play(&mut world, &stage, &mut rng, faults, demand)
}

fn links(stage: &Stage<Handles>, pairs: &[(usize, usize)], blocked: bool) {
    for (a, b) in pairs {
        stage.cluster.inject(Fault::Block { from: *a, to: *b, blocked });
        stage.cluster.inject(Fault::Block { from: *b, to: *a, blocked });
    }
}

/// Plays the example once. An entry reaches server 0 only. Servers 1, 2, 3 are sealed and yield a tail without the entry; then 0, 1, 2
/// yield a tail with it. Meanwhile a client on server 4, which knows of no seal, repeatedly asks for the tail. Returns false if a step
/// failed.
async fn five(stage: &Stage<Handles>, islands: &native::Islands) -> bool {
    let patience = Duration::from_millis(1_500);
    let spec = LogletSpec::default().place("server", (1..=5).map(NodeId)).place("sequencer", [NodeId(1)]);
    if !native::make(stage, islands, spec).await {
        return false;
    }
    let (Some(island), Some(life)) = (islands.newest(), stage.cluster.host(0)) else { return false };
    let Ok(loglet) = life.handles.native.open(island.id, &island.config) else { return false };
    let client = ClientId(stage.env.random() | 1);
    let append = |seq: u64| {
        let entry = Entry { op: OpId { client, seq }, payload: Bytes::from(format!("{client:?} {seq}")) };
        stage.oracles.log.append_begins(&island.name, entry.op, &entry.payload);
        loglet.append(Batch::of([entry]))
    };
    let before = stage.env.within(patience, stage.cluster.ask(&life, append(1))).await;
    let Ok(Some(Ok(Ok(placement)))) = before else { return false };
    for at in placement.offsets() {
        stage.oracles.log.append_done(&island.name, OpId { client, seq: 1 }, at.0);
    }
    links(stage, &[(0, 1), (0, 2), (0, 3), (0, 4)], true);
    stage.pause(Duration::from_millis(1)).await;
    let lonely = append(2);
    for _ in 0..2 {
        let (stage, island) = (stage.clone(), island.clone());
        stage.clone().spawn("asks.on.4", async move {
            let _ = stage.env.within(Duration::from_secs(3), native::check(&stage, &island, 4)).await;
            stage.report();
        });
    }
    stage.pause(Duration::from_millis(5)).await;
    links(stage, &[(1, 4), (2, 4), (3, 4)], true);
    stage.pause(Duration::from_millis(1)).await;
    let without = stage.env.within(patience, native::seal(stage, &island, 1)).await;
    links(stage, &[(1, 3)], true);
    links(stage, &[(0, 1), (0, 2), (0, 4)], false);
    stage.pause(Duration::from_millis(1 + stage.below(5))).await;
    let with = stage.env.within(patience, native::check(stage, &island, 1)).await;
    // Server 4 can reach servers 2 and 3 again.
    links(stage, &[(2, 4), (3, 4)], false);
    let _ = stage.env.within(patience, native::check(stage, &island, 4)).await;
    stage.cluster.inject(Fault::HealNetwork);
    let _ = stage.env.within(patience, stage.cluster.ask(&life, lonely)).await;
    match (without, with) {
        (Ok(Some((n, true))), Ok(Some((more, true)))) if more > n => hit("sim.rule_k"),
        _ => {}
    }
    true
}

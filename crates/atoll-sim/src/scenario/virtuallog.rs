//! Several virtual logs on whole nodes, with frequent reconfigurations, and variants with additional faults.

use std::time::Duration;

use atoll_node::assembly::Options;

use crate::rng::Rng;
use crate::scenario::nemesis::{LOSSES_APART, Menu};
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Faults, SAFETY, Stage, play, stage};
use crate::scenario::{Outcome, Scenario, TraceOut, marks};
use crate::workload::{log as load, membership};
use crate::world::{Weather, World};

/// Logs and their reconfigurations, under the usual faults.
pub const VIRTUALLOG: Scenario = Scenario {
    name: "virtuallog",
    about: "several logs, pipelined appenders, readers, trims; extends, truncates, rebuilds; nodes die in the middle",
    run: |seed, out| run(seed, out, &Shape { salt: 0x0076_6c6f67, ..Shape::LOGS }),
    marks: marks::VIRTUALLOG,
    full: true,
};

/// Chains with many segments.
pub const LONG: Scenario = Scenario {
    name: "vlog-long",
    about: "logs that are reconfigured all the time, with index pages of two: read, rebuilt and trimmed in the middle",
    run: |seed, out| {
        run(seed, out, &Shape { salt: 0x006c_6f6e67, changes_every_ms: (60, 120), least: 3, ..Shape::LOGS })
    },
    marks: marks::LONG,
    full: true,
};

/// All nodes lose power at once, repeatedly.
pub const CRASHES: Scenario = Scenario {
    name: "crashes",
    about: "power cuts of all nodes at one instant, kills, torn writes; nothing else",
    run: |seed, out| run(seed, out, &Shape { salt: 0x0063_72617368, menu: CRASHES_ONLY, ..Shape::LOGS }),
    marks: marks::CRASHES,
    full: true,
};

/// Disks become full, fail, rot, and are replaced.
pub const DISKS: Scenario = Scenario {
    name: "disks",
    about: "full, slow, failing, rotten and replaced disks, reads that fail; lost ones are built around",
    run: |seed, out| {
        // Only odd seeds have failing reads and bits that flip under running nodes. The even seeds keep the traces that they had before
        // these faults existed.
        let (failing_reads, live_rot) = if seed % 2 == 1 { (5, 3) } else { (0, 0) };
        let menu = Menu { failing_reads, live_rot, ..DISK_TROUBLE };
        run(seed, out, &Shape { salt: 0x0064_69736b73, menu, least: 3, ..Shape::LOGS })
    },
    marks: marks::DISKS,
    full: true,
};

/// Files of data directories are deleted, truncated, or replaced by older copies.
pub const LOST_FILES: Scenario = Scenario {
    name: "lost-files",
    about: "files of a data directory are deleted, cut, or put back from an older copy, while other nodes are down",
    run: |seed, out| run(seed, out, &Shape { salt: 0x6c6f_7374, menu: LOSING, least: 3, ..Shape::LOGS }),
    marks: marks::LOST_FILES,
    full: true,
};

/// Data directories are replaced by older copies.
pub const PUT_BACK: Scenario = Scenario {
    name: "put-back",
    about: "files, or the whole, of a data directory are put back from a copy that was made of the running node",
    run: |seed, out| {
        run(seed, out, &Shape { salt: 0x7075_7462, menu: PUTTING_BACK, least: 3, ..Shape::LOGS })
    },
    marks: marks::PUT_BACK,
    full: true,
};

/// Members are added, drained and removed.
pub const MEMBERSHIP: Scenario = Scenario {
    name: "membership",
    about: "members are added, drained and removed; the group of acceptors follows",
    run: |seed, out| {
        run(
            seed,
            out,
            &Shape { salt: 0x006d_656d62, least: 3, spare: 2, members_change: true, ..Shape::LOGS },
        )
    },
    marks: marks::MEMBERSHIP,
    full: true,
};

/// All of these loads, changes and faults together.
pub const ALL: Scenario = Scenario {
    name: "all",
    about: "every kind of load, reconfiguration and fault in one cluster",
    run: |seed, out| {
        // Even seeds never lose a disk, so their segments may have a single server. Odd seeds lose disks, so their segments need three.
        let lossless = seed % 2 == 0;
        let shape = Shape { salt: 0x0061_6c6c, ..Shape::LOGS };
        if lossless {
            let menu = Menu { full_disk: 2, ..Menu::USUAL };
            run(seed, out, &Shape { menu, ..shape })
        } else {
            run(seed, out, &Shape { menu: EVERYTHING, least: 3, spare: 2, members_change: true, ..shape })
        }
    },
    marks: marks::ALL,
    full: true,
};

const CRASHES_ONLY: Menu = Menu { crash: 6, crash_all: 4, crash_mid_turn: 4, slow_disk: 1, ..Menu::NONE };

const DISK_TROUBLE: Menu = Menu {
    crash: 3,
    crash_all: 1,
    crash_mid_turn: 2,
    pause: 1,
    split: 1,
    one_way: 0,
    reset: 1,
    mood: 0,
    slow_disk: 4,
    full_disk: 4,
    failing_disk: 4,
    rot: 5,
    wipe: 5,
    ..Menu::NONE
};

const LOSING: Menu =
    Menu { crash: 6, crash_all: 2, crash_mid_turn: 2, split: 2, pause: 1, lost_files: 8, ..Menu::NONE };

const PUTTING_BACK: Menu =
    Menu { crash: 4, crash_all: 1, crash_mid_turn: 2, split: 2, pause: 2, put_back: 10, ..Menu::NONE };

const EVERYTHING: Menu = Menu { full_disk: 2, rot: 2, wipe: 2, ..Menu::USUAL };

/// The cluster and its faults.
struct Shape {
    salt: u64,
    menu: Menu,
    /// The fewest servers of a segment that an operator requests.
    least: usize,
    /// The most hosts that are not members at first.
    spare: usize,
    /// Whether members are added and removed.
    members_change: bool,
    /// The shortest mean time between two changes by an operator, in milliseconds, and the range above it from which the seed selects.
    changes_every_ms: (u64, u64),
}

impl Shape {
    /// Returns whether changes are so frequent that index pages are what the run tests.
    fn is_long(&self) -> bool {
        self.changes_every_ms.0 < 1_000
    }

    const LOGS: Shape = Shape {
        salt: 0,
        menu: Menu::USUAL,
        least: 1,
        spare: 0,
        members_change: false,
        changes_every_ms: (1_500, 4_000),
    };
}

fn run(seed: u64, out: TraceOut, shape: &Shape) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ shape.salt);
    let members = ([1, 3, 3, 4, 5][rng.below(5) as usize]).max(shape.least);
    let hosts = members + rng.below(shape.spare as u64 + 1) as usize;
    let weather = Weather {
        latency_ns: [50_000, 200_000, 1_000_000][rng.below(3) as usize],
        sync_ns: [50_000, 200_000, 2_000_000][rng.below(3) as usize],
        skew_permille: rng.below(50),
        ..Weather::default()
    };
    let mut options = Options::default();
    // Small pages, so that runs fill them. The other seeds use the usual size, to cover paths that need many segments in the chain.
    options.log.page_items =
        if shape.is_long() || seed.is_multiple_of(2) { 2 } else { options.log.page_items };
    // With the usual timings, most events of a run would be heartbeats. Detection still takes less time than a fault lasts.
    options.timings.heartbeat_every = Duration::from_millis(150);
    options.timings.silent_after = Duration::from_millis(600);
    let assembly =
        Nodes { members, founders: members.min(3), options, programs: Default::default(), starts: 0 };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    let names: Vec<String> = (0..1 + rng.below(2)).map(|n| format!("log{n}")).collect();
    for name in &names {
        people(&stage, &mut rng, name, shape);
    }
    if shape.members_change {
        stage.spawn("members", membership::operator(stage.clone(), Duration::from_secs(3)));
    }
    let faults = Faults {
        menu: shape.menu.some(&mut rng),
        every: Duration::from_millis(300 + rng.below(1500)),
        during: SAFETY,
        may_lose: may_lose(&stage),
        nervous: 0,
    };
    let demand = load::demand(stage.clone(), names);
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// Allows the loss of one disk at a time. The next one may be lost only when nothing names the previous one any more.
fn may_lose(stage: &Stage<NodeHandles>) -> Box<dyn Fn(usize) -> bool + Send> {
    let stage = stage.clone();
    Box::new(move |host| {
        let well = |h: usize| {
            let health = stage.cluster.health(h);
            health.up && !health.closed && !health.rotten && !health.put_back && health.refused.is_none()
        };
        let members = load::members(&stage);
        members.contains(&host)
            && !stage.cluster.lost_within(stage.env.now(), LOSSES_APART)
            && members.iter().filter(|h| **h != host).all(|h| well(*h))
            && load::is_repaired(&stage)
            && load::acceptors_left(&stage) >= 3
            && load::can_be_lost(&stage, host)
    })
}

/// Starts the clients and the operator of one log.
fn people(stage: &Stage<NodeHandles>, rng: &mut Rng, name: &str, shape: &Shape) {
    let appenders = 1 + rng.below(3);
    let (least_ms, span_ms) = shape.changes_every_ms;
    let reconfigure = Duration::from_millis(least_ms + rng.below(span_ms));
    let (stage, name, least) = (stage.clone(), name.to_owned(), shape.least);
    let trims = rng.below(2) == 0;
    let all = stage.clone();
    all.spawn("people", async move {
        load::create(&stage, &name).await;
        for _ in 0..appenders {
            let think = Duration::from_millis(220 * appenders);
            stage.spawn("appender", load::appender(stage.clone(), name.clone(), think));
        }
        stage.spawn("checker", load::checker(stage.clone(), name.clone(), Duration::from_millis(300)));
        stage.spawn("reader", load::reader(stage.clone(), name.clone(), Duration::from_millis(100)));
        stage.spawn("operator", load::operator(stage.clone(), name.clone(), reconfigure, least));
        if trims {
            stage.spawn("trimmer", load::trimmer(stage.clone(), name.clone(), Duration::from_secs(4)));
        }
    });
}

//! Loglets outside of the cluster, on whole nodes: swapped in and out under load and faults of the nodes, while the store or service is
//! slow, loses requests and answers, refuses without a reason, shows older states and altered entries, answers nobody for a while, and
//! cannot be reached from half of the nodes.

use std::time::Duration;

use atoll_contract::LogletSpec;

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::striped::nodes;
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::{again, log as load, striped};
use crate::world::World;

/// Logs that are swapped between an object store and native Loglets.
pub const OBJECT: Scenario = Scenario {
    name: "object",
    about: "a log that is swapped native, object store, native while it is used; nodes die, and the store fails in every way it can",
    run: |seed, out| run(seed, out, &OF_OBJECT),
    marks: &[
        &["object.append.lost", "object.append.read_back", "object.append.found", "object.tail.rebase"],
        &["object.seal.lost", "object.trim.block", "object.store.lost", "object.store.unanswered"],
        &["object.store.conflict", "object.store.cut_off", "object.store.away", "object.store.wrong"],
        &["object.read_again"],
    ],
    full: true,
};

/// Logs that are swapped between a log service and native Loglets.
pub const LOG_SERVICE: Scenario = Scenario {
    name: "log-service",
    about: "a log that is swapped native, log service, native while it is used; nodes die, and the service fails in every way it can",
    run: |seed, out| run(seed, out, &OF_LOG_SERVICE),
    marks: &[
        &["service.append.behind", "service.append.found", "service.append.over", "service.tail.follow"],
        &["service.trim.purge", "service.lost", "service.unanswered", "service.conflict"],
        &["service.cut_off", "service.old_server", "service.away", "service.wrong"],
    ],
    full: true,
};

/// Logs that are swapped between a ZooKeeper ensemble and native Loglets.
pub const ZOOKEEPER: Scenario = Scenario {
    name: "zookeeper-loglet",
    about: "a log that is swapped native, ZooKeeper, native while it is used; nodes die, and the ensemble fails in every way it can",
    run: |seed, out| run(seed, out, &OF_ZOOKEEPER),
    marks: &[
        &[
            "zookeeper.append_lost",
            "zookeeper.append_refused",
            "zookeeper.own_attempt_found",
            "zookeeper.swept",
        ],
        &["zookeeper.lost", "zookeeper.unanswered", "zookeeper.cut_off", "zookeeper.old_server"],
        &["zookeeper.away", "zookeeper.wrong", "zookeeper.read_again"],
    ],
    full: true,
};

const LOG: &str = "log0";
/// How long half of the nodes cannot reach the store or service, and how long nobody can, as settings of the protocols in tests.
const CUT: &str = "store_cut_window_ms";
const AWAY: &str = "store_away_window_ms";

/// Loglets of a kind outside of the cluster.
struct Outside {
    salt: u64,
    /// Of the first Loglet.
    first: fn() -> LogletSpec,
    spec: fn(&Stage<NodeHandles>) -> LogletSpec,
    /// What the store or service does to requests, as settings of the protocols in tests.
    faults: &'static [&'static str],
}

const OF_OBJECT: Outside = Outside {
    salt: 0x6f62_6a65_6374,
    first: || LogletSpec::of("object"),
    spec: object,
    faults: &["store_lost", "store_unanswered", "store_late", "store_conflicts", "store_wrong"],
};

const OF_LOG_SERVICE: Outside = Outside {
    salt: 0x0073_6572_7669_6365,
    first: || LogletSpec::of("log-service"),
    spec: |_| LogletSpec::of("log-service"),
    faults: &["store_lost", "store_unanswered", "store_late", "store_conflicts", "store_lag", "store_wrong"],
};

const OF_ZOOKEEPER: Outside = Outside {
    salt: 0x7a6f_6f6b_6565,
    first: zookeeper,
    spec: |_| zookeeper(),
    faults: &["store_lost", "store_unanswered", "store_late", "store_lag", "store_wrong"],
};

fn zookeeper() -> LogletSpec {
    let mut spec = LogletSpec::of("zookeeper-loglet");
    spec.options.insert("connect".to_owned(), "memory:1".to_owned());
    spec
}

/// Returns a specification of an ObjectLoglet with objects and blocks of a random size, small enough for a run to fill many of both.
fn object(stage: &Stage<NodeHandles>) -> LogletSpec {
    let mut spec = LogletSpec::of("object");
    let mut option = |name: &str, value: u64| spec.options.insert(name.to_owned(), value.to_string());
    option("batch_bytes", [200, 4_000, 1 << 20][stage.below(3) as usize]);
    option("interval_ms", [0, 5, 50][stage.below(3) as usize]);
    option("block_objects", 1 + stage.below(12));
    spec
}

/// Starts the clients and the operator. The clients hand in records again, at the same door and at others, because an appender can only
/// know from what other nodes have appended that a record is in the log already.
fn people(stage: &Stage<NodeHandles>, rng: &mut Rng, of: &'static Outside) {
    let appenders = 1 + rng.below(4);
    let swaps = Duration::from_millis(300 + rng.below(3_000));
    let trims = Duration::from_millis([300, 4_000][rng.below(2) as usize]);
    let all = stage.clone();
    let stage = stage.clone();
    all.spawn("people", async move {
        load::create_spec(&stage, LOG, (of.first)()).await;
        let name = || LOG.to_owned();
        for _ in 0..appenders {
            stage.spawn("appender", load::appender(stage.clone(), name(), Duration::from_millis(60)));
        }
        stage.spawn("impatient", again::impatient(stage.clone(), name(), Duration::from_millis(200)));
        stage.spawn("belated", again::belated(stage.clone(), name(), 4, Duration::from_millis(200)));
        stage.spawn("checker", load::checker(stage.clone(), name(), Duration::from_millis(150)));
        stage.spawn("reader", load::reader(stage.clone(), name(), Duration::from_millis(100)));
        stage.spawn("operator", striped::swapper(stage.clone(), name(), swaps, of.spec));
        stage.spawn("trimmer", load::trimmer(stage.clone(), name(), trims));
    });
}

fn run(seed: u64, out: TraceOut, of: &'static Outside) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ of.salt);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let (weather, assembly) = nodes(&mut rng, hosts);
    // All nodes, and all clones of these protocols, share one store. A run ends with a look at each piece of the log through each node, so
    // a store that is farther away would take most of the run.
    let mut store = assembly.options.protocols.clone();
    store.set("store_delay_us", [100, 1_000, 5_000][rng.below(3) as usize]);
    // How many of a thousand requests: some seeds have a store that never fails.
    for fault in of.faults {
        store.set(fault, [0, 10, 50][rng.below(3) as usize]);
    }
    store.set(CUT, [0, 500, 3_000][rng.below(3) as usize]);
    store.set(AWAY, [0, 500, 2_000][rng.below(3) as usize]);
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    let stage = stage(&mut world);
    stage.oracles.log.answers_may_be_altered(LOG);
    people(&stage, &mut rng, of);
    let menu = Menu::USUAL.some(&mut rng);
    let faults = Faults::usual(menu, Duration::from_millis(500 + rng.below(1_500)));
    let demand = {
        let stage = stage.clone();
        async move {
            for fault in of.faults.iter().copied().chain([CUT, AWAY]) {
                store.set(fault, 0);
            }
            load::demand(stage, vec![LOG.to_owned()]).await;
        }
    };
    play(&mut world, &stage, &mut rng, faults, demand)
}

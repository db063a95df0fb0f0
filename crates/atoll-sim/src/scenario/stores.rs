//! Directed: the store of a replica fails while its node runs, with temporary and with permanent failures. The other nodes must not wait
//! for it. A temporary failure must not halt the replica, which continues without a restart once its store works.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::NodeId;
use atoll_core::testing::{hit, watch_applied};
use atoll_db::{Engine, LogPos, Persistence};
use atoll_node::database::LOG;
use atoll_zookeeper::server::options::Options;

use crate::oracle::database::DatabaseOracle;
use crate::oracle::zookeeper::ZooKeeperOracle;
use crate::rng::Rng;
use crate::scenario::database::{Cellular, Engines};
use crate::scenario::nemesis::{self, Menu};
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::{Faults, Flag, Stage, play, stage};
use crate::scenario::replicas::{KEEP_ENTRIES, Replicas, Stores, place};
use crate::scenario::zookeeper::{self, WithDoors};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::database::{self as load, Cells};
use crate::workload::zookeeper::client::Client;
use crate::workload::zookeeper::host::Doors;
use crate::world::World;
use crate::world::fault::{Death, Fault};

/// Length of the phase under faults.
const DURING: Duration = Duration::from_secs(40);
/// How long a store fails at least: long enough that every node notices and then makes progress for [`SOON`].
const TROUBLE: Duration = Duration::from_secs(8);
/// Within this time, entries that all healthy replicas have applied must be trimmed, except those that are kept on purpose.
const SOON: Duration = Duration::from_secs(4);
/// Within this time, a replica whose store works again must have caught up.
const RESUMES_WITHIN: Duration = Duration::from_secs(10);
/// How many entries the log may hold in addition to those kept on purpose: a trim must be worth its cost, and the newest entries are not
/// applied everywhere yet.
const MORE_ENTRIES: u64 = KEEP_ENTRIES / 4 + 100;

/// The scenario of a database.
pub const DATABASE: Scenario = Scenario {
    name: "database-stores",
    about: "directed: the store of a living node fails, temporarily or permanently; trims and writes continue without it",
    run: run_database,
    marks: &[&[
        "db.store.tried_again",
        "db.upkeep.not_waited_for",
        "sim.stores.lasting",
        "sim.stores.passing",
    ]],
    full: false,
};

/// The scenario of ZooKeeper.
pub const ZOOKEEPER: Scenario = Scenario {
    name: "zookeeper-stores",
    about: "directed: the store of a living node fails; the sessions that it holds move or expire, with their nodes",
    run: run_zookeeper,
    marks: &[&["sim.stores.held", "sim.stores.let_go"]],
    full: false,
};

fn run_database(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7374_6f72_6573);
    let (_, weather) = place(&mut rng);
    let members = [3, 3, 5][rng.below(3) as usize];
    let (engines, oracle) = (Engines::default(), DatabaseOracle::default());
    let cluster = Arc::new(OnceLock::new());
    let cells = Cellular { engines: engines.clone(), oracle: oracle.clone(), cluster: cluster.clone() };
    let assembly = Replicas::new(members, cells);
    let stores = assembly.stores.clone();
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    let _ = cluster.set(world.cluster());
    let stage: Stage<NodeHandles> = stage(&mut world);
    for _ in 0..3 {
        let think = Duration::from_millis(20 + rng.below(40));
        stage.spawn("writer", load::writer(stage.clone(), engines.clone(), oracle.clone(), think));
    }
    let reader = load::reader(stage.clone(), engines.clone(), oracle.clone(), Duration::from_millis(100));
    stage.spawn("reader", reader);
    let ended = Flag::default();
    let trouble = Trouble {
        stage: stage.clone(),
        engines: engines.clone(),
        oracle: oracle.clone(),
        stores,
        ended: ended.clone(),
    };
    stage.spawn("stores", trouble.run());
    // `Trouble` slows disks, one at a time.
    let menu = Menu { reset: rng.below(2), ..Menu::NONE };
    let faults = Faults {
        menu,
        every: Duration::from_millis(3_000),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let healed = stage.clone();
    let demand = load::demand(stage.clone(), engines.clone(), oracle.clone());
    let demand = async move {
        healed.waits_for("the last store to work again".to_owned());
        while !ended.is_up() {
            healed.pause(Duration::from_millis(50)).await;
        }
        demand.await;
    };
    let mut outcome = play(&mut world, &stage, &mut rng, faults, demand);
    engines.close();
    outcome.size.answered += oracle.answered();
    outcome
}

/// Slows one disk or none, and ends the slowness of all others. The demands during a failure need a majority of members with disks of usual
/// speed: if each sync of most acceptors took hundreds of milliseconds, the proposers of a reconfiguration would outbid each other for many
/// seconds. Meanwhile nothing would be written, trimmed or moved, whether or not a store fails.
fn slow_one_disk(stage: &Stage<NodeHandles>) {
    let cluster = &stage.cluster;
    (0..cluster.hosts()).for_each(|host| cluster.inject(Fault::SlowDisk { host, factor: 1 }));
    if stage.below(2) == 0 {
        let host = stage.below(cluster.hosts() as u64) as usize;
        cluster.inject(Fault::SlowDisk { host, factor: 2 + stage.below(199) });
    }
}

/// Makes the journal of one node, or of none, unreadable until the next call. Other nodes have the same entries.
fn fail_reads_of_one(stage: &Stage<NodeHandles>) {
    nemesis::all_read_again(&stage.cluster);
    if stage.below(2) == 0 {
        let host = stage.below(stage.cluster.hosts() as u64) as usize;
        stage.cluster.inject(Fault::FailReads { host, failing: true });
    }
}

/// Lets the stores fail, one after the other.
struct Trouble {
    stage: Stage<NodeHandles>,
    engines: Engines<Cells>,
    oracle: DatabaseOracle,
    stores: Stores,
    /// Raised after the end of the load, when no store fails any more.
    ended: Flag,
}

impl Trouble {
    async fn run(self) {
        self.stage.pause(Duration::from_secs(4)).await;
        while !self.stage.over.is_up() {
            let host = self.stage.below(self.stage.cluster.hosts() as u64) as usize;
            slow_one_disk(&self.stage);
            fail_reads_of_one(&self.stage);
            match self.stage.below(3) {
                0 => self.fails(host, Persistence::Lasting).await,
                _ => self.fails(host, Persistence::Passing).await,
            }
            self.stage.pause(Duration::from_secs(3)).await;
        }
        self.ended.raise();
    }

    fn engine(&self, host: usize) -> Option<Engine<Cells>> {
        let life = self.stage.cluster.host(host)?;
        self.engines.get(NodeId(host as u32 + 1), life.env.incarnation())
    }

    /// Returns where the log begins and ends, according to the hosts other than `without`.
    fn log(&self, without: usize) -> Option<(LogPos, LogPos)> {
        let others = (0..self.stage.cluster.hosts()).filter(|host| *host != without);
        let logs = others.filter_map(|host| self.stage.cluster.host(host)?.handles.log(LOG));
        let ends = logs.filter_map(|log| Some((log.chain()?.chain.trim(), log.known_tail())));
        ends.reduce(|(a, b), (c, d)| (a.max(c), b.max(d)))
    }

    async fn fails(&self, host: usize, how: Persistence) {
        let Some(storage) = self.stage.cluster.storage(host) else { return };
        let Some(engine) = self.engine(host) else { return };
        hit(match how {
            Persistence::Passing => "sim.stores.passing",
            Persistence::Lasting => "sim.stores.lasting",
        });
        self.stores.fail(storage, Some(how));
        self.stage.pause(TROUBLE).await;
        let earlier = self.log(host);
        let answered = self.oracle.answered();
        self.stage.pause(SOON).await;
        let words = format!("while the store of host {host} fails ({how:?})");
        // Clients that have ended their load get no answers.
        let loaded = !self.stage.over.is_up();
        if let (Some((_, tail)), Some((trim, _))) = (earlier, self.log(host))
            && tail.0 > trim.0 + KEEP_ENTRIES + MORE_ENTRIES
        {
            self.fail(format!(
                "entries below {tail} were there {SOON:?} ago, trimmed below {trim} only, {words}"
            ));
        }
        if loaded && self.oracle.answered() == answered {
            self.fail(format!("nothing was answered in {SOON:?}, {words}"));
        }
        if how == Persistence::Passing
            && let Some(halt) = engine.halted()
        {
            self.fail(format!("it has halted ({halt}), {words}"));
        }
        self.stores.fail(storage, None);
        match how {
            Persistence::Passing => self.resumes(host, &engine).await,
            Persistence::Lasting => {
                // A node that cannot read its journal does not start. It would be down while the next store fails.
                self.stage.cluster.inject(Fault::FailReads { host, failing: false });
                let back_after = Some(self.stage.below(500_000_000));
                self.stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
            }
        }
    }

    /// Checks that the replica catches up without a restart.
    async fn resumes(&self, host: usize, engine: &Engine<Cells>) {
        let Some((_, tail)) = self.log(host) else { return };
        let caught_up = async {
            while engine.view().below() < tail {
                self.stage.pause(Duration::from_millis(50)).await;
            }
        };
        if self.stage.env.within(RESUMES_WITHIN, caught_up).await.is_err() {
            let health = engine.health();
            self.fail(format!("host {host} has not caught up with {tail} since its store works: {health:?}"));
        }
    }

    fn fail(&self, what: String) {
        self.stage.cluster.fail(format!("STORES: {what}"));
    }
}

/// Within this time, a replica that is out of service must have lost its sessions. All nodes must notice first, and the nodes that are
/// first in line to take the sessions over may be unable to.
const LET_GO_WITHIN: Duration = Duration::from_secs(15);

fn run_zookeeper(seed: u64, out: TraceOut) -> Outcome {
    watch_applied(true);
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6865_6c64);
    let (_, weather) = place(&mut rng);
    let members = [3, 3, 5][rng.below(3) as usize];
    let oracle = ZooKeeperOracle::default();
    let doors_there = Arc::new(OnceLock::new());
    let tenant =
        WithDoors { doors: doors_there.clone(), rng: rng.fork(), skew_permille: weather.skew_permille };
    let mut assembly = Replicas::new(members, tenant);
    assembly.on_disk = seed & 2 == 0;
    let stores = assembly.stores.clone();
    let walls = assembly.walls.clone();
    let mut world = World::new(rng.bits(), members, weather, assembly, out);
    walls.follow(world.clients());
    let options =
        Options { min_session_timeout_ms: 1_000, reap_every: Duration::from_secs(1), ..Options::default() };
    let doors = Doors::new(world.clients(), world.cluster(), oracle.clone(), options);
    let _ = doors_there.set(doors.clone());
    let stage: Stage<NodeHandles> = stage(&mut world);
    for id in 0..4 + rng.below(3) as usize {
        let think = Duration::from_millis(60 + rng.below(120));
        let timeout_ms = [1_500, 2_500, 4_000][rng.below(3) as usize];
        let client = Client::new(stage.clone(), doors.clone(), oracle.clone(), id, think, timeout_ms);
        stage.spawn("zookeeper.client", client.run());
    }
    let ended = Flag::default();
    stage.spawn("stores", holders(stage.clone(), doors.clone(), oracle.clone(), stores, ended.clone()));
    // `holders` slows disks, one at a time.
    let menu = Menu { reset: rng.below(2), ..Menu::NONE };
    let faults = Faults {
        menu,
        every: Duration::from_millis(4_000),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = {
        let (stage, doors, oracle) = (stage.clone(), doors.clone(), oracle.clone());
        async move {
            // A node whose store fails may halt until then.
            stage.waits_for("the end of the last failure of a store".to_owned());
            while !ended.is_up() {
                stage.pause(Duration::from_millis(50)).await;
            }
            zookeeper::demand(stage, doors, oracle).await;
        }
    };
    let outcome = play(&mut world, &stage, &mut rng, faults, demand);
    doors.close_all();
    watch_applied(false);
    outcome
}

/// Lets the store of a node that holds sessions fail, repeatedly. Raises `ended` after the end of the load, when no store fails any
/// more.
async fn holders(
    stage: Stage<NodeHandles>,
    doors: Doors,
    oracle: ZooKeeperOracle,
    stores: Stores,
    ended: Flag,
) {
    stage.pause(Duration::from_secs(3)).await;
    while !stage.over.is_up() {
        let hosts = stage.cluster.hosts();
        let host = stage.below(hosts as u64) as usize;
        let node = NodeId(host as u32 + 1);
        oracle.follow(stage.env.now().0);
        let holds = !oracle.held_by(node).is_empty();
        let (Some(storage), Some(engine)) = (stage.cluster.storage(host), doors.engine(node)) else {
            continue;
        };
        if !holds {
            stage.pause(Duration::from_millis(200)).await;
            continue;
        }
        hit("sim.stores.held");
        slow_one_disk(&stage);
        let how = if stage.below(2) == 0 { Persistence::Passing } else { Persistence::Lasting };
        stores.fail(storage, Some(how));
        let let_go = async {
            // It may keep its sessions until it is out of service, which takes entries that it cannot apply. Without a load there may
            // be none.
            let is_over = || stage.over.is_up();
            while !is_over() && (!oracle.held_by(node).is_empty() || engine.out_of_service().is_none()) {
                stage.pause(Duration::from_millis(100)).await;
                oracle.follow(stage.env.now().0);
            }
        };
        match stage.env.within(LET_GO_WITHIN, let_go).await {
            Ok(()) => hit("sim.stores.let_go"),
            Err(_) if engine.out_of_service().is_none() => {}
            Err(_) => {
                let held = oracle.held_by(node);
                stage.cluster.fail(format!(
                    "STORES: node {node} holds sessions {held:x?} for {LET_GO_WITHIN:?} while its store fails ({how:?}): {:?}",
                    engine.out_of_service()
                ));
            }
        }
        let halted = engine.halted();
        if let Some(halt) = halted.as_ref().filter(|_| how == Persistence::Passing) {
            stage.cluster.fail(format!("STORES: node {node} has halted over a failure that passes: {halt}"));
        }
        stores.fail(storage, None);
        if halted.is_some() {
            let back_after = Some(stage.below(500_000_000));
            stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
        }
        stage.pause(Duration::from_secs(3)).await;
    }
    ended.raise();
}

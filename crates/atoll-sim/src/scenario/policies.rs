//! A log with a policy: segments are sealed, moved to an object store and trimmed, and the log leaves the nodes and comes back, while nodes
//! die and the store fails.
//!
//! The judge sees each chain at the moment at which it is chosen. It knows how many records were acknowledged, and how large they are, so
//! it knows by itself what had to stay and how often the log was switched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::entry::ENTRY_HEADER_BYTES;
use atoll_contract::{ClientId, LogPos, OpId};
use atoll_core::testing::hit;
use atoll_core::{Frame, NodeCore, Tick};
use atoll_log::virtual_log::Segment;
use atoll_node::log_policy::declared::{Cold, LogPolicy, Placement, WantedLoglet};

use crate::rng::Rng;
use crate::scenario::nemesis::Menu;
use crate::scenario::node::{NodeHandles, Nodes};
use crate::scenario::phases::{Faults, Stage, play, stage};
use crate::scenario::striped::nodes;
use crate::scenario::walls::{USUALLY_WRONG_MS, Walls};
use crate::scenario::{Outcome, Scenario, TraceOut};
use crate::workload::log::{self as load, Pending};
use crate::world::fault::{Death, Fault};
use crate::world::observer::Who;
use crate::world::{Assembly, World};

/// A log with a policy.
pub const SCENARIO: Scenario = Scenario {
    name: "policy",
    about: "the policy of a log seals, moves, trims and places it, while nodes die and the object store fails",
    run,
    marks: &[&[
        "policy.log.cooled",
        "policy.log.failed",
        "policy.log.placed",
        "policy.log.sealed",
        "policy.log.trimmed",
        "sim.policy.left",
        "sim.policy.returned",
    ]],
    full: false,
};

const LOG: &str = "log0";
/// Bytes of a record.
const RECORD: usize = 100;
/// The same, with what the log adds.
const STORED: u64 = (RECORD + ENTRY_HEADER_BYTES) as u64;
/// How many records a segment gets before it is sealed, how many are hot, and how many are kept.
const SEGMENT: u64 = 100;
const HOT: u64 = 200;
const KEPT: u64 = 400;
/// The most records that one appender has in flight, and how many appenders there are.
const WINDOW: u64 = 8;
const APPENDERS: u64 = 2;
/// How long segments are kept in seeds with an age.
const KEEP_AGE: Duration = Duration::from_secs(30);
const REST: Duration = Duration::from_secs(14);
/// Two nodes may differ that much.
const CLOCKS: Duration = Duration::from_millis(2 * USUALLY_WRONG_MS);
/// How long the phase under faults lasts.
const DURING: Duration = Duration::from_secs(60);
/// How often the judge looks at the chain.
const LOOK: Duration = Duration::from_millis(10);

/// Nodes with wall clocks.
struct Clocked {
    nodes: Nodes,
    walls: Walls,
}

impl Assembly for Clocked {
    type Handles = NodeHandles;

    fn describe(&self, frame: &Frame) -> String {
        self.nodes.describe(frame)
    }

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, NodeHandles) {
        self.nodes.assemble(who, seed)
    }

    fn start(&mut self, core: &mut NodeCore, who: &Who, handles: &NodeHandles) {
        handles.0.members.say_wall(self.walls.of(who.node));
        self.nodes.start(core, who, handles);
    }
}

fn policy(rng: &mut Rng, hosts: usize) -> LogPolicy {
    let object =
        || WantedLoglet { kind: "object".to_owned(), places: BTreeMap::new(), options: BTreeMap::new() };
    let placed = rng.below(3) > 0;
    let by_age = rng.below(3) == 0;
    LogPolicy {
        placement: placed.then(|| Placement {
            kind: "native".to_owned(),
            least_replicas: hosts as u32,
            elsewhere: Some(object()),
            settle_ms: 1_000,
            return_ms: 2_000,
            rest_ms: REST.as_millis() as u64,
        }),
        cold: (rng.below(4) > 0).then(|| Cold { to: object(), age_ms: None, hot_bytes: Some(HOT * STORED) }),
        keep_age_ms: by_age.then_some(KEEP_AGE.as_millis() as u64),
        keep_bytes: (!by_age).then_some(KEPT * STORED),
        segment_age_ms: None,
        segment_bytes: Some(SEGMENT * STORED),
    }
}

fn run(seed: u64, out: TraceOut) -> Outcome {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x0070_6f6c_6963_7921);
    let hosts = [3, 3, 4, 5][rng.below(4) as usize];
    let (weather, nodes) = nodes(&mut rng, hosts);
    let mut store = nodes.options.protocols.clone();
    store.set("store_delay_us", [100, 1_000, 5_000][rng.below(3) as usize]);
    for fault in STORE_FAULTS {
        store.set(fault, [0, 10, 50][rng.below(3) as usize]);
    }
    store.set(CUT, [0, 500, 3_000][rng.below(3) as usize]);
    let policy = policy(&mut rng, hosts);
    let walls = Walls::default();
    let assembly = Clocked { nodes, walls: walls.clone() };
    let mut world = World::new(rng.bits(), hosts, weather, assembly, out);
    walls.follow(world.clients());
    let stage = stage(&mut world);
    // The judge decides what may be trimmed.
    stage.oracles.log.trim_begins(LOG, u64::MAX);
    stage.oracles.log.answers_may_be_altered(LOG);
    people(&stage, &policy);
    let faults = Faults {
        menu: Menu::USUAL.some(&mut rng),
        every: Duration::from_millis(2_000 + rng.below(6_000)),
        during: DURING,
        may_lose: Box::new(|_| false),
        nervous: 0,
    };
    let demand = {
        let stage = stage.clone();
        async move {
            for fault in STORE_FAULTS.iter().copied().chain([CUT]) {
                store.set(fault, 0);
            }
            settles(&stage, &policy).await;
            withdraw(&stage).await;
            load::demand(stage, vec![LOG.to_owned()]).await;
        }
    };
    play(&mut world, &stage, &mut rng, faults, demand)
}

/// What the store does to requests, and how long half of the nodes cannot reach it, as settings of the protocols in tests.
const STORE_FAULTS: [&str; 5] =
    ["store_lost", "store_unanswered", "store_late", "store_conflicts", "store_wrong"];
const CUT: &str = "store_cut_window_ms";

fn people(stage: &Stage<NodeHandles>, policy: &LogPolicy) {
    let (stage, policy) = (stage.clone(), policy.clone());
    stage.clone().spawn("people", async move {
        load::create_kind(&stage, LOG, "native").await;
        stage.spawn("judge", judge(stage.clone(), policy.clone()));
        declare(&stage, &policy).await;
        for _ in 0..APPENDERS {
            stage.spawn("appender", appender(stage.clone(), Duration::from_millis(150)));
        }
        if policy.placement.is_some() {
            stage.spawn("breaker", breaker(stage.clone()));
        }
        stage.spawn("checker", load::checker(stage.clone(), LOG.to_owned(), Duration::from_millis(500)));
        stage.spawn("reader", load::reader(stage.clone(), LOG.to_owned(), Duration::from_millis(200)));
    });
}

/// Kills a node for long enough that the log has to leave, from time to time.
async fn breaker(stage: Stage<NodeHandles>) {
    while !stage.over.is_up() {
        stage.pause(Duration::from_secs(15)).await;
        let host = stage.below(stage.cluster.hosts() as u64) as usize;
        let back_after = Some(2_000_000_000 + stage.below(4_000_000_000));
        stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after });
    }
}

/// Declares the policy, until some node says that it is declared.
async fn declare(stage: &Stage<NodeHandles>, policy: &LogPolicy) {
    loop {
        if let Some(life) = load::live(stage, stage.below(64) as usize) {
            let declared = life.handles.0.log_policies.declare(LOG.to_owned(), policy.clone());
            if matches!(stage.cluster.ask(&life, declared).await, Some(Ok(Ok(())))) {
                return;
            }
        }
        stage.pause(Duration::from_millis(200)).await;
    }
}

/// Ends the policy, and waits until no action is under way any more.
async fn withdraw(stage: &Stage<NodeHandles>) {
    stage.waits_for("the end of the policy".to_owned());
    loop {
        if let Some(life) = load::live(stage, stage.below(64) as usize) {
            let ended = life.handles.0.log_policies.withdraw(LOG.to_owned());
            if matches!(stage.cluster.ask(&life, ended).await, Some(Ok(Ok(())))) {
                break;
            }
        }
        stage.pause(Duration::from_millis(200)).await;
    }
    stage.env.sleep(Duration::from_secs(15)).await;
}

/// Appends records of one size until the load is over.
async fn appender(stage: Stage<NodeHandles>, think: Duration) {
    let client = ClientId(stage.env.random() | 1);
    let (mut seq, mut at) = (0, stage.below(64) as usize);
    let mut pending: Vec<Pending> = Vec::new();
    while !stage.over.is_up() {
        stage.pause(think).await;
        if pending.is_empty() {
            for _ in 0..1 + stage.below(WINDOW) {
                seq += 1;
                let mut payload = stage.env.random().to_le_bytes().to_vec();
                payload.resize(RECORD, seq as u8);
                pending.push(Pending { op: OpId { client, seq }, payload: payload.into(), floor: None });
            }
        }
        if !load::round(&stage, LOG, &mut at, &mut pending).await {
            at = stage.below(64) as usize;
        }
        stage.report();
    }
}

/// The log, as it was chosen last.
#[derive(Clone)]
struct View {
    trim: LogPos,
    segments: Vec<Segment>,
}

fn view(stage: &Stage<NodeHandles>) -> Option<View> {
    let wire = stage.oracles.wire.lock();
    let chain = wire.chain.newest(LOG)?;
    Some(View { trim: chain.trim(), segments: chain.segments().to_vec() })
}

impl View {
    fn kind(&self) -> &str {
        self.segments.last().map_or("", |segment| segment.kind.as_str())
    }

    /// Returns how many records the sealed segments of native Loglets have, and the active one from its start on.
    fn hot(&self) -> u64 {
        let sealed = self.segments.iter().filter(|segment| segment.kind == "native");
        sealed.filter_map(|segment| Some(segment.stop?.since(segment.start.max(self.trim)))).sum()
    }
}

/// Watches each change of the chain.
async fn judge(stage: Stage<NodeHandles>, policy: LogPolicy) {
    let mut last: Option<View> = None;
    let mut switched: Option<Tick> = None;
    // When the judge saw that a segment had been sealed, by where it stops.
    let sealed: Arc<Mutex<BTreeMap<LogPos, Tick>>> = Arc::default();
    loop {
        stage.env.sleep(LOOK).await;
        let (Some(now), at) = (view(&stage), stage.env.now()) else { continue };
        {
            let mut sealed = sealed.lock().unwrap_or_else(PoisonError::into_inner);
            for stop in now.segments.iter().filter_map(|segment| segment.stop) {
                sealed.entry(stop).or_insert(at);
            }
            if let Some(before) = last.as_ref().filter(|before| before.trim < now.trim) {
                was_trimmed(&stage, &policy, before, now.trim, &sealed, at);
            }
        }
        if let Some(before) = last.as_ref().filter(|before| before.kind() != now.kind()) {
            hit(if now.kind() == "native" { "sim.policy.returned" } else { "sim.policy.left" });
            let rest = REST - CLOCKS - Duration::from_secs(1);
            if switched.is_some_and(|last| at.since(last) < rest) {
                let (was, is) = (before.kind(), now.kind());
                stage.cluster.fail(format!(
                    "POLICY: it was switched from {was} to {is} less than {rest:?} after the last time"
                ));
            }
            switched = Some(at);
        }
        last = Some(now);
    }
}

/// Checks what a trim has left.
fn was_trimmed(
    stage: &Stage<NodeHandles>,
    policy: &LogPolicy,
    before: &View,
    trim: LogPos,
    sealed: &BTreeMap<LogPos, Tick>,
    at: Tick,
) {
    let is_stop = before.segments.iter().any(|segment| segment.stop == Some(trim));
    if !is_stop && !sealed.contains_key(&trim) {
        stage.cluster.fail(format!("POLICY: it was trimmed below {trim}, where no sealed segment stops"));
    }
    if policy.keep_bytes.is_some() {
        // Records that nobody has acknowledged yet may count, too.
        let stays = stage.oracles.log.floor(LOG).saturating_sub(trim.0) + APPENDERS * WINDOW;
        if stays < KEPT {
            stage.cluster.fail(format!("POLICY: {stays} records stay above {trim}; {KEPT} must"));
        }
    }
    if policy.keep_age_ms.is_some() {
        let least = KEEP_AGE - CLOCKS - Duration::from_secs(1);
        let age = sealed.get(&trim).map_or(Duration::ZERO, |since| at.since(*since));
        if age < least {
            stage.cluster.fail(format!("POLICY: the segment up to {trim} was trimmed {age:?} after it was sealed; {least:?} is the least"));
        }
    }
}

/// Demands that the log ends where the policy wants it.
async fn settles(stage: &Stage<NodeHandles>, policy: &LogPolicy) {
    // The last failures slow the policy down, and a node that began something may not have told what became of it.
    for part in 0..4 {
        stage.waits_for(format!("the policy to recover, part {part}"));
        stage.env.sleep(Duration::from_secs(20)).await;
    }
    if policy.placement.is_some() {
        stage.waits_for("the log to return to the nodes".to_owned());
        while view(stage).is_none_or(|view| view.kind() != "native") {
            stage.pause(Duration::from_millis(100)).await;
        }
    }
    if policy.cold.is_some() {
        // Each move takes a look, so this may take several steps.
        let mut hot = u64::MAX;
        while hot > HOT {
            let now = view(stage).map_or(u64::MAX, |view| view.hot());
            if now < hot {
                stage.waits_for(format!("{now} hot records to move to the store; {HOT} may stay"));
            }
            hot = hot.min(now);
            stage.pause(Duration::from_millis(100)).await;
        }
    }
    if policy.keep_bytes.is_some() {
        stage.waits_for(format!(
            "the log to be trimmed until less than {KEPT} records are behind the first segment"
        ));
        let is_trimmed = |view: View| {
            let first = view.segments.first().and_then(|segment| segment.stop);
            first.is_none_or(|stop| stage.oracles.log.floor(LOG) < stop.0 + KEPT)
        };
        while !view(stage).is_some_and(is_trimmed) {
            stage.pause(Duration::from_millis(100)).await;
        }
    }
    if policy.keep_age_ms.is_some() {
        let first = view(stage).and_then(|view| view.segments.first().and_then(|segment| segment.stop));
        stage.waits_for(format!("the first segment, up to {first:?}, to be trimmed"));
        stage.env.sleep(KEEP_AGE - Duration::from_secs(5)).await;
        stage.waits_for(format!("the first segment, up to {first:?}, to be trimmed by its age"));
        while first.is_some_and(|stop| view(stage).is_none_or(|view| view.trim < stop)) {
            stage.pause(Duration::from_millis(100)).await;
        }
    }
}

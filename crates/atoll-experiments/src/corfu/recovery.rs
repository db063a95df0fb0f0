//! What a killed unit and a killed sequencer cost (paper, Figure 8): a client appends to a virtual log, and another one reads what was
//! there before, one operation at a time. The log continues in another segment, once nodes have noticed.
//!
//! Every process tells when it takes another node for dead. The first one that does is the detection; all processes of a machine have the
//! same clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_contract::{ClientId, LogPos, OpId, ReadFrom};
use atoll_core::Env;
use atoll_log::virtual_log::ActivePositions;
use atoll_log::{LogRecord, VirtualLog};
use bytes::Bytes;
use serde_json::{Value, json};

use super::nodes::{Folder, Nodes};
use super::operations::create;
use super::{Error, failed, load_1m, print};
use crate::apps::now_ns;
use crate::latency::median;

/// At first, node 5 is the sequencer, and nodes 6 and 7 have nothing to do.
const CHAINS: [[u32; 2]; 2] = [[1, 2], [3, 4]];
const SEQUENCER: u32 = 5;
const SERVERS: u32 = 7;
const PAYLOAD: usize = 4096;
/// Entries that are read.
const ENTRIES: u64 = 300;
/// Recovery from the detection on takes at most this in the median, in milliseconds.
const TARGET_MS: f64 = 30.0;
/// How long detection may take.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);
/// How long a client pauses after a failure.
const PAUSE: Duration = Duration::from_millis(2);
/// Width of the bins of a timeline.
const BIN_NS: i64 = 10_000_000;

/// Options of the kills.
#[derive(Debug, clap::Args)]
pub struct KillArgs {
    /// Kills of each kind
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Seconds of load before a kill
    #[arg(long, default_value_t = 1.0)]
    before: f64,
    /// Seconds of load after a kill
    #[arg(long, default_value_t = 2.5)]
    after: f64,
}

/// When operations ended, and how many failed.
#[derive(Default)]
pub struct Timeline {
    /// When each that succeeded ended, in nanoseconds.
    pub ends: Vec<i64>,
    /// How many failed.
    pub errors: u64,
}

impl Timeline {
    /// Returns the longest time without an operation that ends after `from`: when it began and ended.
    pub fn longest_gap(&self, from: i64) -> (i64, i64) {
        let gaps = self.ends.windows(2).filter(|pair| pair[1] >= from).map(|pair| (pair[0], pair[1]));
        gaps.max_by_key(|(began, ended)| ended - began).unwrap_or((from, i64::MAX))
    }

    /// Returns when the first operation ended that ended at or after `from`.
    pub fn first_from(&self, from: i64) -> Option<i64> {
        self.ends.iter().copied().find(|end| *end >= from)
    }

    /// Returns how many operations ended in each bin from `began` on.
    pub fn bins(&self, began: i64) -> Vec<u32> {
        let last = self.ends.last().map_or(0, |end| (end - began).max(0) / BIN_NS);
        let mut bins = vec![0; last as usize + 1];
        for end in &self.ends {
            bins[((end - began).max(0) / BIN_NS) as usize] += 1;
        }
        bins
    }
}

async fn keep_appending(env: Env, log: Arc<VirtualLog>, until: Arc<AtomicBool>) -> Timeline {
    let (client, payload) = (ClientId(env.random().max(1)), Bytes::from(vec![7; PAYLOAD]));
    let (mut timeline, mut seq) = (Timeline::default(), 0);
    while !until.load(Ordering::Relaxed) {
        seq += 1;
        let record = LogRecord { op: OpId { client, seq }, floor: None, payload: payload.clone() };
        let done = match log.submit_unordered(vec![record]) {
            Ok(ticket) => matches!(ticket.await, Ok(Ok(_))),
            Err(_) => false,
        };
        note(&env, &mut timeline, done).await;
    }
    timeline
}

async fn keep_reading(env: Env, log: Arc<VirtualLog>, until: Arc<AtomicBool>) -> Timeline {
    let mut timeline = Timeline::default();
    while !until.load(Ordering::Relaxed) {
        let at = LogPos(env.random() % ENTRIES);
        let read = log.read(at..at.plus(1), 1, ReadFrom::Anywhere).await;
        note(&env, &mut timeline, matches!(read, Ok(Ok(_)))).await;
    }
    timeline
}

async fn note(env: &Env, timeline: &mut Timeline, done: bool) {
    if done {
        timeline.ends.push(now_ns());
    } else {
        timeline.errors += 1;
        env.sleep(PAUSE).await;
    }
}

/// Returns who to kill: the head or the tail of the first chain, or the sequencer.
fn victim(active: &ActivePositions, role: &str) -> Option<u32> {
    let chain = active.layout.chains.first()?;
    let node = match role {
        "sequencer" => active.layout.sequencer,
        "first unit" => *chain.first()?,
        _ => *chain.last()?,
    };
    Some(node.0)
}

fn ms(nanos: i64) -> f64 {
    (nanos as f64 / 1e5).round() / 10.0
}

/// What a kill cost.
struct Cost {
    role: &'static str,
    recovery_ms: f64,
    read_gap_ms: f64,
    errors: u64,
}

/// Kills one node under load. Prints its line.
async fn kill(
    args: &KillArgs,
    nodes: &mut Nodes,
    log: &Arc<VirtualLog>,
    role: &'static str,
    round: u32,
) -> Result<Cost, Error> {
    let active = log.active_positions().await.map_err(failed)?.map_err(failed)?;
    let victim = victim(&active, role).ok_or_else(|| failed("the log has no chain"))?;
    let (env, until) = (nodes.env().clone(), Arc::new(AtomicBool::new(false)));
    let began = now_ns();
    let appends = env.launch("appends", keep_appending(env.clone(), log.clone(), until.clone()));
    let reads = env.launch("reads", keep_reading(env.clone(), log.clone(), until.clone()));
    tokio::time::sleep(Duration::from_secs_f64(args.before)).await;
    let said = nodes.said();
    let killed = now_ns();
    nodes.kill(victim)?;
    tokio::time::sleep(Duration::from_secs_f64(args.after)).await;
    until.store(true, Ordering::Relaxed);
    let stopped = |_| failed("the node of the clients has stopped");
    let (appends, reads) = (appends.await.map_err(stopped)?, reads.await.map_err(stopped)?);
    // The lines of different processes come in any order.
    let noticed = nodes.wait_for("a node notices the kill", NOTICED_WITHIN, said, |lines| {
        let of = |line: &Value| {
            let is_it = line["noticed"] == victim && line["up"] == false;
            line["at_ns"].as_i64().filter(|at| is_it && *at >= killed)
        };
        lines.iter().filter_map(|(_, line)| of(line)).min()
    });
    let noticed = noticed.await?;
    nodes.restart(victim).await?;
    let gap = |timeline: &Timeline| {
        let (from, to) = timeline.longest_gap(killed);
        ms(to - from)
    };
    let recovered = appends.first_from(noticed).ok_or_else(|| failed("no append followed the detection"))?;
    let cost = Cost {
        role,
        recovery_ms: ms(recovered - noticed),
        read_gap_ms: gap(&reads),
        errors: appends.errors + reads.errors,
    };
    print(&json!({
        "system": "CORFU", "workload": "kill", "victim": role, "round": round, "killed_ms": ms(killed - began),
        "noticed_ms": ms(noticed - killed), "recovery_ms": cost.recovery_ms,
        "append_gap_ms": gap(&appends), "read_gap_ms": cost.read_gap_ms,
        "append_errors": appends.errors, "read_errors": reads.errors,
        "bin_ms": ms(BIN_NS), "appends": appends.bins(began), "reads": reads.bins(began),
        "settings": {
            "kind": "real", "storage": "disk", "units": 4, "units_of_a_chain": 2, "depth": 1,
            "payload_bytes": PAYLOAD, "load_1m": load_1m(),
        },
    }))?;
    Ok(cost)
}

/// Appends what is read.
async fn prepare(env: Env, log: Arc<VirtualLog>) -> Option<()> {
    let client = ClientId(env.random().max(1));
    for seq in 1..=ENTRIES {
        let payload = Bytes::from(vec![7; PAYLOAD]);
        let record = LogRecord { op: OpId { client, seq }, floor: None, payload };
        log.submit(vec![record]).ok()?.await.ok()?.ok()?;
    }
    log.check_tail().await.ok()?.ok().map(|_| ())
}

/// Kills units and sequencers in turns. Returns whether no operation failed, and the recovery from killed units meets its target.
pub async fn run(args: &KillArgs, place: &Folder) -> Result<bool, Error> {
    let mut nodes = Nodes::start(SERVERS, 0, &place.folder).await?;
    let log = create(&nodes, &CHAINS.map(|chain| chain.to_vec()), SEQUENCER).await?;
    let prepared = nodes.run(prepare(nodes.env().clone(), log.clone())).await?;
    prepared.ok_or_else(|| failed("the entries to read were not appended"))?;
    let mut costs = Vec::new();
    for round in 1..=args.kills {
        for role in ["first unit", "last unit", "sequencer"] {
            costs.push(kill(args, &mut nodes, &log, role, round).await?);
        }
    }
    nodes.stop().await;
    let units: Vec<&Cost> = costs.iter().filter(|cost| cost.role != "sequencer").collect();
    let recovery_ms = median(units.iter().map(|cost| cost.recovery_ms).collect());
    let longest = |of: &dyn Fn(&Cost) -> f64| units.iter().map(|cost| of(cost)).fold(0.0, f64::max);
    let errors: u64 = costs.iter().map(|cost| cost.errors).sum();
    let holds = errors == 0 && recovery_ms <= TARGET_MS;
    print(&json!({
        "workload": "recovery", "kills": costs.len(), "errors": errors,
        "unit_recovery_median_ms": recovery_ms, "unit_recovery_max_ms": longest(&|cost| cost.recovery_ms),
        "unit_read_gap_max_ms": longest(&|cost| cost.read_gap_ms), "target_ms": TARGET_MS, "holds": holds,
    }))?;
    Ok(holds)
}

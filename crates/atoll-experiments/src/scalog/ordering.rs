//! The ordering layer on real sockets and a real disk, with the reports of emulated storage servers: real aggregators, a real orderer,
//! and a real ordering log of three servers, each a node of the product's own host on a thread of its own, all on this machine. The
//! paper's figure with 3,500 shards emulates the servers, too.
//!
//! One more node sends what the servers would: each message has the report of one server, as in the product, and a server holds reports
//! back while cuts come late. The servers share that node's connections, which costs less than a connection of each. For each number of
//! shards, the interval of the reports doubles until the layer carries it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use atoll_contract::Loglet;
use atoll_core::{BoxFuture, Class, Encode, Env, NodeId, Notify, RoleKind, Tick};
use atoll_native::NativeConfig;
use atoll_scalog::ScalogConfig;
use atoll_scalog::roles::{AGGREGATOR, ORDERER};
use bytes::Bytes;
use serde_json::{Value, json};

use super::hosts::{HostError, RealNode, life_of, meet, storage_of};
use super::layer::{Layer, ORDERING_KIND, Paced, Seen, observe};
use super::threads::ThreadTimes;
use crate::virtualization::load_1m;

/// The servers of the ordering log. The first of them has its sequencer and the orderer.
const ORDERING: u32 = 3;
/// What may wait for a connection of the emulated servers. Older reports are of no use.
const QUEUE_BYTES: usize = 128 * 1024;
/// Servers report in this rhythm, a part of them at a time.
const RHYTHM: Duration = Duration::from_micros(50);
/// How long a report may have no effect before the configuration is sent again.
const RESEND: Duration = Duration::from_millis(20);
/// The layer carries a load if it gets and orders at least this part of it.
const CARRIED: f64 = 0.95;
/// Intervals double up to this one.
const LONGEST: Duration = Duration::from_millis(205);

/// How long the first cut may take: all nodes have to learn the configuration.
const FIRST_CUT_WITHIN: Duration = Duration::from_secs(60);

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of shards
    #[arg(long, value_delimiter = ',', default_values_t = [10, 35, 100, 350, 1000, 3500])]
    shards: Vec<u32>,
    /// Servers of a shard
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: u32,
    /// The first interval of the reports, in microseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(50..=100_000))]
    interval_us: u64,
    /// Records that each shard takes per second [the paper: 52 million of 3,500 shards]
    #[arg(long, default_value_t = 14_857.0)]
    shard_rate: f64,
    /// The most children of an aggregator
    #[arg(long, default_value_t = 24)]
    fan_in: usize,
    /// Nodes over which the aggregators are spread
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    aggregators: u32,
    /// Whether all servers follow the ordering log, as in the product, or only the one that measures: each is measured
    #[arg(long, value_name = "BOOL,...", value_delimiter = ',', default_values_t = [false, true])]
    followed: Vec<bool>,
    /// With all servers that follow, at most so many shards
    #[arg(long, default_value_t = 350)]
    followed_shards: u32,
    /// A layer that needs longer than this from a report to its cut, in the median, does not carry the load; in milliseconds
    #[arg(long, default_value_t = 50.0)]
    within_ms: f64,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Where the disk is
    #[arg(long, value_name = "FOLDER", default_value = "target")]
    folder: PathBuf,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the ordering log: {0}")]
    Log(String),
    #[error("there was no cut within {FIRST_CUT_WITHIN:?}")]
    Silent,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server that is emulated: where its reports go.
struct Emulated {
    shard: u32,
    replica: u32,
    leaf: Option<usize>,
    to: (NodeId, RoleKind),
    /// Of the first server of an aggregator: when its reports have the configuration next. A message may get lost while connections begin,
    /// so it sends the configuration again until its reports have an effect, as a server of the product does.
    introduces_at: Option<Tick>,
    paced: Paced,
}

/// What came of a report that was due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    Sent,
    /// The server has too many reports under way, as a server of the product would.
    Held,
    /// Too many messages wait for the connection.
    Full,
}

/// Counts what the emulated servers did. Reports that they held back are not due.
#[derive(Default)]
struct Sent {
    due: AtomicU64,
    sent: AtomicU64,
    held: AtomicU64,
}

/// The emulated servers, on a node.
struct Servers {
    layer: Layer,
    config: Bytes,
    all: Vec<Emulated>,
    groups: usize,
    sent: Arc<Sent>,
    seen: Arc<Mutex<Seen>>,
    ticks: Notify,
}

impl Servers {
    fn new(layer: Layer, config: &ScalogConfig, sent: Arc<Sent>, seen: Arc<Mutex<Seen>>) -> Self {
        let leaves = config.leaves();
        let mut known = vec![false; config.aggregators.len() + 1];
        let mut all = Vec::new();
        for shard in 0..layer.shards {
            for replica in 0..layer.replicas {
                let leaf = leaves.of(shard);
                let to =
                    leaf.map_or((layer.orderer, ORDERER), |leaf| (config.aggregators[leaf].node, AGGREGATOR));
                let is_first = !std::mem::replace(&mut known[leaf.map_or(0, |leaf| leaf + 1)], true);
                let introduces_at = is_first.then_some(Tick(0));
                all.push(Emulated { shard, replica, leaf, to, introduces_at, paced: Paced::default() });
            }
        }
        let groups = (layer.interval.as_nanos() / RHYTHM.as_nanos()).clamp(1, 4096) as usize;
        let ticks = Notify::default();
        Servers { layer, config: config.to_bytes(), all, groups, sent, seen, ticks }
    }

    /// Reports group after group, one for each tick. Ticks that this node is late for are made up for, but no server reports twice at once:
    /// those reports are due, and not sent, but for the part of them that would be held back, too.
    async fn report(mut self, env: Env) {
        let (began, mut last) = (env.now(), self.ticks.count());
        loop {
            let tick = self.ticks.after(last).await;
            let first = (last + 1).max((tick + 1).saturating_sub(self.groups as u64));
            let missed: usize = (last + 1..first).map(|tick| self.group(tick).count()).sum();
            let group: Vec<usize> = (first..=tick).flat_map(|tick| self.group(tick)).collect();
            last = tick;
            let now = env.now();
            let count = self.layer.count(now.since(began));
            let (mut sent, mut held) = (0, 0);
            for index in &group {
                match self.report_of(*index, &env, now, count) {
                    Came::Sent => sent += 1,
                    Came::Held => held += 1,
                    Came::Full => {}
                }
            }
            let (missed, all) = (missed as u64, group.len() as u64);
            let missed_due = missed * (all - held) / all.max(1);
            self.sent.due.fetch_add(missed_due + all - held, Ordering::Relaxed);
            self.sent.sent.fetch_add(sent, Ordering::Relaxed);
            self.sent.held.fetch_add(held + missed - missed_due, Ordering::Relaxed);
        }
    }

    /// Sends the report of a server, if it may report and not too many wait already.
    fn report_of(&mut self, index: usize, env: &Env, now: Tick, count: u64) -> Came {
        let one = &mut self.all[index];
        let seen = locked(&self.seen);
        let ordered = seen.ordered_of(one.shard);
        one.introduces_at = one.introduces_at.filter(|_| ordered.is_none());
        if !one.paced.may_report(now, ordered) {
            return Came::Held;
        }
        drop(seen);
        let introduces = one.introduces_at.is_some_and(|at| at <= now);
        let report = self.layer.report(one.shard, one.replica, count);
        let counts = report.counts.clone();
        let config = if introduces { self.config.clone() } else { Bytes::new() };
        let message = self.layer.message(vec![report], one.leaf, config);
        let sent = env.post(one.to.0, Class::Control, one.to.1, message);
        if !sent {
            return Came::Full;
        }
        if introduces {
            one.introduces_at = Some(now.after(RESEND));
        }
        one.paced.sent(now, counts);
        if self.layer.is_timed(one.shard, one.replica) {
            locked(&self.seen).report(now, one.shard, count);
        }
        Came::Sent
    }

    /// Returns the servers that report in a tick.
    fn group(&self, tick: u64) -> impl Iterator<Item = usize> + use<> {
        (tick as usize % self.groups..self.all.len()).step_by(self.groups)
    }
}

/// Ticks on a thread of its own until it is dropped: timers of a node are too coarse for this.
struct Ticker(Arc<AtomicBool>, Option<thread::JoinHandle<()>>);

impl Ticker {
    fn start(ticks: Notify) -> Result<Self, HostError> {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let run = move || {
            let began = Instant::now();
            let mut next = RHYTHM;
            while !told.load(Ordering::Relaxed) {
                thread::sleep(next.saturating_sub(began.elapsed()));
                // A late thread counts the ticks that it missed.
                while next <= began.elapsed() {
                    ticks.notify();
                    next += RHYTHM;
                }
            }
        };
        Ok(Ticker(over, Some(thread::Builder::new().name("ticker".into()).spawn(run)?)))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            // It cannot fail.
            let _ = thread.join();
        }
    }
}

/// Runs a procedure on a node, and waits for its end.
fn on_node<T: Send + 'static>(env: &Env, procedure: BoxFuture<'static, T>) -> Option<T> {
    let mut ticket = env.launch("experiment", procedure);
    loop {
        if let Some(done) = ticket.try_take() {
            return done.ok();
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// All nodes of a run. The emulated servers are on the last one.
fn start_nodes(args: &Args, folder: &Path) -> Result<Vec<RealNode>, HostError> {
    let mut nodes = Vec::new();
    for n in 1..=ORDERING {
        let name = if n == 1 { "orderer" } else { "ordering log" };
        nodes.push(RealNode::start(folder, NodeId(n), name, None)?);
    }
    for n in ORDERING + 1..=ORDERING + args.aggregators {
        nodes.push(RealNode::start(folder, NodeId(n), "aggregator", None)?);
    }
    let last = NodeId(ORDERING + args.aggregators + 1);
    nodes.push(RealNode::start(folder, last, "emulation", Some(QUEUE_BYTES))?);
    meet(&nodes)?;
    Ok(nodes)
}

/// A point of the figure.
#[derive(Clone, Copy, Debug)]
struct Point {
    shards: u32,
    interval: Duration,
    /// Whether all servers follow the ordering log.
    followed: bool,
}

/// A layer that runs.
struct Running {
    config: ScalogConfig,
    followers: u32,
    sent: Arc<Sent>,
    seen: Arc<Mutex<Seen>>,
    /// Ends with it.
    _ticker: Ticker,
    nodes: Vec<RealNode>,
}

/// All nodes stop at the same time.
impl Drop for Running {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(RealNode::tell_to_stop);
    }
}

/// What was sent until now.
#[derive(Clone, Copy)]
struct Reports {
    due: u64,
    sent: u64,
    held: u64,
}

impl Sent {
    fn now(&self) -> Reports {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reports { due: of(&self.due), sent: of(&self.sent), held: of(&self.held) }
    }
}

impl Running {
    /// Starts the nodes, and the emulated servers on the last of them.
    fn start(args: &Args, folder: &Path, point: Point) -> Result<Self, RunError> {
        let nodes = start_nodes(args, folder)?;
        let Some(emulation) = nodes.last() else { return Err(HostError::Ended.into()) };
        let layer = args.layer(point);
        let env = emulation.env();
        let open = || {
            let log =
                emulation.parts().open(ORDERING_KIND, Layer::ordering_log(), &layer.ordering.to_bytes());
            log.map_err(|error| RunError::Log(error.to_string()))
        };
        let log: Arc<dyn Loglet> = open()?;
        let (mine, its, to) = (layer.clone(), env.clone(), log.clone());
        match on_node(&env, Box::pin(async move { mine.add_rest(&its, &to).await })) {
            Some(Ok(())) => {}
            other => return Err(RunError::Log(format!("{other:?}"))),
        }
        let (sent, seen) = (Arc::new(Sent::default()), Arc::new(Mutex::new(Seen::new())));
        let its = seen.clone();
        let take = move |now, bytes: &Bytes| locked(&its).entry(now, bytes);
        env.spawn("observe", Box::pin(observe(env.clone(), log, take)));
        // Each handle asks by itself, as each server of the product does.
        let followers = if point.followed { point.shards * args.replicas } else { 0 };
        for _ in 0..followers {
            env.spawn("follow", Box::pin(observe(env.clone(), open()?, |_, _| {})));
        }
        let config = layer.config();
        let servers = Servers::new(layer.clone(), &config, sent.clone(), seen.clone());
        let ticker = Ticker::start(servers.ticks.clone())?;
        env.spawn("report", Box::pin(servers.report(env.clone())));
        Ok(Running { config, followers, sent, seen, _ticker: ticker, nodes })
    }

    /// Waits for the first cut.
    fn begun(self) -> Result<Self, RunError> {
        let until = Instant::now() + FIRST_CUT_WITHIN;
        while locked(&self.seen).cuts == 0 {
            if Instant::now() > until {
                return Err(RunError::Silent);
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(self)
    }

    /// Measures for a while. Returns the line, and whether the layer carries the load.
    fn measure(&self, args: &Args, point: Point) -> (Value, bool) {
        let (before, threads, began) = (self.sent.now(), ThreadTimes::now(), Instant::now());
        locked(&self.seen).begin();
        thread::sleep(Duration::from_secs_f64(args.seconds));
        let (after, took) = (self.sent.now(), began.elapsed().as_secs_f64());
        let busy = threads.since(took);
        let seen = locked(&self.seen);
        let (due, sent) = (after.due - before.due, after.sent - before.sent);
        let (writes_s, writes_due_s) =
            (seen.ordered() as f64 / took, f64::from(point.shards) * args.shard_rate);
        let p50_us = seen.latencies.quantile_us(0.5);
        let carried = sent as f64 >= CARRIED * due as f64
            && writes_s >= CARRIED * writes_due_s
            && seen.cuts > 0
            && p50_us <= args.within_ms * 1e3;
        let (per_second, per_cut) =
            (|n: u64| (n as f64 / took).round(), |n: u64| (n as f64 / seen.cuts.max(1) as f64).round());
        let line = json!({
            "system": "Scalog", "workload": if point.followed { "ordering, followed by all servers" } else { "ordering" },
            "shards": point.shards, "interval_us": point.interval.as_micros() as u64, "carried": carried,
            "reports_due_s": per_second(due), "reports_s": per_second(sent),
            "reports_held_s": per_second(after.held - before.held), "cuts_s": per_second(seen.cuts),
            "shards_per_cut": per_cut(seen.shards_in_cuts), "bytes_per_cut": per_cut(seen.bytes),
            "report_to_cut_p50_us": p50_us, "report_to_cut_p99_us": seen.latencies.quantile_us(0.99),
            "writes_s": writes_s.round(), "writes_due_s": writes_due_s.round(), "processor_share": busy,
            "settings": {
                "kind": "real, servers emulated", "storage": "disk", "servers": point.shards * args.replicas,
                "shard_rate": args.shard_rate, "fan_in": args.fan_in, "aggregators": self.config.aggregators.len(),
                "levels": depth_of(&self.config), "aggregator_nodes": args.aggregators, "ordering_servers": ORDERING,
                "followers": self.followers, "seconds": args.seconds, "load_1m": load_1m(),
            },
        });
        (line, carried)
    }
}

impl Args {
    fn layer(&self, point: Point) -> Layer {
        let server = |n: u32| (NodeId(n), storage_of(NodeId(n)));
        let sequencer = (NodeId(1), life_of(NodeId(1)));
        Layer {
            shards: point.shards,
            replicas: self.replicas,
            fan_in: self.fan_in,
            interval: point.interval,
            shard_rate: self.shard_rate,
            aggregators: (ORDERING + 1..=ORDERING + self.aggregators).map(NodeId).collect(),
            orderer: NodeId(1),
            ordering: NativeConfig { servers: (1..=ORDERING).map(server).collect(), sequencer },
        }
    }

    /// Measures a point in a folder that is removed afterwards. Returns its line, and whether the layer carried the load.
    fn measure(&self, point: Point) -> Result<(Value, bool), RunError> {
        let folder = self.folder.join(format!("atoll-ordering-{}", std::process::id()));
        let done = Running::start(self, &folder, point).and_then(Running::begun).map(|running| {
            thread::sleep(Duration::from_secs_f64(self.warm_up));
            running.measure(self, point)
        });
        // What remains is only some disk space.
        let _ = std::fs::remove_dir_all(&folder);
        done
    }
}

/// Returns how many levels of aggregators a tree has.
pub fn depth_of(config: &ScalogConfig) -> usize {
    let mut deepest = 0;
    for leaf in 0..config.aggregators.len() {
        let (mut at, mut depth) = (Some(leaf), 0);
        while let Some(here) = at {
            depth += 1;
            at = config.aggregators[here].parent.map(|parent| parent as usize);
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Measures with longer and longer intervals until the layer carries the load. Returns whether it does.
fn find_interval(args: &Args, shards: u32, followed: bool) -> Result<bool, RunError> {
    let mut interval = Duration::from_micros(args.interval_us);
    while interval <= LONGEST {
        let (line, carried) = args.measure(Point { shards, interval, followed })?;
        println!("{line}");
        if carried {
            return Ok(true);
        }
        interval *= 2;
    }
    Ok(false)
}

/// Runs all points. Returns whether none failed, and each number of shards was carried at some interval.
pub fn run(args: &Args) -> bool {
    let mut fine = true;
    for followed in args.followed.iter().copied() {
        for shards in args.shards.iter().copied().filter(|n| !followed || *n <= args.followed_shards) {
            match find_interval(args, shards, followed) {
                Ok(carried) => fine &= carried,
                Err(error) => {
                    eprintln!("{shards} shards: {error}");
                    return false;
                }
            }
        }
    }
    fine
}

#[cfg(test)]
mod tests;

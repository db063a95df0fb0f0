//! The ordering layer on modelled machines (`model.rs`), with emulated storage servers: aggregators, the orderer and the servers of the
//! ordering log have machines of their own, and each storage server has a connection of its own. As in the product, a server holds reports
//! back while cuts come late.
//!
//! A turn of an aggregator or of the orderer takes longer the more reports it handles, and the model of a turn knows messages only. So
//! this is measured first: the same nodes run for a short time, and what their turns take on this machine, beyond what the model says, is
//! counted for each byte that they get and send.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::{Loglet, LogletError, PlanError};
use atoll_core::{Class, Encode, Envelope, Exchange, Message, NodeId, RoleKind, Tick};
use atoll_native::NativeConfig;
use atoll_scalog::ScalogConfig;
use atoll_scalog::config::Leaves;
use atoll_scalog::roles::{AGGREGATOR, ORDERER};
use bytes::Bytes;
use serde_json::{Value, json};

use super::layer::{Layer, ORDERING_KIND, Paced, Seen, observe};
use super::ordering::depth_of;
use super::parts::Parts;
use crate::model::{Busy, Model, Parameters, Work, life_of, storage_of};
use crate::virtualization::load_1m;

/// Servers of the ordering log; the first is its sequencer, too.
const ORDERING: u32 = 3;
/// How often what bytes cost is measured. The least counts: other work leaves less of the processor's caches.
const CALIBRATIONS: usize = 3;
/// The interval at which this is measured.
const CALIBRATED_AT: Duration = Duration::from_millis(1);
/// The least intervals before a measurement, and of it: the longer these are, the less the moments of single cuts matter.
const WARM_UP_INTERVALS: u64 = 4;
const MEASURED_INTERVALS: u64 = 20;
/// The least cuts before a measurement, and in it, unless they are so rare that it becomes too long: a layer under load makes rarer cuts.
const WARM_UP_CUTS: u64 = 4;
const MEASURED_CUTS: u64 = 20;
const TOO_LONG: Duration = Duration::from_millis(200);
/// The layer carries a load if it orders that many records, give or take this part of them, and takes at most this time from a report to
/// its cut, in the median.
const CARRIED: f64 = 0.1;
const CARRIED_WITHIN_US: f64 = 50_000.0;
/// How much virtual time may pass until all shards are added.
const ADDED_WITHIN: Duration = Duration::from_secs(20);
/// How much virtual time may pass until the first cut.
const FIRST_CUT_WITHIN: Duration = Duration::from_secs(5);
/// How often servers report until then, in nanoseconds.
const REPEATED: u64 = 5_000_000;
/// The longest step of the virtual time while shards are added.
const STEP: Duration = Duration::from_millis(1);

/// A modelled ordering layer.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Number of shards.
    pub shards: u32,
    /// Servers of each.
    pub replicas: u32,
    /// The most children of an aggregator.
    pub fan_in: usize,
    /// How often servers, aggregators and the orderer send what is new.
    pub interval: Duration,
    /// Records that a shard takes per second.
    pub shard_rate: f64,
    /// How many follow the ordering log, beside the one that measures.
    pub followers: u32,
    /// Virtual time before the measurement, and of it, at least: it also has as many intervals as a measurement needs.
    pub warm_up: Duration,
    /// See `warm_up`.
    pub measured: Duration,
    /// Seed of the nodes.
    pub seed: u64,
}

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("the ordering log cannot be opened: {0}")]
    Plan(#[from] PlanError),
    #[error("shards were not added: {0:?}")]
    Add(Option<LogletError>),
    #[error("there was no cut within {FIRST_CUT_WITHIN:?} of virtual time")]
    Silent,
}

/// What bytes cost beyond the parameters, in picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// At an aggregator.
    pub aggregator_byte_ps: u64,
    /// At the orderer.
    pub orderer_byte_ps: u64,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// The nodes of a run.
struct Nodes {
    model: Model,
    /// What nodes can open, which lives as long as they do.
    parts: Vec<Parts>,
    layer: Layer,
    config: ScalogConfig,
    config_bytes: Bytes,
    leaves: Leaves,
    orderer: NodeId,
    ordering: Vec<NodeId>,
    aggregators: Vec<NodeId>,
    seen: Arc<Mutex<Seen>>,
    /// What the servers have reported, in the order of shards and replicas.
    paced: Vec<Paced>,
    /// How many intervals the warm-up and the measurement had.
    intervals: (u64, u64),
}

impl Tree {
    /// Builds the nodes: the orderer, the ordering log, the one that measures, the aggregators, and others that follow.
    fn build(&self, parameters: &Parameters, costs: Option<Costs>) -> Result<Nodes, TreeError> {
        let mut model = Model::new(*parameters);
        let mut parts = Vec::new();
        let mut add = || {
            let machine = model.add_machine(1);
            model.add_node(machine, self.seed, |core, storage| parts.push(Parts::install(core, storage)))
        };
        let orderer = add();
        let ordering: Vec<NodeId> = (0..ORDERING).map(|_| add()).collect();
        let observer = add();
        let width = ScalogConfig::tree(&[orderer], self.shards as usize, self.fan_in).len();
        let aggregators: Vec<NodeId> = (0..width).map(|_| add()).collect();
        let followers: Vec<NodeId> = (0..self.followers).map(|_| add()).collect();
        let servers = ordering.iter().map(|node| (*node, storage_of(*node))).collect();
        let native = NativeConfig { servers, sequencer: (ordering[0], life_of(ordering[0])) };
        let layer = Layer {
            shards: self.shards,
            replicas: self.replicas,
            fan_in: self.fan_in,
            interval: self.interval,
            shard_rate: self.shard_rate,
            aggregators: aggregators.clone(),
            orderer,
            ordering: native,
        };
        let config = layer.config();
        for (n, one) in ordering.iter().enumerate() {
            for other in ordering[..n].iter().chain([&orderer, &observer]).chain(&followers) {
                model.connect_two(*one, *other);
            }
        }
        for (place, aggregator) in config.aggregators.iter().enumerate() {
            let parent = aggregator.parent.map_or(orderer, |parent| config.aggregators[parent as usize].node);
            model.connect_two(aggregators[place], parent);
        }
        if let Some(costs) = costs {
            model.set_more_byte_ps(orderer, costs.orderer_byte_ps);
            aggregators.iter().for_each(|node| model.set_more_byte_ps(*node, costs.aggregator_byte_ps));
        }
        let seen = Arc::new(Mutex::new(Seen::new()));
        model.start();
        let (config_bytes, leaves) = (config.to_bytes(), config.leaves());
        let paced = vec![Paced::default(); (self.shards * self.replicas) as usize];
        let intervals = (0, 0);
        let mut nodes = Nodes {
            model,
            parts,
            layer,
            config,
            config_bytes,
            leaves,
            orderer,
            ordering,
            aggregators,
            seen,
            paced,
            intervals,
        };
        nodes.add_rest(observer)?;
        let log = nodes.log(observer)?;
        let (env, its) = (nodes.model.env(observer), nodes.seen.clone());
        let take = move |now, bytes: &Bytes| locked(&its).entry(now, bytes);
        env.spawn("observe", Box::pin(observe(env.clone(), log, take)));
        for follower in followers {
            let (env, log) = (nodes.model.env(follower), nodes.log(follower)?);
            env.spawn("follow", Box::pin(observe(env.clone(), log, |_, _| {})));
        }
        nodes.model.start();
        Ok(nodes)
    }

    /// Returns how many intervals there are at least before the measurement, and in it.
    fn intervals(&self) -> (u64, u64) {
        let interval = nanos(self.interval).max(1);
        let warm = nanos(self.warm_up).div_ceil(interval).max(WARM_UP_INTERVALS);
        (warm, nanos(self.measured).div_ceil(interval).max(MEASURED_INTERVALS))
    }

    /// Returns how long the measurement was.
    fn seconds(&self, nodes: &Nodes) -> f64 {
        self.interval.as_secs_f64() * nodes.intervals.1 as f64
    }

    /// Measures what bytes cost. All servers report at the same moment, so that turns are as long as those of a node that is busy.
    pub fn calibrate(&self, parameters: &Parameters) -> Result<Costs, TreeError> {
        let (warm_up, measured) = (Duration::ZERO, Duration::ZERO);
        let short = Tree { followers: 0, interval: CALIBRATED_AT, warm_up, measured, ..self.clone() };
        let mut best = Costs { aggregator_byte_ps: u64::MAX, orderer_byte_ps: u64::MAX };
        for _ in 0..CALIBRATIONS {
            let nodes = short.play(parameters, None)?;
            let of = |node: &NodeId| more_byte_ps(nodes.model.work_of(*node), parameters);
            let mut aggregators: Vec<u64> = nodes.aggregators.iter().map(of).collect();
            aggregators.sort_unstable();
            let median = aggregators.get(aggregators.len() / 2).copied().unwrap_or(0);
            best.aggregator_byte_ps = best.aggregator_byte_ps.min(median);
            best.orderer_byte_ps = best.orderer_byte_ps.min(of(&nodes.orderer));
        }
        Ok(best)
    }

    /// Runs the layer: servers report rarely until there is a cut, so that all nodes know the configuration; and then at every interval.
    fn play(&self, parameters: &Parameters, costs: Option<Costs>) -> Result<Nodes, TreeError> {
        let mut nodes = self.build(parameters, costs)?;
        let began = nodes.model.now();
        let interval = nanos(self.interval).max(1);
        // Without costs, they are measured.
        let spread = if costs.is_some() { interval } else { 1 };
        if costs.is_none() {
            nodes.model.count_processor_time();
        }
        let mut at = 0;
        while locked(&nodes.seen).cuts == 0 {
            if at >= nanos(FIRST_CUT_WITHIN) {
                return Err(TreeError::Silent);
            }
            // An aggregator that has not got the configuration yet takes no report.
            nodes.report_all(began, at, spread, at == 0);
            let next = at + REPEATED.max(interval);
            while at < next && locked(&nodes.seen).cuts == 0 {
                at += interval;
                nodes.model.run_until(began + at);
            }
        }
        let (warm, measured) = self.intervals();
        // What bytes cost does not depend on cuts.
        let cuts = if costs.is_some() { (WARM_UP_CUTS, MEASURED_CUTS) } else { (0, 0) };
        let ways = (began, interval, spread);
        nodes.intervals.0 = nodes.run_turns(ways, &mut at, (warm, cuts.0));
        nodes.model.forget();
        locked(&nodes.seen).begin();
        nodes.intervals.1 = nodes.run_turns(ways, &mut at, (measured, cuts.1));
        Ok(nodes)
    }

    /// Runs the layer and prints its line. Returns whether it carries the load.
    pub fn tell(&self, parameters: &Parameters, costs: Costs, workload: &str) -> Result<bool, TreeError> {
        let nodes = self.play(parameters, Some(costs))?;
        let seconds = self.seconds(&nodes);
        let seen = locked(&nodes.seen);
        let writes_s = seen.ordered() as f64 / seconds;
        let writes_due_s = f64::from(self.shards) * self.shard_rate;
        let p50_us = seen.latencies.quantile_us(0.5);
        // If it orders more, it has fallen behind before.
        let part = writes_s / writes_due_s.max(1.0);
        let carried = seen.cuts > 0 && (part - 1.0).abs() <= CARRIED && p50_us <= CARRIED_WITHIN_US;
        let busiest = self.busiest(&nodes, seconds);
        let busy: serde_json::Map<String, Value> =
            busiest.iter().map(|(what, part)| ((*what).to_owned(), json!(part))).collect();
        let line = json!({
            "system": "Scalog", "workload": workload, "shards": self.shards, "interval_us": self.interval.as_micros() as u64,
            "fan_in": self.fan_in, "levels": depth_of(&nodes.config), "followers": self.followers, "carried": carried,
            "cuts_s": (seen.cuts as f64 / seconds).round(),
            "shards_per_cut": (seen.shards_in_cuts as f64 / seen.cuts.max(1) as f64).round(),
            "bytes_per_cut": (seen.bytes as f64 / seen.cuts.max(1) as f64).round(),
            "report_to_cut_p50_us": p50_us, "report_to_cut_p99_us": seen.latencies.quantile_us(0.99),
            "writes_s": writes_s.round(), "writes_due_s": writes_due_s.round(),
            "bottleneck": busiest[0].0, "busy": busy,
            "settings": {
                "kind": "modelled, servers emulated", "servers": self.shards * self.replicas, "shard_rate": self.shard_rate,
                "aggregators": nodes.aggregators.len(), "ordering_servers": ORDERING,
                "warm_up_intervals": nodes.intervals.0, "measured_intervals": nodes.intervals.1, "seed": self.seed,
                "aggregator_byte_ps": costs.aggregator_byte_ps, "orderer_byte_ps": costs.orderer_byte_ps,
                "load_1m": load_1m(), "parameters": parameters.to_json(),
            },
        });
        println!("{line}");
        Ok(carried)
    }

    fn busiest(&self, nodes: &Nodes, seconds: f64) -> Vec<(&'static str, f64)> {
        let most = |some: &[NodeId], of: &dyn Fn(Busy) -> u64| {
            let busy = some.iter().map(|node| of(nodes.model.busy(*node))).max().unwrap_or(0);
            (busy as f64 / (seconds * 1e9) * 1e3).round() / 1e3
        };
        let link = |busy: Busy| busy.sending_ns.max(busy.receiving_ns);
        let all = 0..nodes.aggregators.len();
        let (leaves, others): (Vec<usize>, Vec<usize>) = all.partition(|place| nodes.leaves.contains(*place));
        let of = |places: Vec<usize>| -> Vec<NodeId> {
            places.into_iter().map(|p| nodes.aggregators[p]).collect()
        };
        let (leaves, others, orderer) = (of(leaves), of(others), [nodes.orderer]);
        let mut rows = vec![
            ("processor of a lowest aggregator", most(&leaves, &|b| b.processor_ns)),
            ("link of a lowest aggregator", most(&leaves, &link)),
            ("processor of a higher aggregator", most(&others, &|b| b.processor_ns)),
            ("link of a higher aggregator", most(&others, &link)),
            ("processor of the orderer", most(&orderer, &|b| b.processor_ns)),
            ("link of the orderer", most(&orderer, &link)),
            ("processor of the ordering log", most(&nodes.ordering, &|b| b.processor_ns)),
            ("link of the ordering log", most(&nodes.ordering, &link)),
            ("disk of the ordering log", most(&nodes.ordering, &|b| b.disk_ns)),
        ];
        rows.sort_by(|one, other| other.1.total_cmp(&one.1));
        rows
    }
}

/// Returns what bytes cost a node beyond what the parameters say, on the machine that ran its turns.
fn more_byte_ps(work: Work, parameters: &Parameters) -> u64 {
    let known = work.turns * parameters.turn_ns + work.steps * parameters.step_ns;
    let more = nanos(work.took).saturating_sub(known);
    (u128::from(more) * 1000 / u128::from(work.bytes.max(1))).try_into().unwrap_or(u64::MAX)
}

impl Nodes {
    fn log(&self, node: NodeId) -> Result<Arc<dyn Loglet>, PlanError> {
        let parts = &self.parts[node.0 as usize - 1];
        parts.open(ORDERING_KIND, Layer::ordering_log(), &self.layer.ordering.to_bytes())
    }

    /// Adds the shards that the configuration does not have.
    fn add_rest(&mut self, through: NodeId) -> Result<(), TreeError> {
        let (env, log, layer) = (self.model.env(through), self.log(through)?, self.layer.clone());
        let its = env.clone();
        let mut done = env.launch("add", async move { layer.add_rest(&its, &log).await });
        let mut at = 0;
        while at < nanos(ADDED_WITHIN) {
            self.model.start();
            at += nanos(STEP);
            self.model.run_until(at);
            match done.try_take() {
                Some(Ok(Ok(()))) => return Ok(()),
                Some(Ok(Err(error))) => return Err(TreeError::Add(Some(error))),
                Some(Err(_)) => break,
                None => {}
            }
        }
        Err(TreeError::Add(None))
    }

    /// Lets the servers report at every interval, from a time on, which it raises, until there were at least so many intervals and cuts.
    /// Returns how many intervals there were.
    fn run_turns(
        &mut self,
        (began, interval, spread): (u64, u64, u64),
        at: &mut u64,
        (intervals, cuts): (u64, u64),
    ) -> u64 {
        let (before, mut turns) = (locked(&self.seen).cuts, 0);
        let lacks_cuts = |seen: &Mutex<Seen>| locked(seen).cuts - before < cuts;
        while turns < intervals || (lacks_cuts(&self.seen) && turns * interval < nanos(TOO_LONG)) {
            self.report_all(began, *at, spread, false);
            *at += interval;
            self.model.run_until(began + *at);
            turns += 1;
        }
        turns
    }

    /// Sends one report of each server that holds none back, spread over so many nanoseconds from now on.
    fn report_all(&mut self, began: u64, at: u64, spread: u64, introduces: bool) {
        let mut known = vec![!introduces; self.config.aggregators.len() + 1];
        let Layer { shards, replicas, .. } = self.layer;
        let (now, mut seen) = (Tick(began + at), locked(&self.seen));
        for shard in 0..shards {
            let leaf = self.leaves.of(shard);
            let (node, role): (NodeId, RoleKind) =
                leaf.map_or((self.orderer, ORDERER), |leaf| (self.aggregators[leaf], AGGREGATOR));
            for replica in 0..replicas {
                let server = shard * replicas + replica;
                let paced = &mut self.paced[server as usize];
                if !paced.may_report(now, seen.ordered_of(shard)) {
                    continue;
                }
                let when = at + mix(server.into()) % spread;
                let count = self.layer.count(Duration::from_nanos(when));
                let is_known = std::mem::replace(&mut known[leaf.map_or(0, |leaf| leaf + 1)], true);
                let config = if is_known { Bytes::new() } else { self.config_bytes.clone() };
                let report = self.layer.report(shard, replica, count);
                paced.sent(Tick(began + when), report.counts.clone());
                let frame = self.layer.message(vec![report], leaf, config).into_frame(role);
                let envelope = Envelope { exchange: Exchange::Post, frame };
                let from = self.layer.server(shard, replica).node;
                self.model.send_from_outside(began + when, from, node, Class::Control, envelope);
                if self.layer.is_timed(shard, replica) {
                    seen.report(Tick(began + when), shard, count);
                }
            }
        }
    }
}

/// Mixes a number, so that servers report at different times.
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

#[cfg(test)]
mod tests;

//! Writes to Scalog and to CORFU on modelled machines (`model.rs`): each node has a machine of its own, with the parameters that were
//! measured on this one. Records are in shards of two servers, or in chains of two units.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::{Batch, ClientId, Entry, Loglet, OpId, PlanError};
use atoll_core::{Encode, Env, NodeId, Tick};
use atoll_corfu::Projection;
use atoll_native::NativeConfig;
use atoll_scalog::config::CONFIG_FORMAT;
use atoll_scalog::{OrderingSpec, ScalogConfig, Server, ShardSpec};
use bytes::Bytes;
use serde_json::{Value, json};

use super::layer::{LOGLET, ORDERING_KIND};
use super::parts::Parts;
use crate::latency::Latencies;
use crate::model::{Busy, Model, Parameters, life_of, storage_of};
use crate::virtualization::load_1m;

/// Servers of a shard, and units of a chain.
const COPIES: u32 = 2;
/// Servers of Scalog's ordering log.
const ORDERING: u32 = 3;
/// Children of an aggregator, as in the product. Fewer shards have none.
const FAN_IN: usize = 24;
/// Consecutive positions of CORFU on the same chain.
const STRIPE: u32 = 1;
const NANOS_PER_MS: u64 = 1_000_000;
/// How long a client pauses after a failure.
const PAUSE: Duration = Duration::from_millis(1);

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Scalog,
    Corfu,
}

impl System {
    /// Returns its name in lines.
    pub fn name(self) -> &'static str {
        match self {
            System::Scalog => "Scalog",
            System::Corfu => "CORFU",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            System::Scalog => atoll_scalog::KIND,
            System::Corfu => atoll_corfu::KIND,
        }
    }

    /// Returns how many nodes it has beside its servers: those that order, and aggregators.
    fn helpers(self, shards: u32) -> u32 {
        match self {
            System::Scalog => {
                1 + ORDERING + ScalogConfig::tree(&[NodeId(1)], shards as usize, FAN_IN).len() as u32
            }
            System::Corfu => 1,
        }
    }

    /// Returns the configuration of a log whose servers are the first nodes, followed by the helpers.
    fn config(self, shards: u32, interval: Duration) -> Bytes {
        let of_shard = |shard: u32| (1..=COPIES).map(move |n| NodeId(shard * COPIES + n));
        let helper = |n: u32| NodeId(shards * COPIES + 1 + n);
        match self {
            System::Corfu => {
                let unit = |node| (node, storage_of(node));
                let chains = (0..shards).map(|chain| of_shard(chain).map(unit).collect()).collect();
                Projection::simple(1, (helper(0), life_of(helper(0))), STRIPE, chains).to_bytes()
            }
            System::Scalog => {
                let servers = (1..=ORDERING).map(|n| (helper(n), storage_of(helper(n)))).collect();
                let ordering = NativeConfig { servers, sequencer: (helper(1), life_of(helper(1))) };
                let server = |node| Server { node, storage: storage_of(node) };
                let spec = |shard| ShardSpec { shard, servers: of_shard(shard).map(server).collect() };
                let aggregators: Vec<NodeId> =
                    (1 + ORDERING..System::Scalog.helpers(shards)).map(helper).collect();
                let config = ScalogConfig {
                    format: CONFIG_FORMAT,
                    shards: (0..shards).map(spec).collect(),
                    aggregators: ScalogConfig::tree(&aggregators, shards as usize, FAN_IN),
                    orderers: vec![helper(0)],
                    interval_us: u32::try_from(interval.as_micros()).unwrap_or(u32::MAX),
                    added: Vec::new(),
                    wanted: (shards, COPIES),
                    ordering: OrderingSpec { kind: ORDERING_KIND.to_owned(), config: ordering.to_bytes() },
                };
                config.to_bytes()
            }
        }
    }
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub struct Writes {
    /// Which log.
    pub system: System,
    /// Its shards, or chains.
    pub shards: u32,
    /// Client nodes.
    pub clients: u32,
    /// Appends that each has under way.
    pub depth: u32,
    /// Bytes of a record, and records of an entry.
    pub payload: usize,
    /// See `payload`.
    pub records: usize,
    /// Appends per second of all clients together. None: as fast as they are answered.
    pub rate: Option<f64>,
    /// How often Scalog's servers report.
    pub interval: Duration,
    /// Virtual time before the measurement, and of it, in milliseconds.
    pub warm_up_ms: u64,
    /// See `warm_up_ms`.
    pub measured_ms: u64,
    /// Seed of the nodes and of the clients' start times.
    pub seed: u64,
}

struct Tally {
    latencies: Latencies,
    from: Tick,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends one entry after the other until the run ends, each as `client`.
async fn append(
    env: Env,
    log: Arc<dyn Loglet>,
    client: ClientId,
    entry: Bytes,
    (first, every): (Duration, Duration),
    tally: Arc<Mutex<Tally>>,
) {
    let mut due = env.now().after(first);
    for seq in 1.. {
        env.sleep_until(due).await;
        let began = env.now();
        let batch = Batch::of([Entry { op: OpId { client, seq }, payload: entry.clone() }]);
        let done = matches!(log.append(batch).await, Ok(Ok(_)));
        let now = env.now();
        {
            let mut tally = locked(&tally);
            match done {
                true if now >= tally.from => tally.latencies.add(now.since(began)),
                true => {}
                false => tally.latencies.errors += 1,
            }
        }
        due = due.after(every).max(if done { now } else { now.after(PAUSE) });
    }
}

/// What a run showed.
pub struct Outcome {
    /// Of the entries.
    pub latencies: Latencies,
    /// Records that were acknowledged per second.
    pub records_s: f64,
    /// Which part of the time the busiest resource of each kind was busy, the busiest kind first.
    pub busiest: Vec<(&'static str, f64)>,
}

impl Writes {
    /// Runs the load.
    pub fn run(&self, parameters: &Parameters) -> Result<Outcome, PlanError> {
        let mut model = Model::new(*parameters);
        let mut parts = Vec::new();
        let servers = self.shards * COPIES;
        let all = servers + self.system.helpers(self.shards) + self.clients;
        for _ in 0..all {
            let machine = model.add_machine(1);
            model.add_node(machine, self.seed, |core, storage| parts.push(Parts::install(core, storage)));
        }
        model.connect();
        let config = self.system.config(self.shards, self.interval);
        let from = self.warm_up_ms * NANOS_PER_MS;
        let tally = Arc::new(Mutex::new(Tally { latencies: Latencies::new(), from: Tick(from) }));
        let entry = Bytes::from(vec![7; self.payload * self.records]);
        let workers = u64::from(self.clients * self.depth).max(1);
        let every = self.rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(workers as f64 / rate));
        for number in all - self.clients..all {
            let env = model.env(NodeId(number + 1));
            let log = parts[number as usize].open(self.system.kind(), LOGLET, &config)?;
            for n in 0..self.depth {
                // Each has a number of its own, which says where its records go.
                let client = ClientId(u64::from(number) << 32 | u64::from(n) | 1 << 63);
                let spread = every.max(Duration::from_millis(1)).as_nanos() as u64;
                let first = Duration::from_nanos(env.random() % spread);
                let task =
                    append(env.clone(), log.clone(), client, entry.clone(), (first, every), tally.clone());
                env.spawn("append", Box::pin(task));
            }
        }
        model.run_until(from);
        model.forget();
        model.run_until(from + self.measured_ms * NANOS_PER_MS);
        let mut latencies = std::mem::replace(&mut locked(&tally).latencies, Latencies::new());
        latencies.busy = Duration::from_millis(self.measured_ms);
        let records_s = latencies.count() as f64 * self.records as f64 * 1e3 / self.measured_ms.max(1) as f64;
        Ok(Outcome { records_s, latencies, busiest: self.busiest(&model, servers, all) })
    }

    fn busiest(&self, model: &Model, servers: u32, all: u32) -> Vec<(&'static str, f64)> {
        let most = |nodes: std::ops::Range<u32>, of: &dyn Fn(Busy) -> u64| {
            let nanos = nodes.map(|n| of(model.busy(NodeId(n + 1)))).max().unwrap_or(0);
            (nanos as f64 / (self.measured_ms * NANOS_PER_MS) as f64 * 1e3).round() / 1e3
        };
        let link = |busy: Busy| busy.sending_ns.max(busy.receiving_ns);
        let (storage, helpers, clients) = (0..servers, servers..all - self.clients, all - self.clients..all);
        let mut rows = vec![
            ("processor of a server", most(storage.clone(), &|b| b.processor_ns)),
            ("disk of a server", most(storage.clone(), &|b| b.disk_ns)),
            ("link of a server", most(storage, &link)),
            ("processor of what orders", most(helpers.clone(), &|b| b.processor_ns)),
            ("link of what orders", most(helpers, &link)),
            ("processor of a client", most(clients.clone(), &|b| b.processor_ns)),
            ("link of a client", most(clients, &link)),
        ];
        rows.sort_by(|one, other| other.1.total_cmp(&one.1));
        rows
    }

    /// Runs the load, prints its line, and returns the records per second. None if it failed.
    pub fn tell(&self, parameters: &Parameters, workload: &str) -> Option<f64> {
        let outcome = match self.run(parameters) {
            Ok(outcome) => outcome,
            Err(error) => {
                eprintln!("{self:?}: {error}");
                return None;
            }
        };
        let busy: serde_json::Map<String, Value> =
            outcome.busiest.iter().map(|(what, part)| ((*what).to_owned(), json!(part))).collect();
        let settings = json!({
            "kind": "modelled", "servers": self.shards * COPIES, "clients": self.clients, "depth_per_client": self.depth,
            "payload_bytes": self.payload, "records_per_entry": self.records, "rate": self.rate.map(f64::round),
            "interval_us": self.interval.as_micros() as u64, "warm_up_ms": self.warm_up_ms, "measured_ms": self.measured_ms,
            "seed": self.seed, "load_1m": load_1m(), "parameters": parameters.to_json(),
        });
        let mut line = outcome.latencies.line(self.system.name(), workload, 1, &settings);
        line["shards"] = json!(self.shards);
        line["records_s"] = json!(outcome.records_s.round());
        line["bottleneck"] = json!(outcome.busiest[0].0);
        line["busy"] = Value::Object(busy);
        println!("{line}");
        (outcome.latencies.errors == 0 && outcome.records_s > 0.0).then_some(outcome.records_s)
    }
}

#[cfg(test)]
mod tests;

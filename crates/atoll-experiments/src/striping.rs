//! How a StripedLoglet scales (Delos §5, Figure 10 middle and right): appends per second with rotating sequencers on nine LogServers, and
//! with 1 to 30 stripes on three LogServers each. The nodes are real node cores on modelled machines (`model.rs`).
//!
//! Clients have nodes and machines of their own. Each uses one handle of the StripedLoglet, with a number of appends outstanding.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{ClientId, Loglet, LogletId, LogletProvider, PlanError};
use atoll_core::{Encode, Env, Incarnation, NodeCore, NodeId, StorageId, Tick};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use atoll_striped::{StripedLoglet, StripedOptions};
use bytes::Bytes;
use serde_json::{Value, json};

use crate::calibration::{self, Kind};
use crate::corfu::Error;
use crate::latency::Latencies;
use crate::load::{Clock, Tally, Worker, append, keep_trimming, locked};
use crate::model::{Busy, Model, Nobody, Parameters, Work, life_of, storage_of};

/// LogServers with rotating sequencers (Figure 10 middle), and the numbers of sequencers that share them.
const ROTATING_SERVERS: u32 = 9;
const ROTATING: [u32; 4] = [1, 2, 4, 8];
/// LogServers of each of the sharded stripes (Figure 10 right), and the numbers of stripes.
const SERVERS_PER_STRIPE: u32 = 3;
const SHARDED: [u32; 6] = [1, 2, 4, 8, 16, 30];
/// A stripe of many counts as "linear" if it is at least this fraction of a single one.
const LINEAR: f64 = 0.8;
/// A modelled Loglet.
const LOGLET: LogletId = LogletId(7);
const NANOS_PER_MS: u64 = 1_000_000;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Client nodes
    #[arg(long, default_value_t = 60)]
    clients: u32,
    /// Appends under way at once, for each sequencer: all clients together
    #[arg(long, default_value_t = 240)]
    depth: u32,
    /// Bytes of a record
    #[arg(long, default_value_t = 1024)]
    payload: usize,
    /// Virtual milliseconds before the measurement
    #[arg(long, default_value_t = 40)]
    warm_up_ms: u64,
    /// Virtual milliseconds of the measurement
    #[arg(long, default_value_t = 100)]
    measured_ms: u64,
    /// Seed of the nodes and of the clients' start times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Use these parameters, as a line of an earlier run has them, instead of measuring them
    #[arg(long, value_name = "JSON")]
    parameters: Option<String>,
    /// Where the disk is measured
    #[arg(long, value_name = "FOLDER", default_value = "target")]
    folder: PathBuf,
    /// At most this many stripes
    #[arg(long, default_value_t = 30)]
    stripes: u32,
    /// Only this mode: rotating or sharded
    #[arg(long, value_name = "MODE", value_parser = ["rotating", "sharded"])]
    only: Option<String>,
    /// Measure real processes of this machine instead, one and two stripes, and compare the model of one machine with them
    #[arg(long)]
    real: bool,
    /// Rounds of each real point; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds before each real measurement, and of it
    #[arg(long, default_value_t = 1.0)]
    warm_up_s: f64,
    /// See `warm_up_s`
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// Which node orders a stripe, and which nodes store it, each as a number from 0 on.
#[derive(Clone, Debug)]
struct Stripe {
    sequencer: u32,
    servers: Vec<u32>,
}

/// The stripes of a Loglet.
#[derive(Clone, Debug)]
pub struct Shape {
    servers: u32,
    stripes: Vec<Stripe>,
}

impl Shape {
    /// Returns stripes with three servers each. The first server of a stripe is its sequencer, too.
    pub fn sharded(stripes: u32) -> Self {
        Shape::of(stripes, SERVERS_PER_STRIPE)
    }

    /// Returns stripes with so many servers each. The first server of a stripe is its sequencer, too.
    fn of(stripes: u32, servers: u32) -> Self {
        let first = |stripe| stripe * servers;
        let stripe = |n| Stripe { sequencer: first(n), servers: (first(n)..first(n + 1)).collect() };
        Shape { servers: first(stripes), stripes: (0..stripes).map(stripe).collect() }
    }

    /// Returns the nodes of all servers.
    fn nodes(&self) -> impl Iterator<Item = NodeId> {
        (1..=self.servers).map(NodeId)
    }

    /// Returns stripes that are all on the same servers, and that another one of them orders each.
    fn rotating(servers: u32, stripes: u32) -> Self {
        let stripe = |n| Stripe { sequencer: n % servers, servers: (0..servers).collect() };
        Shape { servers, stripes: (0..stripes).map(stripe).collect() }
    }
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Client nodes.
    pub clients: u32,
    /// Appends that each of them has under way.
    pub depth: u32,
    /// Bytes of a record.
    pub payload: usize,
    /// Virtual time before the measurement, in milliseconds.
    pub warm_up_ms: u64,
    /// Virtual time of the measurement, in milliseconds.
    pub measured_ms: u64,
    /// Seed of the nodes and of the clients' start times.
    pub seed: u64,
    /// All nodes are on one machine with this many processors and one disk. None: each has a machine with one processor.
    pub one_machine: Option<usize>,
}

/// What a run showed.
pub struct Outcome {
    latencies: Latencies,
    /// Positions that were filled without a record.
    pads: u64,
    /// The most that any node of a kind was busy: what, and which part of the time.
    busiest: Vec<(&'static str, f64)>,
    /// The work of all turns of the measured time.
    pub work: Work,
}

impl Outcome {
    fn pads_per_record(&self) -> f64 {
        self.pads as f64 / self.latencies.count().max(1) as f64
    }
}

/// Adds a LogServer and a sequencer to a node.
fn serve(core: &mut NodeCore, storage: StorageId) {
    let env = core.env();
    let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
    core.add_role(atoll_native::roles::LOG_SERVER, Box::new(server));
    let sequencer = Sequencer::new(env, SequencerOptions::default());
    core.add_role(atoll_native::roles::SEQUENCER, Box::new(sequencer));
}

/// Opens the Loglet at a node. `who` tells the data directory and the life of a server.
pub fn open(
    env: &Env,
    loglet: LogletId,
    shape: &Shape,
    who: impl Fn(NodeId) -> (StorageId, Incarnation),
) -> Result<Arc<dyn Loglet>, PlanError> {
    let provider = NativeProvider::new(env.clone(), Arc::new(Nobody), NativeOptions::default());
    let node = |n: &u32| NodeId(n + 1);
    let mut parts: Vec<Arc<dyn Loglet>> = Vec::new();
    for (id, stripe) in (1..).map(|n| loglet.part(n)).zip(&shape.stripes) {
        let servers = stripe.servers.iter().map(node).map(|n| (n, who(n).0)).collect();
        let sequencer = node(&stripe.sequencer);
        let config = NativeConfig { servers, sequencer: (sequencer, who(sequencer).1) };
        parts.push(provider.open(id, &config.to_bytes())?);
    }
    if parts.len() == 1 {
        return Ok(parts.remove(0));
    }
    Ok(Arc::new(StripedLoglet::new(env.clone(), parts, Arc::new(StripedOptions::default()))))
}

impl Load {
    /// Runs the load on a Loglet.
    pub fn run(&self, parameters: &Parameters, shape: &Shape) -> Outcome {
        let mut model = Model::new(*parameters);
        let shared = self.one_machine.map(|processors| model.add_machine(processors));
        let mut add = |serves| {
            let machine = shared.unwrap_or_else(|| model.add_machine(1));
            model.add_node(machine, self.seed, |core, storage| {
                if serves {
                    serve(core, storage);
                }
            })
        };
        let servers: Vec<NodeId> = (0..shape.servers).map(|_| add(true)).collect();
        let clients: Vec<NodeId> = (0..self.clients).map(|_| add(false)).collect();
        model.connect();
        let from = self.warm_up_ms * NANOS_PER_MS;
        let tally = Tally::new(Tick(from));
        let payload = Bytes::from(vec![7; self.payload]);
        let mut handles = Vec::new();
        for node in &clients {
            let env = model.env(*node);
            let Ok(loglet) = open(&env, LOGLET, shape, |node| (storage_of(node), life_of(node))) else {
                unreachable!("one, three or nine servers are allowed");
            };
            if self.one_machine.is_some() && handles.is_empty() {
                env.spawn("trim", Box::pin(keep_trimming(env.clone(), loglet.clone(), tally.clone())));
            }
            for n in 0..self.depth {
                let worker = Worker {
                    client: ClientId(node.0.into()),
                    first: u64::from(n) + 1,
                    step: self.depth.into(),
                    payload: payload.clone(),
                    starts_after: Duration::from_nanos(env.random() % NANOS_PER_MS),
                    clock: Clock::Node,
                };
                let appends = append(env.clone(), loglet.clone(), worker, tally.clone(), u64::MAX);
                env.spawn("append", Box::pin(appends));
            }
            handles.push(loglet);
        }
        let filled =
            |handles: &[Arc<dyn Loglet>]| handles.iter().map(|h| h.known_tail().0).max().unwrap_or(0);
        model.run_until(from);
        model.forget();
        let before = filled(&handles);
        model.run_until(from + self.measured_ms * NANOS_PER_MS);
        let positions = filled(&handles) - before;
        let mut latencies = locked(&tally).end();
        latencies.busy = Duration::from_millis(self.measured_ms);
        let pads = positions.saturating_sub(latencies.count());
        let busiest = self.busiest(&model, shape, &servers, &clients);
        Outcome { latencies, pads, busiest, work: model.work }
    }

    /// Returns which part of the time the busiest resource of each kind was busy, the busiest kind first.
    fn busiest(
        &self,
        model: &Model,
        shape: &Shape,
        servers: &[NodeId],
        clients: &[NodeId],
    ) -> Vec<(&'static str, f64)> {
        let orders = |node: &&NodeId| shape.stripes.iter().any(|s| s.sequencer + 1 == node.0);
        let most = |nodes: &mut dyn Iterator<Item = &NodeId>, of: &dyn Fn(Busy) -> u64| {
            model.busiest(nodes, of, self.measured_ms * NANOS_PER_MS)
        };
        let link = |busy: Busy| busy.sending_ns.max(busy.receiving_ns);
        let mut all = vec![
            ("processor of a sequencer", most(&mut servers.iter().filter(orders), &|b| b.processor_ns)),
            (
                "processor of another LogServer",
                most(&mut servers.iter().filter(|n| !orders(n)), &|b| b.processor_ns),
            ),
            ("processor of a client", most(&mut clients.iter(), &|b| b.processor_ns)),
            ("link of a sequencer", most(&mut servers.iter().filter(orders), &link)),
            ("link of a client", most(&mut clients.iter(), &link)),
            ("disk of a LogServer", most(&mut servers.iter(), &|b| b.disk_ns)),
        ];
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all
    }
}

/// Runs one shape and prints its line. Returns its appends per second, and whether nothing failed.
fn run_shape(
    args: &Args,
    parameters: &Parameters,
    mode: &str,
    shape: &Shape,
    clients: u32,
    one_machine: Option<usize>,
) -> (f64, bool) {
    let stripes = shape.stripes.len() as u32;
    let depth = (args.depth * stripes).div_ceil(clients.max(1));
    let load = Load {
        clients,
        depth,
        payload: args.payload,
        warm_up_ms: args.warm_up_ms,
        measured_ms: args.measured_ms,
        seed: args.seed,
        one_machine,
    };
    let outcome = load.run(parameters, shape);
    let busiest: serde_json::Map<String, Value> =
        outcome.busiest.iter().map(|(what, part)| ((*what).to_owned(), json!(part))).collect();
    let settings = json!({
        "kind": "modelled", "servers": shape.servers, "clients": clients, "depth_per_client": depth,
        "payload_bytes": args.payload, "warm_up_ms": args.warm_up_ms, "measured_ms": args.measured_ms,
        "seed": args.seed, "one_machine": one_machine, "parameters": parameters.to_json(),
    });
    let mut line = outcome.latencies.line(&format!("StripedLoglet, {mode}"), mode, 1, &settings);
    line["stripes"] = json!(stripes);
    line["work_op"] = outcome.work.for_each(outcome.latencies.count());
    line["pads"] = json!(outcome.pads);
    line["pads_per_record"] = json!((outcome.pads_per_record() * 1e3).round() / 1e3);
    line["bottleneck"] = json!(outcome.busiest[0].0);
    line["busy"] = Value::Object(busiest);
    println!("{line}");
    let acknowledged = outcome.latencies.count();
    (acknowledged as f64 * 1e3 / args.measured_ms as f64, outcome.latencies.errors == 0 && acknowledged > 0)
}

/// Prints what a mode gains over a single sequencer.
fn summary(mode: &str, points: &[(u32, f64)]) -> bool {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return true };
    let gains: Vec<Value> = points
        .iter()
        .map(|(n, ops)| json!({"stripes": n, "times": (ops / first.1 * 1e3).round() / 1e3}))
        .collect();
    let gain = last.1 / first.1.max(1.0);
    let target = (mode == "sharded").then(|| f64::from(last.0) / f64::from(first.0) * LINEAR);
    let holds = target.is_none_or(|target| gain >= target);
    let line = json!({
        "system": format!("StripedLoglet, {mode}: times the appends per second of one stripe"), "workload": "gain",
        "mode": mode, "gains": gains, "target": target, "holds": holds,
    });
    println!("{line}");
    holds
}

/// Measures the parameters, or takes them from the options, and runs all shapes. Returns whether the targets are met.
pub fn run(args: &Args) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Error::from).and_then(|runtime| {
        runtime.block_on(async {
            let given = args.parameters.as_deref();
            let parameters = calibration::parameters(given, &args.folder, &[Kind::Native]).await?;
            match args.real {
                true => real::run(args, &parameters).await,
                false => Ok(run_modelled(args, &parameters)),
            }
        })
    });
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        false
    })
}

/// Runs all shapes on machines of their own. Returns whether the targets are met.
fn run_modelled(args: &Args, parameters: &Parameters) -> bool {
    let mut fine = true;
    let mut all = |mode: &str, counts: &[u32], shape: &dyn Fn(u32) -> Shape| {
        if args.only.as_deref().is_some_and(|only| only != mode) {
            return;
        }
        let mut points = Vec::new();
        for stripes in counts.iter().copied().filter(|n| *n <= args.stripes) {
            let (ops, held) = run_shape(args, parameters, mode, &shape(stripes), args.clients, None);
            fine &= held;
            points.push((stripes, ops));
        }
        fine &= summary(mode, &points);
    };
    all("rotating", &ROTATING, &|n| Shape::rotating(ROTATING_SERVERS, n));
    all("sharded", &SHARDED, &Shape::sharded);
    fine
}

mod real;

pub use real::open_stripes;

#[cfg(test)]
mod tests;

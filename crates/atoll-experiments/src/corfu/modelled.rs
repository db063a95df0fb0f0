//! CORFU on modelled machines: appends and reads per second with 1 to 64 units (paper, Figure 7). The nodes are real node cores, each on a
//! machine of its own, with times that were measured on this one.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_contract::{Loglet, LogletId, LogletProvider};
use atoll_core::{Encode, Env, NodeCore, NodeId, StorageId, Tick};
use atoll_corfu::roles::{SEQUENCER, UNIT};
use atoll_corfu::{
    ClientOptions, CorfuLoglet, CorfuProvider, Projection, Sequencer, SequencerOptions, Unit, UnitOptions,
};
use serde_json::{Value, json};

use super::clients::{Load, What};
use super::{Error, failed, print};
use crate::calibration::{self, Kind};
use crate::latency::Latencies;
use crate::load::{Clock, locked};
use crate::model::{Busy, Model, Nobody, Parameters, Work, life_of, storage_of};

/// The numbers of units.
const UNITS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Reads grow linearly if each of many units serves at least this fraction of what a single one does.
const LINEAR: f64 = 0.8;
/// Entries on each chain before they are read. They are in the memory of its units: the model reads no disk.
const ENTRIES_PER_CHAIN: u64 = 256;
/// Virtual time within which clients must be ready, in milliseconds.
const READY_WITHIN_MS: u64 = 20_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// Options of the model.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// At most this many units
    #[arg(long, default_value_t = 64)]
    units: u32,
    /// Units of each chain
    #[arg(long, default_value_t = 1)]
    replicas: u32,
    /// Client nodes. They are as many for one unit as for many, so that a unit hears from as many
    #[arg(long, default_value_t = 128)]
    clients: u32,
    #[command(flatten)]
    shape: ShapeArgs,
}

/// Options that the real run has, too.
#[derive(Clone, Debug, clap::Args)]
pub struct ShapeArgs {
    /// Operations under way at once, for each unit: all clients together
    #[arg(long, default_value_t = 128)]
    pub depth: u32,
    /// Bytes of an entry
    #[arg(long, default_value_t = 4096)]
    pub payload: usize,
    /// Virtual milliseconds before the measurement
    #[arg(long, default_value_t = 10)]
    pub model_warm_up_ms: u64,
    /// Virtual milliseconds of the measurement
    #[arg(long, default_value_t = 20)]
    pub model_ms: u64,
    /// Seed of the modelled nodes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Use these parameters of the model, as a line of an earlier run has them, instead of measuring them
    #[arg(long, value_name = "JSON")]
    parameters: Option<String>,
    /// Where the disk is measured, and the data goes
    #[arg(long, value_name = "FOLDER", default_value = "target")]
    pub folder: PathBuf,
}

impl ShapeArgs {
    /// Returns the parameters of the model: given, or measured.
    pub async fn parameters(&self) -> Result<Parameters, Error> {
        calibration::parameters(self.parameters.as_deref(), &self.folder, &[Kind::Corfu]).await
    }

    /// Returns the same options with so many virtual milliseconds before the measurement, and of it, at least.
    pub fn for_at_least(&self, (warm_up_ms, measured_ms): (u64, u64)) -> Self {
        ShapeArgs {
            model_warm_up_ms: self.model_warm_up_ms.max(warm_up_ms),
            model_ms: self.model_ms.max(measured_ms),
            ..self.clone()
        }
    }

    /// Returns the options of a run for which only these matter.
    pub fn with_parameters(parameters: Option<String>, folder: PathBuf) -> Self {
        ShapeArgs {
            depth: 128,
            payload: 4096,
            model_warm_up_ms: 10,
            model_ms: 20,
            seed: 1,
            parameters,
            folder,
        }
    }
}

/// A modelled cluster with one log.
pub struct Modelled {
    /// The model.
    pub model: Model,
    /// The log's projection.
    pub projection: Projection,
    units: Vec<NodeId>,
    sequencer: NodeId,
    clients: Vec<NodeId>,
}

fn add_unit(core: &mut NodeCore, storage: StorageId) {
    let unit = Unit::new(core.env(), storage, UnitOptions::default());
    core.add_role(UNIT, Box::new(unit));
}

fn add_sequencer(core: &mut NodeCore, _: StorageId) {
    let sequencer = Sequencer::new(core.env(), SequencerOptions::default());
    core.add_role(SEQUENCER, Box::new(sequencer));
}

impl Modelled {
    /// Makes a cluster: all nodes on one machine with so many processors, or each on a machine of its own.
    pub fn new(
        parameters: &Parameters,
        (chains, replicas, clients): (u32, u32, u32),
        seed: u64,
        one_machine: Option<usize>,
    ) -> Self {
        let mut model = Model::new(*parameters);
        let shared = one_machine.map(|processors| model.add_machine(processors));
        let mut add = |roles: fn(&mut NodeCore, StorageId)| {
            let machine = shared.unwrap_or_else(|| model.add_machine(1));
            model.add_node(machine, seed, roles)
        };
        let sequencer = add(add_sequencer);
        let units: Vec<NodeId> = (0..chains * replicas).map(|_| add(add_unit)).collect();
        let clients = (0..clients).map(|_| add(|_, _| ())).collect();
        model.connect();
        let unit = |node: &NodeId| (*node, storage_of(*node));
        let chains = units.chunks(replicas.max(1) as usize).map(|chain| chain.iter().map(unit).collect());
        let projection = Projection::simple(1, (sequencer, life_of(sequencer)), 1, chains.collect());
        Modelled { model, projection, units, sequencer, clients }
    }

    /// Returns the executors of the clients.
    pub fn clients(&self) -> Vec<Env> {
        self.clients.iter().map(|node| self.model.env(*node)).collect()
    }

    /// Returns which part of the time the busiest resource of each kind was busy, the busiest kind first.
    fn busiest(&self, nanos: u64) -> Vec<(&'static str, f64)> {
        let processor = |busy: Busy| busy.processor_ns;
        let link = |busy: Busy| busy.sending_ns.max(busy.receiving_ns);
        let (model, sequencer) = (&self.model, [self.sequencer]);
        let mut all = vec![
            ("processor of the sequencer", model.busiest(sequencer.iter(), processor, nanos)),
            ("processor of a unit", model.busiest(self.units.iter(), processor, nanos)),
            ("processor of a client", model.busiest(self.clients.iter(), processor, nanos)),
            ("link of a unit", model.busiest(self.units.iter(), link, nanos)),
            ("link of a client", model.busiest(self.clients.iter(), link, nanos)),
            ("disk of a unit", model.busiest(self.units.iter(), |b| b.disk_ns, nanos)),
        ];
        all.sort_by(|one, other| other.1.total_cmp(&one.1));
        all
    }
}

/// Opens a Loglet with this projection on a node.
pub fn open(env: &Env, id: LogletId, projection: &Projection) -> Result<CorfuLoglet, Error> {
    provider(env).open_corfu(id, &projection.to_bytes()).map_err(failed)
}

/// Returns the provider of a node. It plans nothing.
pub fn provider(env: &Env) -> CorfuProvider {
    CorfuProvider::new(env.clone(), Arc::new(Nobody), ClientOptions::default())
}

/// One point of the figure.
#[derive(Clone, Debug)]
pub struct Point {
    /// What the clients do.
    pub what: What,
    /// Chains.
    pub chains: u32,
    /// Units of each.
    pub replicas: u32,
    /// Client nodes, all together.
    pub clients: u32,
    /// All nodes are on one machine with so many processors.
    pub one_machine: Option<usize>,
}

/// What a point showed.
pub struct Outcome {
    /// The operations of the measured time.
    pub latencies: Latencies,
    busiest: Vec<(&'static str, f64)>,
    work: Work,
    was_ready: bool,
}

impl Point {
    /// Returns what the clients of this point do.
    pub fn load(&self, shape: &ShapeArgs) -> Load {
        let units = u64::from(self.chains * self.replicas);
        let depth = (u64::from(shape.depth) * units).div_ceil(u64::from(self.clients.max(1))).max(1);
        let entries = (ENTRIES_PER_CHAIN * u64::from(self.chains)).div_ceil(u64::from(self.clients.max(1)));
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        Load { what: self.what, depth, payload: shape.payload, entries }
    }

    /// Runs the model.
    pub fn run(&self, parameters: &Parameters, shape: &ShapeArgs) -> Result<Outcome, Error> {
        let size = (self.chains, self.replicas, self.clients);
        let mut cluster = Modelled::new(parameters, size, shape.seed, self.one_machine);
        let mut handles: Vec<(Env, Arc<dyn Loglet>)> = Vec::new();
        for env in cluster.clients() {
            let loglet = provider(&env).open(LogletId(7), &cluster.projection.to_bytes()).map_err(failed)?;
            handles.push((env, loglet));
        }
        let running = self.load(shape).start(handles, Clock::Node);
        let (mut now, until) = (0, READY_WITHIN_MS * NANOS_PER_MS);
        while !running.is_ready() && now < until {
            now += NANOS_PER_MS;
            cluster.model.run_until(now);
        }
        now += shape.model_warm_up_ms * NANOS_PER_MS;
        cluster.model.run_until(now);
        cluster.model.forget();
        locked(&running.tally).begin(Tick(now));
        let measured = shape.model_ms * NANOS_PER_MS;
        cluster.model.run_until(now + measured);
        let mut latencies = locked(&running.tally).end();
        latencies.busy = std::time::Duration::from_nanos(measured);
        let (busiest, work) = (cluster.busiest(measured), cluster.model.work);
        Ok(Outcome { latencies, busiest, work, was_ready: running.is_ready() })
    }
}

impl Outcome {
    /// Returns operations per second.
    pub fn rate(&self) -> f64 {
        self.latencies.count() as f64 / self.latencies.busy.as_secs_f64().max(1e-9)
    }

    /// Returns whether nothing failed, and the model had everything that it needs.
    pub fn is_fine(&self) -> bool {
        self.was_ready && self.latencies.errors == 0 && self.latencies.count() > 0 && self.work.fetches == 0
    }

    /// Returns the line.
    pub fn line(&self, point: &Point, parameters: &Parameters, shape: &ShapeArgs) -> Value {
        let busiest: serde_json::Map<String, Value> =
            self.busiest.iter().map(|(what, part)| ((*what).to_owned(), json!(part))).collect();
        let settings = json!({
            "kind": "modelled", "chains": point.chains, "units_of_a_chain": point.replicas,
            "clients": point.clients, "depth_per_client": point.load(shape).depth,
            "payload_bytes": shape.payload, "warm_up_ms": shape.model_warm_up_ms, "measured_ms": shape.model_ms,
            "seed": shape.seed, "one_machine": point.one_machine, "parameters": parameters.to_json(),
        });
        let mut line = self.latencies.line("CORFU", point.what.name(), 1, &settings);
        line["units"] = json!(point.chains * point.replicas);
        line["bottleneck"] = json!(self.busiest[0].0);
        line["busy"] = Value::Object(busiest);
        line["work_op"] = self.work.for_each(self.latencies.count());
        line["fetches"] = json!(self.work.fetches);
        line
    }
}

/// Runs all points. Returns whether nothing failed and reads grow linearly.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let parameters = args.shape.parameters().await?;
    let mut fine = true;
    for what in What::ALL {
        let mut rates: Vec<(u32, f64)> = Vec::new();
        let counts = UNITS.into_iter().filter(|units| *units <= args.units);
        for units in counts.filter(|units| units % args.replicas.max(1) == 0) {
            let (chains, clients) = (units / args.replicas.max(1), args.clients);
            let point = Point { what, chains, replicas: args.replicas, clients, one_machine: None };
            let outcome = point.run(&parameters, &args.shape)?;
            print(&outcome.line(&point, &parameters, &args.shape))?;
            fine &= outcome.is_fine();
            rates.push((units, outcome.rate()));
        }
        let (Some(first), Some(last)) = (rates.first(), rates.last()) else { continue };
        let gains: Vec<Value> = rates
            .iter()
            .map(|(n, rate)| json!({"units": n, "times": (rate / first.1 * 1e3).round() / 1e3}))
            .collect();
        let gain = last.1 / first.1.max(1.0);
        // Appends end at what one sequencer gives out, in the paper, too.
        let target = (what == What::Read).then(|| f64::from(last.0) / f64::from(first.0) * LINEAR);
        let holds = target.is_none_or(|target| gain >= target);
        print(&json!({
            "workload": "gain", "of": what.name(), "units_of_a_chain": args.replicas, "gains": gains,
            "target": target, "holds": holds,
        }))?;
        fine &= holds;
    }
    Ok(fine)
}

//! What each kind of Loglet gives on 1, 3 and 9 servers that have machines of their own (`model.rs`): native, striped, CORFU and Scalog.
//! `experiments/logs/kinds.py` measures the same kinds on real nodes that share a machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{ClientId, Loglet, LogletId, PlanError};
use atoll_core::{Encode, NodeId, Tick};
use atoll_corfu::Projection;
use atoll_native::NativeConfig;
use atoll_scalog::config::CONFIG_FORMAT;
use atoll_scalog::{OrderingSpec, ScalogConfig, ScalogOptions, Server, ShardSpec};
use atoll_striped::{StripedLoglet, StripedOptions};
use bytes::Bytes;
use serde_json::json;

use crate::calibration::{self, parameters_now};
use crate::latency::Latencies;
use crate::load::{Clock, Tally, Worker, append, locked};
use crate::model::{Model, Parameters, life_of, storage_of};
use crate::scalog::parts::Parts;

/// Numbers of servers.
const SERVERS: [u32; 3] = [1, 3, 9];
/// Kinds whose crates do not name them.
const NATIVE: &str = "native";
const STRIPED: &str = "striped";
/// The Loglet.
const LOGLET: LogletId = LogletId(7);
const NANOS_PER_MS: u64 = 1_000_000;
/// Appends start within this time, so that not all of them come at once.
const START_WITHIN_NS: u64 = NANOS_PER_MS;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Client nodes of the largest load; the others have one
    #[arg(long, default_value_t = 60)]
    clients: u32,
    /// Appends under way at once in the largest load: all clients together
    #[arg(long, default_value_t = 960)]
    most: u32,
    /// Bytes of a record
    #[arg(long, default_value_t = 1024)]
    payload: usize,
    /// Virtual milliseconds before each measurement
    #[arg(long, default_value_t = 40)]
    warm_up_ms: u64,
    /// Virtual milliseconds of each measurement
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
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
}

/// A kind of Loglet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Native,
    Striped,
    Corfu,
    Scalog,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Native, Kind::Striped, Kind::Corfu, Kind::Scalog];

    fn name(self) -> &'static str {
        match self {
            Kind::Native => NATIVE,
            Kind::Striped => STRIPED,
            Kind::Corfu => atoll_corfu::KIND,
            Kind::Scalog => atoll_scalog::KIND,
        }
    }

    /// Returns how many nodes store a record.
    fn copies(self, servers: u32) -> u32 {
        match self {
            Kind::Native | Kind::Striped => servers.min(3),
            Kind::Corfu | Kind::Scalog => servers.min(2),
        }
    }

    /// Opens the Loglet at a node. On one and three nodes, a node orders that also stores; on nine, as many store as one more that orders
    /// leaves.
    fn open(self, parts: &Parts, env: &atoll_core::Env, servers: u32) -> Result<Arc<dyn Loglet>, PlanError> {
        let config = match self {
            Kind::Native => native(1..=servers.min(3), if servers > 3 { 4 } else { 1 }),
            Kind::Striped => return striped(parts, env, servers),
            Kind::Corfu => corfu(servers),
            Kind::Scalog => scalog(servers),
        };
        parts.open(self.name(), LOGLET, &config)
    }
}

fn native(servers: std::ops::RangeInclusive<u32>, sequencer: u32) -> Bytes {
    let servers = servers.map(NodeId).map(|node| (node, storage_of(node))).collect();
    let sequencer = (NodeId(sequencer), life_of(NodeId(sequencer)));
    NativeConfig { servers, sequencer }.to_bytes()
}

/// Two stripes on the same nodes, with another sequencer each if there is another node; on nine nodes, three stripes of three nodes.
fn striped(parts: &Parts, env: &atoll_core::Env, servers: u32) -> Result<Arc<dyn Loglet>, PlanError> {
    let stripes: Vec<Bytes> = match servers {
        9.. => [1, 4, 7].map(|first| native(first..=first + 2, first)).to_vec(),
        _ => [1, servers.min(2)].map(|sequencer| native(1..=servers, sequencer)).to_vec(),
    };
    let part = |(number, config)| parts.open(NATIVE, LOGLET.part(number), config);
    let stripes = (1..).zip(&stripes).map(part).collect::<Result<Vec<_>, PlanError>>()?;
    Ok(Arc::new(StripedLoglet::new(env.clone(), stripes, Arc::new(StripedOptions::default()))))
}

/// Chains of two units, and a node with the sequencer.
fn corfu(servers: u32) -> Bytes {
    let units: Vec<NodeId> = (1..servers.max(2)).map(NodeId).collect();
    let unit = |node: &NodeId| (*node, storage_of(*node));
    let chains = units.chunks(2).map(|chain| chain.iter().map(unit).collect()).collect();
    Projection::simple(1, (NodeId(servers), life_of(NodeId(servers))), 1, chains).to_bytes()
}

/// Shards of two servers; the last node orders, and the last three have the ordering log.
fn scalog(servers: u32) -> Bytes {
    let server = |number: u32| Server { node: NodeId(number), storage: storage_of(NodeId(number)) };
    let (shards, copies) = ((servers / 3).max(1), Kind::Scalog.copies(servers));
    let of_shard = |shard: u32| (1..=copies).map(|n| server(shard * copies + n)).collect();
    let shards_of = |shard| ShardSpec { shard, servers: of_shard(shard) };
    let ordering = native(servers.saturating_sub(2).max(1)..=servers, servers);
    let config = ScalogConfig {
        format: CONFIG_FORMAT,
        shards: (0..shards).map(shards_of).collect(),
        aggregators: Vec::new(),
        orderers: vec![NodeId(servers)],
        interval_us: ScalogOptions::default().interval_us,
        added: Vec::new(),
        wanted: (shards, copies),
        ordering: OrderingSpec { kind: NATIVE.to_owned(), config: ordering },
    };
    config.to_bytes()
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
struct Load {
    clients: u32,
    /// Appends that each has under way.
    depth: u32,
}

/// What a run showed.
struct Outcome {
    latencies: Latencies,
    /// Processor time of all servers for an append, in microseconds.
    server_us_op: f64,
    /// Which part of the time the busiest processor of a server was busy.
    busiest: f64,
}

fn run_load(
    args: &Args,
    parameters: &Parameters,
    kind: Kind,
    servers: u32,
    load: Load,
) -> Result<Outcome, PlanError> {
    let mut model = Model::new(*parameters);
    let mut parts = Vec::new();
    for _ in 0..servers + load.clients {
        let machine = model.add_machine(1);
        model.add_node(machine, args.seed, |core, storage| parts.push(Parts::install(core, storage)));
    }
    model.connect();
    let from = args.warm_up_ms * NANOS_PER_MS;
    let tally = Tally::new(Tick(from));
    for node in servers + 1..=servers + load.clients {
        let env = model.env(NodeId(node));
        let loglet = kind.open(&parts[node as usize - 1], &env, servers)?;
        for _ in 0..load.depth {
            let worker = Worker {
                client: ClientId(env.random().max(1)),
                first: 1,
                step: 1,
                payload: Bytes::from(vec![7; args.payload]),
                starts_after: Duration::from_nanos(env.random() % START_WITHIN_NS),
                clock: Clock::Node,
            };
            let work = append(env.clone(), loglet.clone(), worker, tally.clone(), u64::MAX);
            env.spawn("append", Box::pin(work));
        }
    }
    model.run_until(from);
    model.forget();
    let measured = args.measured_ms * NANOS_PER_MS;
    model.run_until(from + measured);
    let mut latencies = locked(&tally).end();
    latencies.busy = Duration::from_nanos(measured);
    let busy: Vec<u64> = (1..=servers).map(|node| model.busy(NodeId(node)).processor_ns).collect();
    let server_us_op = busy.iter().sum::<u64>() as f64 / 1e3 / latencies.count().max(1) as f64;
    let busiest = busy.into_iter().max().unwrap_or(0) as f64 / measured as f64;
    Ok(Outcome { latencies, server_us_op, busiest })
}

/// Runs all kinds. Returns whether nothing failed.
pub fn run(args: &Args) -> bool {
    let parameters = match parameters_now(args.parameters.as_deref(), &args.folder, calibration::Kind::ALL) {
        Ok(parameters) => parameters,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let most = args.most.div_ceil(args.clients.max(1));
    let loads = [(1, 1), (1, 64), (args.clients, most)].map(|(clients, depth)| Load { clients, depth });
    let mut fine = true;
    for servers in SERVERS {
        for kind in Kind::ALL {
            for load in loads {
                let outcome = match run_load(args, &parameters, kind, servers, load) {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        eprintln!("{} on {servers} servers: {error}", kind.name());
                        return false;
                    }
                };
                fine &= outcome.latencies.errors == 0 && outcome.latencies.count() > 0;
                let settings = json!({
                    "kind": "modelled", "clients": load.clients, "depth_per_client": load.depth, "payload_bytes": args.payload,
                    "warm_up_ms": args.warm_up_ms, "measured_ms": args.measured_ms, "seed": args.seed,
                    "parameters": parameters.to_json(),
                });
                let mut line = outcome.latencies.line(kind.name(), "modelled", 1, &settings);
                line["loglet"] = json!(kind.name());
                line["nodes"] = json!(servers);
                line["copies"] = json!(kind.copies(servers));
                line["depth"] = json!(load.clients * load.depth);
                line["server_us_op"] = json!((outcome.server_us_op * 10.0).round() / 10.0);
                line["busiest_server"] = json!((outcome.busiest * 1e3).round() / 1e3);
                println!("{line}");
            }
        }
    }
    fine
}

//! Scalog as a whole in virtual time, on modelled machines with parameters that are measured on this one: writes against the number of
//! shards, beside CORFU on as many servers; and the ordering layer with up to 35,000 shards.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::machines::{System, Writes};
use super::tree::{Costs, Tree, TreeError};
use crate::calibration::{self, parameters_now};
use crate::model::Parameters;

/// Shards, and chains, whose writes are modelled.
const SHARDS: [u32; 6] = [1, 2, 3, 6, 12, 24];
/// The shards that carry half of CORFU's peak, as in the paper.
const SIX: u32 = 6;
/// Records of an entry of CORFU with batches, as in the paper.
const RECORDS: usize = 4;
/// A log of many shards grows linearly if it writes at least this part of so many times what one shard does.
const LINEAR: f64 = 0.8;
/// Half of CORFU's peak is carried if at least this part of it is acknowledged.
const CARRIED: f64 = 0.95;
/// Shards of the modelled ordering layers. The last one has a deeper tree.
const LAYERS: [u32; 5] = [100, 350, 1000, 3500, 35_000];
/// The layer that others follow, and how many do: the last number is all servers, as in the product.
const FOLLOWED: (u32, [u32; 3]) = (3500, [100, 1000, 7000]);

/// Intervals of a layer double up to this one.
const LONGEST: Duration = Duration::from_millis(52);

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Client nodes of the writes
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,
    /// Appends under way at once, for each shard: all clients together
    #[arg(long, default_value_t = 240)]
    depth: u32,
    /// Bytes of a record
    #[arg(long, default_value_t = 4096)]
    payload: usize,
    /// How often servers report, in microseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    interval_us: u64,
    /// Virtual milliseconds before the measurement of writes
    #[arg(long, default_value_t = 20)]
    warm_up_ms: u64,
    /// Virtual milliseconds of the measurement of writes
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
    measured_ms: u64,
    /// At most this many shards of the writes
    #[arg(long, default_value_t = 24)]
    most_shards: u32,
    /// At most this many shards of an ordering layer
    #[arg(long, default_value_t = 35_000)]
    most_layer_shards: u32,
    /// At most this many that follow an ordering log
    #[arg(long, default_value_t = 7000)]
    most_followers: u32,
    /// Children of an aggregator: each is modelled
    #[arg(long, value_delimiter = ',', default_values_t = [24, 8])]
    fan_in: Vec<usize>,
    /// Records per second of each shard of an ordering layer [the paper: 52 million of 3,500 shards]
    #[arg(long, default_value_t = 14_857.0)]
    shard_rate: f64,
    /// Virtual microseconds before the measurement of an ordering layer, at least
    #[arg(long, default_value_t = 2000)]
    layer_warm_up_us: u64,
    /// Virtual microseconds of the measurement of an ordering layer, at least
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..))]
    layer_us: u64,
    /// Seed of the nodes and of the clients' start times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this part: writes or layers
    #[arg(long, value_name = "PART", value_parser = ["writes", "layers"])]
    only: Option<String>,
    /// Use these parameters, as a line of an earlier run has them, instead of measuring them
    #[arg(long, value_name = "JSON")]
    parameters: Option<String>,
    /// Where the disk is measured
    #[arg(long, value_name = "FOLDER", default_value = "target")]
    folder: PathBuf,
}

impl Args {
    fn writes(&self, system: System, shards: u32) -> Writes {
        Writes {
            system,
            shards,
            clients: self.clients,
            depth: (self.depth * shards).div_ceil(self.clients),
            payload: self.payload,
            records: 1,
            rate: None,
            interval: Duration::from_micros(self.interval_us),
            warm_up_ms: self.warm_up_ms,
            measured_ms: self.measured_ms,
            seed: self.seed,
        }
    }

    fn tree(&self, shards: u32, fan_in: usize, followers: u32) -> Tree {
        Tree {
            shards,
            replicas: 2,
            fan_in,
            interval: Duration::from_micros(self.interval_us),
            shard_rate: self.shard_rate,
            followers,
            warm_up: Duration::from_micros(self.layer_warm_up_us),
            measured: Duration::from_micros(self.layer_us),
            seed: self.seed,
        }
    }

    fn parameters(&self) -> Option<Parameters> {
        parameters_now(self.parameters.as_deref(), &self.folder, calibration::Kind::ALL)
            .inspect_err(|error| eprintln!("{error}"))
            .ok()
    }
}

/// Writes against the number of shards, and six shards at half of CORFU's peak. Returns whether the targets are met.
fn all_writes(args: &Args, parameters: &Parameters) -> bool {
    let mut fine = true;
    let mut rates = Vec::new();
    for system in [System::Scalog, System::Corfu] {
        for shards in SHARDS.into_iter().filter(|n| *n <= args.most_shards) {
            let rate = args.writes(system, shards).tell(parameters, "write");
            fine &= rate.is_some();
            rates.push((system, shards, rate.unwrap_or(0.0)));
        }
    }
    let rate_of = |system, shards| rates.iter().find(|r| (r.0, r.1) == (system, shards)).map(|r| r.2);
    for shards in SHARDS.into_iter().filter(|n| *n <= args.most_shards) {
        let four = Writes { records: RECORDS, ..args.writes(System::Corfu, shards) };
        fine &= four.tell(parameters, "write, 4 records per entry").is_some();
    }
    let most = SHARDS.into_iter().filter(|n| *n <= args.most_shards).max().unwrap_or(1);
    let gain =
        rate_of(System::Scalog, most).unwrap_or(0.0) / rate_of(System::Scalog, 1).unwrap_or(1.0).max(1.0);
    let target = f64::from(most) * LINEAR;
    println!(
        "{}",
        json!({
            "system": "Scalog: times the writes per second of one shard", "workload": "gain", "shards": most,
            "times": (gain * 1e3).round() / 1e3, "target": target, "holds": gain >= target,
        })
    );
    fine &= gain >= target;
    let Some(peak) = rate_of(System::Corfu, SIX) else { return fine };
    for system in [System::Scalog, System::Corfu] {
        let half = Writes { rate: Some(peak / 2.0), ..args.writes(system, SIX) };
        let carried = half.tell(parameters, "half of CORFU's peak").unwrap_or(0.0);
        let holds = carried >= CARRIED * peak / 2.0;
        println!(
            "{}",
            json!({
                "system": system.name(), "workload": "half carried", "shards": SIX, "rate": (peak / 2.0).round(), "carried": carried,
                "target": CARRIED, "holds": holds,
            })
        );
        fine &= holds;
    }
    fine
}

/// Doubles the interval until the layer carries its load. Returns the interval at which it does, if it is not too long.
fn find_interval(
    tree: &Tree,
    parameters: &Parameters,
    costs: Costs,
    workload: &str,
) -> Result<Option<Duration>, TreeError> {
    let mut tree = tree.clone();
    while tree.interval <= LONGEST {
        if tree.tell(parameters, costs, workload)? {
            return Ok(Some(tree.interval));
        }
        tree.interval *= 2;
    }
    Ok(None)
}

/// An ordering layer of many shards: alone, and followed by others.
fn layer(args: &Args, parameters: &Parameters, shards: u32, fan_in: usize) -> Result<(), TreeError> {
    let alone = args.tree(shards, fan_in, 0);
    let costs = alone.calibrate(parameters)?;
    let Some(mut interval) = find_interval(&alone, parameters, costs, "ordering layer")? else {
        return Ok(());
    };
    for followers in FOLLOWED.1.into_iter().filter(|n| shards == FOLLOWED.0 && *n <= args.most_followers) {
        let followed = Tree { interval, ..args.tree(shards, fan_in, followers) };
        // More of them need no shorter one.
        match find_interval(&followed, parameters, costs, "ordering layer, followed")? {
            Some(found) => interval = found,
            None => break,
        }
    }
    Ok(())
}

/// All ordering layers. Returns whether all ran.
fn all_layers(args: &Args, parameters: &Parameters) -> bool {
    for fan_in in &args.fan_in {
        for shards in LAYERS.into_iter().filter(|n| *n <= args.most_layer_shards) {
            if let Err(error) = layer(args, parameters, shards, *fan_in) {
                eprintln!("{shards} shards, fan-in {fan_in}: {error}");
                return false;
            }
        }
    }
    true
}

/// Runs the model. Returns whether the targets are met.
pub fn run(args: &Args) -> bool {
    let Some(parameters) = args.parameters() else { return false };
    let wanted = |part| args.only.as_deref().is_none_or(|only| only == part);
    let writes = !wanted("writes") || all_writes(args, &parameters);
    let layers = !wanted("layers") || all_layers(args, &parameters);
    writes && layers
}

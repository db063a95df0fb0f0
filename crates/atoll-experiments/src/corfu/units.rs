//! Appends and reads per second with 1 to 4 units (paper, Figure 7), each in a process of its own, all on this machine. The model computes
//! the same with all nodes on one machine, so the two can be compared.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use atoll_contract::{Loglet, LogletProvider};
use atoll_core::Encode;
use atoll_corfu::log::id_of;
use serde_json::json;

use super::clients::What;
use super::modelled::{Point, ShapeArgs, provider};
use super::nodes::Nodes;
use super::{Error, failed, load_1m, print};
use crate::calibration::settle;
use crate::latency::median;
use crate::model::Parameters;
use crate::real::{Run, TOLERANCE};

/// The numbers of units.
const UNITS: [u32; 4] = [1, 2, 3, 4];

/// Virtual milliseconds before a measurement that is compared, and of it, at least: many operations are under way at one client.
const COMPARED_MS: (u64, u64) = (50, 100);

/// Options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds before each measurement
    #[arg(long, default_value_t = 1.0)]
    warm_up: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// At most this many units
    #[arg(long, default_value_t = 4)]
    units: u32,
    #[command(flatten)]
    shape: ShapeArgs,
}

fn point(what: What, units: u32, one_machine: Option<usize>) -> Point {
    Point { what, chains: units, replicas: 1, clients: 1, one_machine }
}

/// Opens a log on real units, each of which is a chain.
pub async fn open_units(
    nodes: &Nodes,
    name: &str,
    units: impl IntoIterator<Item = u32>,
    sequencer: u32,
) -> Result<Arc<dyn Loglet>, Error> {
    let chains: Vec<Vec<u32>> = units.into_iter().map(|unit| vec![unit]).collect();
    open_chains(nodes, name, &chains, sequencer).await
}

/// Opens a log on these chains of real units.
pub async fn open_chains(
    nodes: &Nodes,
    name: &str,
    chains: &[Vec<u32>],
    sequencer: u32,
) -> Result<Arc<dyn Loglet>, Error> {
    let config = nodes.projection(sequencer, chains).await?.to_bytes();
    provider(nodes.env()).open(id_of(name), &config).map_err(failed)
}

/// Measures one point once. Prints its line; returns operations per second, and whether none failed.
async fn measure(
    args: &Args,
    nodes: &mut Nodes,
    sequencer: u32,
    point: &Point,
    round: usize,
) -> Result<(f64, bool), Error> {
    let name = format!("units/{}/{}/{round}", point.what.name(), point.chains);
    let loglet = open_units(nodes, &name, 1..=point.chains, sequencer).await?;
    let run = Run {
        servers: point.chains,
        sequencer: Some(sequencer),
        warm_up: Duration::from_secs_f64(args.warm_up),
        measured: Duration::from_secs_f64(args.seconds),
    };
    let load = point.load(&args.shape);
    let showed = run.run(nodes, loglet, load).await?;
    let settings = json!({
        "kind": "real", "chains": point.chains, "units_of_a_chain": point.replicas, "clients": 1,
        "depth_per_client": load.depth, "payload_bytes": args.shape.payload, "warm_up_s": args.warm_up,
        "seconds": args.seconds, "load_1m": load_1m(),
    });
    let latencies = &showed.latencies;
    let mut line = latencies.line("CORFU", point.what.name(), round, &settings);
    line["units"] = json!(point.chains);
    line["usage"] = showed.usage(&run);
    print(&line)?;
    Ok((showed.rate(), latencies.errors == 0))
}

/// Compares the median of a point with the model of one machine. Prints both; returns whether they are close.
fn compare(args: &Args, parameters: &Parameters, real: &Point, rates: Vec<f64>) -> Result<bool, Error> {
    let processors = available_parallelism().map_or(1, |count| count.get());
    let point = point(real.what, real.chains, Some(processors));
    let shape = args.shape.for_at_least(COMPARED_MS);
    let outcome = point.run(parameters, &shape)?;
    print(&outcome.line(&point, parameters, &shape))?;
    let real = median(rates);
    let ratio = outcome.rate() / real.max(1e-9);
    let holds = outcome.is_fine() && (1.0 - TOLERANCE..=1.0 + TOLERANCE).contains(&ratio);
    print(&json!({
        "workload": "model_to_real", "of": point.what.name(), "units": point.chains, "real_ops_s": real.round(),
        "modelled_ops_s": outcome.rate().round(), "ratio": (ratio * 1e3).round() / 1e3, "tolerance": TOLERANCE,
        "holds": holds,
    }))?;
    Ok(holds)
}

/// Measures all points, and compares them with the model. Returns whether no operation failed and all are close to the model.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let parameters = args.shape.parameters().await?;
    let counts: Vec<u32> = UNITS.into_iter().filter(|units| *units <= args.units).collect();
    let most = counts.last().copied().unwrap_or(1);
    let mut fine = true;
    let mut points: Vec<(Point, Vec<f64>)> = Vec::new();
    for units in counts {
        points.extend(What::ALL.map(|what| (point(what, units, None), Vec::new())));
    }
    {
        // The nodes that have nothing to do in a point are idle.
        let mut nodes = Nodes::start(most + 1, 0, &args.shape.folder).await?;
        for unit in 1..=most {
            let first = open_units(&nodes, &format!("units/first/{unit}"), [unit], most + 1).await?;
            settle(&mut nodes, first).await?;
        }
        for round in 1..=args.rounds {
            for (point, rates) in &mut points {
                let (rate, held) = measure(args, &mut nodes, most + 1, point, round).await?;
                rates.push(rate);
                fine &= held;
            }
        }
        nodes.stop().await;
    }
    for (point, rates) in points {
        fine &= compare(args, &parameters, &point, rates)?;
    }
    Ok(fine)
}

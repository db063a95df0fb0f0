//! Appends and reads per second with 1 to 4 units (paper, Figure 7), each in a process of its own, all on this machine. The model computes
//! the same with all nodes on one machine, so the two can be compared.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use atoll_contract::{Loglet, LogletProvider};
use atoll_core::{Encode, Env};
use atoll_corfu::log::id_of;
use serde_json::json;

use super::clients::What;
use super::modelled::{Point, ShapeArgs, parameters, provider};
use super::nodes::Nodes;
use super::{Error, failed, load_1m, print};
use crate::latency::median;
use crate::load::{Clock, locked};
use crate::model::Parameters;

/// The numbers of units.
const UNITS: [u32; 4] = [1, 2, 3, 4];
/// The model is within this part of the real system.
const TOLERANCE: f64 = 0.2;
/// How long clients may take until they do what is measured.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(5);

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

/// Measures one point once. Prints its line; returns operations per second, and whether none failed.
async fn measure(
    args: &Args,
    nodes: &Nodes,
    sequencer: u32,
    point: &Point,
    round: usize,
) -> Result<(f64, bool), Error> {
    let (env, name): (Env, String) =
        (nodes.env().clone(), format!("units/{}/{}/{round}", point.what.name(), point.chains));
    let chains: Vec<Vec<u32>> = (1..=point.chains).map(|unit| vec![unit]).collect();
    let config = nodes.projection(sequencer, &chains).await?.to_bytes();
    let provider = provider(&env);
    let loglet: Arc<dyn Loglet> = provider.open(id_of(&name), &config).map_err(failed)?;
    let clock = Clock::real();
    let load = point.load(&args.shape);
    let running = load.start(vec![(env.clone(), loglet)], clock);
    let ready = async {
        while !running.is_ready() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let late = |_| failed("the clients are not ready in time");
    tokio::time::timeout(READY_WITHIN, ready).await.map_err(late)?;
    tokio::time::sleep(Duration::from_secs_f64(args.warm_up)).await;
    let began = clock.now(&env);
    locked(&running.tally).begin(began);
    tokio::time::sleep(Duration::from_secs_f64(args.seconds)).await;
    let mut latencies = locked(&running.tally).end();
    latencies.busy = clock.now(&env).since(began);
    let settings = json!({
        "kind": "real", "chains": point.chains, "units_of_a_chain": point.replicas, "clients": 1,
        "depth_per_client": load.depth, "payload_bytes": args.shape.payload, "warm_up_s": args.warm_up,
        "seconds": args.seconds, "load_1m": load_1m(),
    });
    let mut line = latencies.line("CORFU", point.what.name(), round, &settings);
    line["units"] = json!(point.chains);
    print(&line)?;
    // The disk is to be empty for the next one.
    let deleted = nodes.run(async move { provider.delete(id_of(&name), &config).await }).await?;
    deleted.map_err(failed)?;
    Ok((latencies.count() as f64 / latencies.busy.as_secs_f64().max(1e-9), latencies.errors == 0))
}

/// Compares the median of a point with the model of one machine. Prints both; returns whether they are close.
fn compare(args: &Args, parameters: &Parameters, real: &Point, rates: Vec<f64>) -> Result<bool, Error> {
    let processors = available_parallelism().map_or(1, |count| count.get());
    let point = point(real.what, real.chains, Some(processors));
    let outcome = point.run(parameters, &args.shape)?;
    print(&outcome.line(&point, parameters, &args.shape))?;
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
    let parameters = parameters(&args.shape)?;
    let counts: Vec<u32> = UNITS.into_iter().filter(|units| *units <= args.units).collect();
    let most = counts.last().copied().unwrap_or(1);
    let mut fine = true;
    let mut points: Vec<(Point, Vec<f64>)> = Vec::new();
    for units in counts {
        points.extend(What::ALL.map(|what| (point(what, units, None), Vec::new())));
    }
    {
        // The nodes that have nothing to do in a point are idle.
        let nodes = Nodes::start(most + 1, 0, &args.shape.folder).await?;
        for round in 1..=args.rounds {
            for (point, rates) in &mut points {
                let (rate, held) = measure(args, &nodes, most + 1, point, round).await?;
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

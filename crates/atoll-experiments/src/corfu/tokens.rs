//! Positions per second from a sequencer: two other processes take them, one per request and in batches. The paper gives 200,000 to 500,000
//! per second, one per request.
//!
//! The positions that the clients got are compared with how far the sequencer has come.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_core::{Env, NodeId};
use atoll_corfu::Projection;
use atoll_corfu::log::{CorfuLog, id_of};
use atoll_corfu::message::{Grant, Take};
use bytes::Bytes;
use serde_json::{Value, json};

use super::nodes::{Folder, Nodes, projection_to_json};
use super::shelf::corfu_log;
use super::{Error, failed, load_1m, print};
use crate::latency::{Latencies, median};
use crate::load::locked;

/// Positions of each request, in turns.
const BATCHES: [u32; 2] = [1, 16];
/// Positions per second, in the larger batches.
const TARGET: f64 = 1_000_000.0;
/// How much longer than the measurement the clients may take to answer.
const SPARE: Duration = Duration::from_secs(30);

/// Options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Processes with clients
    #[arg(long, default_value_t = 2)]
    clients: u32,
    /// Requests that each of them has under way
    #[arg(long, default_value_t = 256)]
    depth: u32,
    #[command(flatten)]
    place: Folder,
}

/// Takes positions until the time is up, one request after the other.
async fn keep_taking(log: CorfuLog, batch: u32, until: Instant, taken: Arc<Mutex<Latencies>>) {
    loop {
        let began = Instant::now();
        if began >= until {
            return;
        }
        let got = log.take_batch(batch).await;
        let mut taken = locked(&taken);
        match got {
            Ok(_) => taken.add(began.elapsed()),
            Err(_) => taken.errors += 1,
        }
    }
}

/// Carries out an order in the process of a client.
pub async fn take(env: &Env, order: &Value) -> Result<Value, Error> {
    let wrong = || failed("an order is incomplete");
    let number = |name: &str| order.get(name).and_then(Value::as_f64).ok_or_else(wrong);
    let bytes = order.get("projection").and_then(Value::as_array).ok_or_else(wrong)?;
    let bytes: Option<Vec<u8>> = bytes.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect();
    let projection = Projection::parse(&Bytes::from(bytes.ok_or_else(wrong)?)).map_err(failed)?;
    let (batch, depth) = (number("batch")? as u32, number("depth")? as u32);
    let name = order.get("log").and_then(Value::as_str).ok_or_else(wrong)?;
    let log = corfu_log(env, name, projection).await?;
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(number("seconds")?);
    let taken = Arc::new(Mutex::new(Latencies::new()));
    let all: Vec<_> = (0..depth)
        .map(|_| env.launch("take", keep_taking(log.clone(), batch, until, taken.clone())))
        .collect();
    for one in all {
        one.await.map_err(|_| failed("the node has stopped"))?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let taken = locked(&taken);
    let quantile = |q| taken.quantile_us(q);
    Ok(json!({
        "took": taken.count(), "seconds": seconds, "errors": taken.errors,
        "p50_us": quantile(0.5), "p99_us": quantile(0.99),
    }))
}

/// Returns the next position of the sequencer.
async fn next_position(nodes: &Nodes, log: &str, projection: &Projection) -> Result<u64, Error> {
    let (env, config) = (nodes.env().clone(), atoll_core::Encode::to_bytes(projection));
    let (log, epoch, count) = (id_of(log), projection.epoch, 0);
    let sequencer: NodeId = projection.sequencer.0;
    let asked = nodes.run(async move { env.call(sequencer, Take { log, config, epoch, count }).await });
    match asked.await?.map_err(failed)? {
        answer if matches!(answer.grant, Grant::Granted { .. }) => Ok(answer.next),
        answer => Err(failed(format!("the sequencer refuses: {:?}", answer.grant))),
    }
}

/// Lets all clients take positions at the same time. Prints the line; returns positions per second, and whether they are right.
async fn measure(args: &Args, nodes: &mut Nodes, batch: u32, round: u32) -> Result<(f64, bool), Error> {
    let log = format!("tokens/{batch}/{round}");
    let projection = nodes.projection(1, &[vec![1]]).await?;
    let order = json!({
        "projection": projection_to_json(&projection), "log": log, "batch": batch, "depth": args.depth,
        "seconds": args.seconds,
    });
    let clients = nodes.clients();
    let from = nodes.said();
    for client in &clients {
        nodes.order(*client, &order)?;
    }
    let within = Duration::from_secs_f64(args.seconds) + SPARE;
    let answers = nodes.wait_for("the clients have taken positions", within, from, |lines| {
        let took: Vec<Value> =
            lines.iter().filter(|(_, l)| l.get("took").is_some()).map(|(_, l)| l.clone()).collect();
        (took.len() == clients.len()).then_some(took)
    });
    let answers = answers.await?;
    let number = |line: &Value, name: &str| line.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    let sum = |name: &str| answers.iter().map(|line| number(line, name)).sum::<f64>();
    let rate = |line: &Value| number(line, "took") / number(line, "seconds").max(1e-9);
    let requests_s: f64 = answers.iter().map(rate).sum();
    let (requests, errors) = (sum("took"), sum("errors"));
    let given = next_position(nodes, &log, &projection).await?;
    // A request that failed may have got positions that nobody knows.
    let is_right = given as f64 == requests * f64::from(batch) && errors == 0.0 && requests > 0.0;
    let worst = |name: &str| answers.iter().map(|line| number(line, name)).fold(0.0, f64::max);
    let tokens_s = (requests_s * f64::from(batch)).round();
    print(&json!({
        "system": "CORFU", "workload": "tokens", "batch": batch, "round": round, "tokens_s": tokens_s,
        "requests_s": requests_s.round(), "requests": requests, "given": given, "errors": errors,
        "p50_us": worst("p50_us"), "p99_us": worst("p99_us"),
        "settings": {
            "kind": "real", "clients": clients.len(), "depth": args.depth, "seconds": args.seconds,
            "load_1m": load_1m(),
        },
    }))?;
    Ok((tokens_s, is_right))
}

/// Measures all batches in turns. Returns whether the target is met and all positions are right.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let mut nodes = Nodes::start(1, args.clients, &args.place.folder).await?;
    let (mut rates, mut are_right) = (BATCHES.map(|_| Vec::new()), true);
    for round in 1..=args.rounds {
        for (at, batch) in BATCHES.into_iter().enumerate() {
            let (rate, is_right) = measure(args, &mut nodes, batch, round).await?;
            rates[at].push(rate);
            are_right &= is_right;
        }
    }
    nodes.stop().await;
    let [single, batched] = rates.map(median);
    let holds = are_right && batched >= TARGET;
    print(&json!({
        "workload": "tokens_s_median", "single": single, "batched": batched, "target": TARGET, "right": are_right,
        "holds": holds,
    }))?;
    Ok(holds)
}

//! Appends while the sequencer is dead and nobody replaces it (paper, §2.4): clients ask the units how far the log goes, and write there.
//! The write-once addresses decide who gets a position, so appends continue, slower.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atoll_core::Env;
use atoll_corfu::log::CorfuLog;
use bytes::Bytes;
use serde_json::json;

use super::nodes::{Folder, Nodes};
use super::shelf::corfu_log;
use super::{Error, failed, load_1m, print};
use crate::latency::{Latencies, median};
use crate::load::locked;

/// The nodes of the only chain, and the sequencer.
const UNITS: [u32; 2] = [1, 2];
const SEQUENCER: u32 = 3;
/// Appends that the client has under way: without a sequencer, they compete.
const DEPTHS: [u32; 3] = [1, 4, 16];
/// How long clients pause after the kill, so that no connection that breaks is measured.
const AFTER_KILL: Duration = Duration::from_millis(500);

/// Options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Bytes of an entry
    #[arg(long, default_value_t = 4096)]
    payload: usize,
    #[command(flatten)]
    place: Folder,
}

/// What the clients of one measurement did.
struct Appended {
    latencies: Latencies,
    positions: BTreeSet<u64>,
    /// Positions that two appends got.
    twice: u64,
}

async fn keep_appending(log: CorfuLog, payload: Bytes, until: Instant, appended: Arc<Mutex<Appended>>) {
    loop {
        let began = Instant::now();
        if began >= until {
            return;
        }
        let got = log.append(payload.clone()).await;
        let mut appended = locked(&appended);
        match got {
            Ok(position) => {
                appended.latencies.add(began.elapsed());
                appended.twice += u64::from(!appended.positions.insert(position));
            }
            Err(_) => appended.latencies.errors += 1,
        }
    }
}

/// Measures one depth. Prints the line; returns appends per second, and whether all got a position of their own.
async fn measure(
    args: &Args,
    env: &Env,
    log: &CorfuLog,
    what: &str,
    depth: u32,
    round: usize,
) -> Result<(f64, bool), Error> {
    let payload = Bytes::from(vec![7; args.payload]);
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(args.seconds);
    let latencies = Latencies::new();
    let appended = Arc::new(Mutex::new(Appended { latencies, positions: BTreeSet::new(), twice: 0 }));
    let all: Vec<_> = (0..depth)
        .map(|_| env.launch("append", keep_appending(log.clone(), payload.clone(), until, appended.clone())))
        .collect();
    for one in all {
        one.await.map_err(|_| failed("the node of the clients has stopped"))?;
    }
    let mut appended = locked(&appended);
    appended.latencies.busy = began.elapsed();
    let settings = json!({
        "kind": "real", "depth": depth, "payload_bytes": args.payload, "units_of_a_chain": UNITS.len(),
        "load_1m": load_1m(),
    });
    let mut line = appended.latencies.line("CORFU", what, round, &settings);
    line["twice"] = json!(appended.twice);
    print(&line)?;
    let (count, errors) = (appended.latencies.count(), appended.latencies.errors);
    let rate = count as f64 / appended.latencies.busy.as_secs_f64().max(1e-9);
    Ok((rate, count > 0 && errors == 0 && appended.twice == 0))
}

/// Measures with a sequencer, kills it, and measures without one. Returns whether every append got a position of its own.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let mut nodes = Nodes::start(SEQUENCER, 0, &args.place.folder).await?;
    let (mut rates, mut fine) = ([Vec::new(), Vec::new()], true);
    for round in 1..=args.rounds {
        if round > 1 {
            nodes.restart(SEQUENCER).await?;
        }
        let projection = nodes.projection(SEQUENCER, &[UNITS.to_vec()]).await?;
        let env = nodes.env().clone();
        let log = corfu_log(&env, &format!("without/{round}"), projection).await?;
        for (at, what) in ["with", "without"].into_iter().enumerate() {
            if what == "without" {
                nodes.kill(SEQUENCER)?;
                tokio::time::sleep(AFTER_KILL).await;
            }
            for depth in DEPTHS {
                let (rate, held) = measure(args, &env, &log, what, depth, round).await?;
                fine &= held;
                if depth == 1 {
                    rates[at].push(rate);
                }
            }
        }
    }
    nodes.stop().await;
    let [with, without] = rates.map(median);
    print(&json!({
        "workload": "alone_ops_s", "with": with.round(), "without": without.round(),
        "times": (without / with.max(1e-9) * 1e3).round() / 1e3, "holds": fine,
    }))?;
    Ok(fine)
}

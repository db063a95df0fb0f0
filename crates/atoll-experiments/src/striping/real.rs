//! One and two stripes of real nodes, each in a process of its own, all on this machine, with clients in the node of this process. The
//! model of one machine computes the same, so the two can be compared.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use atoll_contract::Loglet;
use atoll_corfu::log::id_of;
use serde_json::json;

use super::{Args, SERVERS_PER_STRIPE, Shape, open, run_shape};
use crate::calibration::settle;
use crate::corfu::clients::{Load, What};
use crate::corfu::nodes::Nodes;
use crate::corfu::{Error, failed, load_1m, print};
use crate::latency::median;
use crate::model::Parameters;
use crate::real::{Run, TOLERANCE};

/// The numbers of stripes. Twelve processes do not come up within a minute on two processors.
const STRIPES: [u32; 2] = [1, 2];

/// Opens a Loglet on the first nodes.
pub async fn open_stripes(
    nodes: &Nodes,
    name: &str,
    stripes: u32,
    servers: u32,
) -> Result<Arc<dyn Loglet>, Error> {
    let shape = Shape::of(stripes, servers);
    let known = nodes.identities(shape.nodes().collect()).await?;
    let who = |node| (known[&node].storage, known[&node].incarnation);
    open(nodes.env(), id_of(name), &shape, who).map_err(failed)
}

/// Measures all points, and compares them with the model. Returns whether no operation failed and all are close to the model.
pub async fn run(args: &Args, parameters: &Parameters) -> Result<bool, Error> {
    let counts: Vec<u32> = STRIPES.into_iter().filter(|n| *n <= args.stripes).collect();
    let servers = counts.last().copied().unwrap_or(1) * SERVERS_PER_STRIPE;
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); counts.len()];
    let mut fine = true;
    let mut nodes = Nodes::start(servers, 0, &args.folder).await?;
    for stripes in &counts {
        let name = format!("stripes/first/{stripes}");
        let first = open_stripes(&nodes, &name, *stripes, SERVERS_PER_STRIPE).await?;
        settle(&mut nodes, first).await?;
    }
    for round in 1..=args.rounds {
        for (stripes, rates) in counts.iter().copied().zip(&mut rates) {
            let loglet =
                open_stripes(&nodes, &format!("stripes/{stripes}/{round}"), stripes, SERVERS_PER_STRIPE)
                    .await?;
            let run = Run {
                servers: stripes * SERVERS_PER_STRIPE,
                sequencer: None,
                warm_up: Duration::from_secs_f64(args.warm_up_s),
                measured: Duration::from_secs_f64(args.seconds),
            };
            let depth = args.depth * stripes;
            let load = Load { what: What::Append, depth, payload: args.payload, entries: 0 };
            let showed = run.run(&mut nodes, loglet, load).await?;
            let settings = json!({
                "kind": "real", "servers": run.servers, "clients": 1, "depth_per_client": depth,
                "payload_bytes": args.payload, "warm_up_s": args.warm_up_s, "seconds": args.seconds, "load_1m": load_1m(),
            });
            let mut line = showed.latencies.line("StripedLoglet, sharded", "real", round, &settings);
            line["stripes"] = json!(stripes);
            line["usage"] = showed.usage(&run);
            print(&line)?;
            rates.push(showed.rate());
            fine &= showed.latencies.errors == 0;
        }
    }
    nodes.stop().await;
    let processors = available_parallelism().map_or(1, |count| count.get());
    for (stripes, rates) in counts.into_iter().zip(rates) {
        let shape = Shape::sharded(stripes);
        let (modelled, held) =
            run_shape(args, parameters, "modelled_one_machine", &shape, 1, Some(processors));
        let (real, tolerance) = (median(rates), TOLERANCE);
        let ratio = modelled / real.max(1e-9);
        let holds = held && (1.0 - tolerance..=1.0 + tolerance).contains(&ratio);
        print(&json!({
            "workload": "model_to_real", "of": "append", "stripes": stripes, "real_ops_s": real.round(),
            "modelled_ops_s": modelled.round(), "ratio": (ratio * 1e3).round() / 1e3, "tolerance": tolerance, "holds": holds,
        }))?;
        fine &= holds;
    }
    Ok(fine)
}

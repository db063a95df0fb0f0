//! How long planned changes take, in total (paper, Figure 8): of the projection of a CORFU log, whose auxiliary is a register of the
//! cluster, and of a virtual log, which continues in another Loglet. Two chains of two units each; an entry is appended before each
//! change.

use std::sync::Arc;
use std::time::Instant;

use atoll_contract::loglet::write_once::Replace;
use atoll_contract::{ClientId, OpId};
use atoll_core::{Env, NodeId};
use atoll_corfu::log::{CorfuLog, id_of};
use atoll_corfu::{ClientOptions, Projection};
use atoll_log::{LogRecord, VirtualLog};
use bytes::Bytes;
use serde_json::json;

use super::nodes::{Folder, Nodes};
use super::operations::create;
use super::{Error, load_1m, print};
use crate::latency::Latencies;

/// Node 5 is the sequencer, and node 6 has nothing to do at first.
const CHAINS: [[u32; 2]; 2] = [[1, 2], [3, 4]];
const SEQUENCER: u32 = 5;
const SPARE: u32 = 6;
const SERVERS: u32 = 6;
const PAYLOAD: usize = 4096;

/// Options of the changes.
#[derive(Debug, clap::Args)]
pub struct ChangeArgs {
    /// Changes of each kind
    #[arg(long, default_value_t = 100)]
    changes: u32,
}

fn note(all: &mut Latencies, began: Instant) {
    let took = began.elapsed();
    all.add(took);
    all.busy += took;
}

/// Replaces the sequencer, to and fro.
async fn sequencers(log: CorfuLog, lives: [(NodeId, atoll_core::Incarnation); 2], count: u32) -> Latencies {
    let mut all = Latencies::new();
    for n in 0..count as usize {
        let (node, life) = lives[n % 2];
        let appended = log.append(Bytes::from(vec![7; PAYLOAD])).await;
        let began = Instant::now();
        match log.replace_sequencer(node, life).await {
            Ok(_) if appended.is_ok() => note(&mut all, began),
            _ => all.errors += 1,
        }
    }
    all
}

/// Replaces the last unit of the first chain by the spare one, to and fro.
async fn virtual_units(env: Env, log: Arc<VirtualLog>, count: u32) -> Latencies {
    let (client, payload) = (ClientId(env.random().max(1)), Bytes::from(vec![7; PAYLOAD]));
    let (mut old, mut new) = (NodeId(CHAINS[0][1]), NodeId(SPARE));
    let mut all = Latencies::new();
    for n in 0..count {
        let record =
            LogRecord { op: OpId { client, seq: u64::from(n) + 1 }, floor: None, payload: payload.clone() };
        let appended = match log.submit(vec![record]) {
            Ok(ticket) => matches!(ticket.await, Ok(Ok(_))),
            Err(_) => false,
        };
        let began = Instant::now();
        if let (true, Ok(Ok((from, _, Some(spec))))) =
            (appended, log.plan_replacing(Replace::Unit { old, new }).await)
            && let Ok(Ok(true)) = log.extend_from(from, spec).await
        {
            note(&mut all, began);
            (old, new) = (new, old);
        } else {
            all.errors += 1;
        }
    }
    all
}

fn tell(what: &str, all: &Latencies) -> Result<bool, Error> {
    let settings = json!({
        "kind": "real", "units": CHAINS.len() * CHAINS[0].len(), "units_of_a_chain": CHAINS[0].len(),
        "load_1m": load_1m(),
    });
    print(&all.line("CORFU", what, 1, &settings))?;
    Ok(all.errors == 0 && all.count() > 0)
}

/// Measures all kinds of changes. Returns whether all succeeded.
pub async fn run(args: &ChangeArgs, place: &Folder) -> Result<bool, Error> {
    let nodes = Nodes::start(SERVERS, 0, &place.folder).await?;
    let (env, chains) = (nodes.env().clone(), CHAINS.map(|chain| chain.to_vec()));
    let first: Projection = nodes.projection(SEQUENCER, &chains).await?;
    let other = nodes.projection(SPARE, &chains).await?;
    let register = nodes.own().parts().registers.register("corfu/figure");
    let log = CorfuLog::new(env.clone(), id_of("figure"), register, ClientOptions::default());
    let (lives, projection) = ([other.sequencer, first.sequencer], first);
    let made = log.clone();
    nodes.run(async move { made.create(projection).await }).await??;
    let all = nodes.run(sequencers(log, lives, args.changes)).await?;
    let mut fine = tell("change of the projection", &all)?;
    let log = create(&nodes, &chains, SEQUENCER).await?;
    let all = nodes.run(virtual_units(env, log, args.changes)).await?;
    fine &= tell("change of the virtual log", &all)?;
    nodes.stop().await;
    Ok(fine)
}

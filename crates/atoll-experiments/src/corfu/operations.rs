//! What append, read and fill of single positions take (paper, Figure 6), one at a time: on disk and in memory. The client is a procedure
//! of a node that serves nothing, and uses the virtual log, as the doors do.
//!
//! Holes are positions that nobody writes: taken from the sequencer, and left.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use atoll_contract::loglet::write_once::PositionState;
use atoll_contract::{ClientId, LogPos, LogletSpec, Offset, OpId, ReadFrom};
use atoll_core::{Env, NodeId};
use atoll_corfu::message::{Grant, Take};
use atoll_corfu::{KIND, SEQUENCER_ROLE, UNIT_ROLE};
use atoll_log::virtual_log::PositionOp;
use atoll_log::{LogRecord, Segment, VirtualLog};
use bytes::Bytes;
use serde_json::json;

use super::nodes::{Folder, Nodes};
use super::{Error, failed, load_1m, print};
use crate::latency::{Latencies, median};

/// A fill takes less than this in the median, in microseconds.
const FILL_TARGET_US: f64 = 1_000.0;
/// The paper's entries.
const PAYLOAD: usize = 4096;
/// The nodes of the only chain, and the sequencer.
const UNITS: [u32; 2] = [1, 2];
const SEQUENCER: u32 = 3;

/// Options of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Rounds, on clusters of their own
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Appends, and reads, of each round
    #[arg(long, default_value_t = 5_000)]
    operations: u64,
    /// Holes of each round
    #[arg(long, default_value_t = 500)]
    holes: u32,
    /// A folder of a file system in memory
    #[arg(long, default_value = "/dev/shm")]
    memory_folder: PathBuf,
    #[command(flatten)]
    place: Folder,
}

/// What the client does.
#[derive(Clone)]
struct Client {
    env: Env,
    log: Arc<VirtualLog>,
    operations: u64,
    holes: u32,
}

/// Creates a log over a CORFU Loglet, one position after the other on another chain.
pub async fn create(nodes: &Nodes, chains: &[Vec<u32>], sequencer: u32) -> Result<Arc<VirtualLog>, Error> {
    let log = nodes.own().logs().open("figure").map_err(failed)?;
    let units = chains.iter().flatten().copied().map(NodeId);
    let mut spec = LogletSpec::of(KIND).place(UNIT_ROLE, units).place(SEQUENCER_ROLE, [NodeId(sequencer)]);
    spec.options.insert("chains".to_owned(), chains.len().to_string());
    spec.options.insert("stripe".to_owned(), "1".to_owned());
    let created = log.create(spec);
    created.await.map_err(failed)?.map_err(failed)?;
    Ok(log)
}

impl Client {
    async fn append(&self, op: OpId, payload: &Bytes) -> Option<LogPos> {
        let record = LogRecord { op, floor: None, payload: payload.clone() };
        let positions = self.log.submit_unordered(vec![record]).ok()?.await.ok()?.ok()?;
        positions.first().copied()
    }

    async fn appends(&self, client: ClientId, first: u64, count: u64) -> (Latencies, Vec<LogPos>) {
        let payload = Bytes::from(vec![7; PAYLOAD]);
        let (mut all, mut positions, started) = (Latencies::new(), Vec::new(), Instant::now());
        for seq in first..first + count {
            let began = Instant::now();
            match self.append(OpId { client, seq }, &payload).await {
                Some(at) => {
                    all.add(began.elapsed());
                    positions.push(at);
                }
                None => all.errors += 1,
            }
        }
        all.busy = started.elapsed();
        (all, positions)
    }

    async fn reads(&self, positions: &[LogPos]) -> Latencies {
        let (mut all, started) = (Latencies::new(), Instant::now());
        for _ in 0..self.operations {
            let at = positions[self.env.random() as usize % positions.len().max(1)];
            let began = Instant::now();
            let read = self.log.read(at..at.plus(1), 1, ReadFrom::Anywhere).await;
            match read {
                Ok(Ok(read)) if read.records().count() == 1 => all.add(began.elapsed()),
                _ => all.errors += 1,
            }
        }
        all.busy = started.elapsed();
        all
    }

    /// Takes positions that nobody writes.
    async fn make_holes(&self) -> Option<Vec<LogPos>> {
        let segment: Segment = self.log.chain()?.chain.active().clone();
        let (log, config, epoch, count) = (segment.loglet, segment.config.clone(), 1, self.holes);
        let taken = self.env.call(NodeId(SEQUENCER), Take { log, config, epoch, count }).await.ok()?;
        let Grant::Granted { runs } = taken.grant else { return None };
        let first = runs.first()?.first;
        Some((0..u64::from(self.holes)).map(|n| segment.position_of(Offset(first + n))).collect())
    }

    async fn fills(&self, holes: &[LogPos]) -> Latencies {
        let (mut all, started) = (Latencies::new(), Instant::now());
        for at in holes {
            let began = Instant::now();
            match self.log.at_position(*at, PositionOp::Fill).await {
                Ok(Ok(PositionState::Junk)) => all.add(began.elapsed()),
                _ => all.errors += 1,
            }
        }
        all.busy = started.elapsed();
        all
    }

    /// Does everything, one operation at a time. None if there is nothing to read or to fill.
    async fn run(self) -> Option<[(&'static str, Latencies); 3]> {
        let client = ClientId(self.env.random().max(1));
        let warm_up = self.operations / 4 + 1;
        self.appends(client, 1, warm_up).await;
        let (appends, positions) = self.appends(client, 1 + warm_up, self.operations).await;
        self.log.check_tail().await.ok()?.ok()?;
        if positions.is_empty() {
            return None;
        }
        let reads = self.reads(&positions).await;
        let holes = self.make_holes().await?;
        let fills = self.fills(&holes).await;
        Some([("append", appends), ("read", reads), ("fill", fills)])
    }
}

/// Measures one round on a cluster of its own. Returns the median of its fills, and whether nothing failed.
async fn measure(args: &Args, storage: &str, round: usize) -> Result<(f64, bool), Error> {
    let folder = if storage == "memory" { &args.memory_folder } else { &args.place.folder };
    let nodes = Nodes::start(SEQUENCER, 0, folder).await?;
    let log = create(&nodes, &[UNITS.to_vec()], SEQUENCER).await?;
    let client = Client { env: nodes.env().clone(), log, operations: args.operations, holes: args.holes };
    let done =
        nodes.run(client.run()).await?.ok_or_else(|| failed("nothing was appended, or no hole made"))?;
    nodes.stop().await;
    let (mut fill, mut errors) = (0.0, 0);
    for (what, latencies) in done {
        let settings = json!({
            "kind": "real", "client": "a node", "storage": storage, "payload_bytes": PAYLOAD,
            "units_of_a_chain": UNITS.len(), "depth": 1, "load_1m": load_1m(),
        });
        print(&latencies.line("CORFU", what, round, &settings))?;
        errors += latencies.errors;
        if what == "fill" {
            fill = latencies.quantile_us(0.5);
        }
    }
    Ok((fill, errors == 0))
}

/// Measures both storages in turns. Returns whether nothing failed, and a fill takes less than the target.
pub async fn run(args: &Args) -> Result<bool, Error> {
    let (mut fills, mut is_fine) = ([Vec::new(), Vec::new()], true);
    for round in 1..=args.rounds {
        for (at, storage) in ["disk", "memory"].into_iter().enumerate() {
            let (fill, fine) = measure(args, storage, round).await?;
            fills[at].push(fill);
            is_fine &= fine;
        }
    }
    let [disk, memory] = fills.map(median);
    let holds = is_fine && disk < FILL_TARGET_US && memory < FILL_TARGET_US;
    print(&json!({
        "workload": "fill_median_us", "medians": {"disk": disk, "memory": memory}, "target": FILL_TARGET_US,
        "holds": holds,
    }))?;
    Ok(holds)
}

//! What virtualization costs (Delos §5, Figure 11 left): the same operations on a bare NativeLoglet and on a VirtualLog over one like it.
//! They alternate every few hundred operations, so that other load on the machine affects both alike.
//!
//! Both loglets are on the same nodes; client, sequencer and one LogServer share node 1. Reads and tail checks of the bare loglet run as
//! procedures of the node, like everything that waits there, and like those of the VirtualLog.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use atoll_contract::{
    AppendError, Batch, ClientId, Entry, LogPos, Loglet, LogletError, LogletId, LogletSpec, Offset, OpId,
    Placement, ReadBatch, ReadError, ReadFrom, Registry, Tail,
};
use atoll_core::{Encode, Env, NodeId, Ticket};
use atoll_file_register::{Cell, CellError, FileRegisters};
use atoll_log::{LogAppendError, LogError, LogRead, LogReadError, LogRecord, Options, VirtualLog};
use atoll_native::NativeLoglet;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::latency::{Latencies, median};

/// Number of blocks after which both logs are trimmed, outside of the measurement.
const BLOCKS_PER_TRIM: u64 = 8;
/// Number of blocks before the measurement starts.
const WARM_UP_BLOCKS: u64 = 20;
/// The highest additional latency of a VirtualLog at p99, in microseconds.
const APPEND_TARGET_US: f64 = 30.0;
const READ_TARGET_US: f64 = 1.0;

/// Options of the experiment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Operations of each kind on each log, in each round
    #[arg(long, default_value_t = 1_000_000)]
    ops: u64,
    /// Rounds; the median of their differences counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Bytes of a record
    #[arg(long, default_value_t = 1024)]
    payload: usize,
    /// Appends under way at once in the pipelined workload
    #[arg(long, default_value_t = 64)]
    depth: usize,
    /// LogServers: 1, 3, 5, 7 or 9
    #[arg(long, default_value_t = 3)]
    servers: u32,
    /// Operations on one log before the other has its turn
    #[arg(long, default_value_t = 500)]
    block: u64,
}

/// A register's content in memory.
#[derive(Debug, Default)]
struct MemoryCell(Mutex<Option<Bytes>>);

impl Cell for MemoryCell {
    fn load(&self) -> Result<Option<Bytes>, CellError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn replace(&mut self, content: &[u8]) -> Result<(), CellError> {
        *self.0.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(Bytes::copy_from_slice(content));
        Ok(())
    }
}

/// The operations that are compared. Each is in progress when its call returns. The answers are the product's own types, because mapping
/// them would take one more procedure.
trait Log {
    const SYSTEM: &'static str;
    type Appended;
    type Read;
    type Tail;
    fn append(&self, op: OpId, payload: Bytes) -> Option<Ticket<Self::Appended>>;
    fn read(&self, at: u64) -> Ticket<Self::Read>;
    fn check_tail(&self) -> Ticket<Self::Tail>;
    /// Returns the position if the record was appended.
    fn position(answer: Self::Appended) -> Option<u64>;
    /// Returns how many records were read.
    fn count(answer: Self::Read) -> usize;
    /// Returns the tail, if there is an answer.
    fn tail(answer: Self::Tail) -> Option<u64>;
    /// Trims positions below `to`. Returns whether it was done.
    fn trim(&self, cluster: &mut Cluster, to: u64) -> bool;
}

struct Bare {
    env: Env,
    loglet: NativeLoglet,
}

impl Log for Bare {
    const SYSTEM: &'static str = "NativeLoglet";
    type Appended = Result<Placement, AppendError>;
    type Read = Result<ReadBatch, ReadError>;
    type Tail = Result<Tail, LogletError>;

    fn append(&self, op: OpId, payload: Bytes) -> Option<Ticket<Self::Appended>> {
        Some(self.loglet.append(Batch::of([Entry { op, payload }])))
    }

    fn read(&self, at: u64) -> Ticket<Self::Read> {
        let loglet = self.loglet.clone();
        let range = Offset(at)..Offset(at + 1);
        self.env.launch("read", async move { loglet.read(range, 1, ReadFrom::Anywhere).await })
    }

    fn check_tail(&self) -> Ticket<Self::Tail> {
        let loglet = self.loglet.clone();
        self.env.launch("check_tail", async move { loglet.check_tail().await })
    }

    fn position(answer: Self::Appended) -> Option<u64> {
        Some(answer.ok()?.offsets().next()?.0)
    }

    fn count(answer: Self::Read) -> usize {
        answer.map_or(0, |got| got.entries.len())
    }

    fn tail(answer: Self::Tail) -> Option<u64> {
        Some(answer.ok()?.at.0)
    }

    fn trim(&self, cluster: &mut Cluster, to: u64) -> bool {
        let loglet = self.loglet.clone();
        let trim = self.env.launch("trim", async move { loglet.prefix_trim(Offset(to)).await });
        cluster.wait(trim) == Some(Ok(()))
    }
}

struct Virtual(Arc<VirtualLog>);

impl Log for Virtual {
    const SYSTEM: &'static str = "VirtualLog";
    type Appended = Result<Vec<LogPos>, LogAppendError>;
    type Read = Result<LogRead, LogReadError>;
    type Tail = Result<LogPos, LogError>;

    fn append(&self, op: OpId, payload: Bytes) -> Option<Ticket<Self::Appended>> {
        self.0.submit(vec![LogRecord { op, floor: None, payload }]).ok()
    }

    fn read(&self, at: u64) -> Ticket<Self::Read> {
        self.0.read(LogPos(at)..LogPos(at + 1), 1, ReadFrom::Anywhere)
    }

    fn check_tail(&self) -> Ticket<Self::Tail> {
        self.0.check_tail()
    }

    fn position(answer: Self::Appended) -> Option<u64> {
        Some(answer.ok()?.first()?.0)
    }

    fn count(answer: Self::Read) -> usize {
        answer.map_or(0, |got| got.entries.len())
    }

    fn tail(answer: Self::Tail) -> Option<u64> {
        Some(answer.ok()?.0)
    }

    fn trim(&self, cluster: &mut Cluster, to: u64) -> bool {
        matches!(cluster.wait(self.0.trim(LogPos(to))), Some(Ok(at)) if at.0 == to)
    }
}

const WORKLOADS: [&str; 4] = ["append", "check_tail", "read_next", "append_pipelined"];

/// One log, the number of appends on it, and the latencies of this round.
struct Subject<L> {
    log: L,
    client: ClientId,
    /// Appends so far: the next position, and the number of the last operation.
    appended: u64,
    payload: Bytes,
    took: [Latencies; WORKLOADS.len()],
}

fn none_yet() -> [Latencies; WORKLOADS.len()] {
    std::array::from_fn(|_| Latencies::new())
}

impl<L: Log> Subject<L> {
    fn new(log: L, client: ClientId, payload_bytes: usize) -> Self {
        let payload = Bytes::from(vec![0x5a; payload_bytes]);
        Subject { log, client, appended: 0, payload, took: none_yet() }
    }

    fn submit(&mut self) -> Option<Ticket<L::Appended>> {
        self.appended += 1;
        let op = OpId { client: self.client, seq: self.appended };
        self.log.append(op, self.payload.clone())
    }

    /// Runs one block of each workload: appends one after the other, then tail checks, then a read of each appended record, then pipelined
    /// appends.
    fn block(&mut self, cluster: &mut Cluster, ops: u64, depth: usize) {
        let from = self.appended;
        self.timed(cluster, 0, ops, |me, cluster, i| {
            let got = me.submit().and_then(|t| cluster.wait(t)).and_then(L::position);
            got == Some(from + i)
        });
        let tail = self.appended;
        self.timed(cluster, 1, ops, |me, cluster, _| {
            let got = cluster.wait(me.log.check_tail()).and_then(L::tail);
            got == Some(tail)
        });
        self.timed(cluster, 2, ops, |me, cluster, i| {
            let got = cluster.wait(me.log.read(from + i)).map(L::count);
            got == Some(1)
        });
        self.pipelined(cluster, ops, depth);
    }

    /// Times `ops` operations one by one; `one` returns whether the answer was right.
    fn timed(
        &mut self,
        cluster: &mut Cluster,
        workload: usize,
        ops: u64,
        one: impl Fn(&mut Self, &mut Cluster, u64) -> bool,
    ) {
        let began = Instant::now();
        for i in 0..ops {
            let start = Instant::now();
            let right = one(self, cluster, i);
            let took = start.elapsed();
            match right {
                true => self.took[workload].add(took),
                false => self.took[workload].errors += 1,
            }
        }
        self.took[workload].busy += began.elapsed();
    }

    /// Appends with `depth` of them in flight.
    fn pipelined(&mut self, cluster: &mut Cluster, ops: u64, depth: usize) {
        let mut flying: VecDeque<(u64, Instant, Ticket<L::Appended>)> = VecDeque::with_capacity(depth);
        let began = Instant::now();
        let mut left = ops;
        while left > 0 || !flying.is_empty() {
            while left > 0 && flying.len() < depth {
                left -= 1;
                let (at, start) = (self.appended, Instant::now());
                match self.submit() {
                    Some(ticket) => flying.push_back((at, start, ticket)),
                    None => self.took[3].errors += 1,
                }
            }
            cluster.step();
            // Answers come in the order of the appends.
            while let Some((at, start, ticket)) = flying.front_mut() {
                let Some(got) = ticket.try_take() else { break };
                match got.ok().and_then(L::position) == Some(*at) {
                    true => self.took[3].add(start.elapsed()),
                    false => self.took[3].errors += 1,
                }
                flying.pop_front();
            }
        }
        self.took[3].busy += began.elapsed();
    }

    /// Prints the lines of a round and begins the next. Returns p50 and p99 of each workload.
    fn report(&mut self, round: usize, settings: &Value) -> [(f64, f64); WORKLOADS.len()] {
        let took = std::mem::replace(&mut self.took, none_yet());
        for (latencies, workload) in took.iter().zip(WORKLOADS) {
            println!("{}", latencies.line(L::SYSTEM, workload, round, settings));
        }
        took.each_ref().map(|l| (l.quantile_us(0.5), l.quantile_us(0.99)))
    }

    fn errors(&self) -> u64 {
        self.took.iter().map(|l| l.errors).sum()
    }
}

/// Returns the load average of the machine over one minute.
pub fn load_1m() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN)
}

/// Creates a log over a chain of one NativeLoglet, like the one of [`Bare`].
fn virtual_log(cluster: &mut Cluster, servers: u32) -> Option<Arc<VirtualLog>> {
    let registers = FileRegisters::open(Box::new(MemoryCell::default())).ok()?;
    let registry = Registry::new().with(Arc::new(cluster.provider()));
    let log = VirtualLog::open(cluster.env(), "log", Arc::new(registers), registry, Options::default());
    let spec =
        LogletSpec::of("native").place("server", (1..=servers).map(NodeId)).place("sequencer", [NodeId(1)]);
    cluster.wait(log.create(spec))?.ok()?;
    Some(log)
}

/// Runs the experiment. Returns true if the targets are met.
pub fn run(args: &Args) -> bool {
    let Ok(mut cluster) = Cluster::new(args.servers) else {
        eprintln!("the journals cannot be made");
        return false;
    };
    let config = cluster.config().to_bytes();
    let Ok(loglet) = cluster.provider().open_native(LogletId(1), &config) else {
        eprintln!("{} servers are not possible; 1, 3, 5, 7 or 9 are", args.servers);
        return false;
    };
    let Some(log) = virtual_log(&mut cluster, args.servers) else {
        eprintln!("the log cannot be made");
        return false;
    };
    let mut bare = Subject::new(Bare { env: cluster.env(), loglet }, ClientId(1), args.payload);
    let mut virtual_log = Subject::new(Virtual(log), ClientId(2), args.payload);

    let mut blocks = 0u64;
    let mut both = |bare: &mut Subject<Bare>, virtual_log: &mut Subject<Virtual>| {
        // Alternate which one goes first, so that neither always finds the caches as the other left them.
        if blocks.is_multiple_of(2) {
            bare.block(&mut cluster, args.block, args.depth);
            virtual_log.block(&mut cluster, args.block, args.depth);
        } else {
            virtual_log.block(&mut cluster, args.block, args.depth);
            bare.block(&mut cluster, args.block, args.depth);
        }
        blocks += 1;
        let mut trimmed = true;
        if blocks.is_multiple_of(BLOCKS_PER_TRIM) {
            trimmed = bare.log.trim(&mut cluster, bare.appended)
                & virtual_log.log.trim(&mut cluster, virtual_log.appended);
        }
        cluster.maintain();
        trimmed
    };
    let mut fine = true;
    for _ in 0..WARM_UP_BLOCKS {
        fine &= both(&mut bare, &mut virtual_log);
    }
    fine &= bare.errors() + virtual_log.errors() == 0;
    (bare.took, virtual_log.took) = (none_yet(), none_yet());

    let mut differences: [Vec<(f64, f64)>; WORKLOADS.len()] = Default::default();
    for round in 1..=args.rounds {
        let load_before = load_1m();
        for _ in 0..args.ops.div_ceil(args.block.max(1)) {
            fine &= both(&mut bare, &mut virtual_log);
        }
        fine &= bare.errors() + virtual_log.errors() == 0;
        let settings = json!({
            "payload_bytes": args.payload, "servers": args.servers, "depth": args.depth, "block": args.block,
            "journal": "atoll-storage on MemDisk, written and synced in the turn", "network": "in memory, no delay",
            "threads": 1, "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "load_1m_before": load_before, "load_1m_after": load_1m(),
        });
        let native = bare.report(round, &settings);
        let over = virtual_log.report(round, &settings);
        for (all, (n, v)) in differences.iter_mut().zip(native.into_iter().zip(over)) {
            all.push((v.0 - n.0, v.1 - n.1));
        }
    }
    if !fine {
        eprintln!("some operations failed: see `errors`");
    }
    fine & verdict(&differences)
}

/// Prints the additional cost of the VirtualLog, as the median of the rounds. Returns true if it is within the targets.
fn verdict(differences: &[Vec<(f64, f64)>]) -> bool {
    let mut held = true;
    for (all, workload) in differences.iter().zip(WORKLOADS) {
        let target = match workload {
            "append" => Some(APPEND_TARGET_US),
            "read_next" => Some(READ_TARGET_US),
            _ => None,
        };
        let p50 = median(all.iter().map(|d| d.0).collect());
        let p99 = median(all.iter().map(|d| d.1).collect());
        let holds = target.is_none_or(|t| p99 <= t);
        held &= holds;
        let rounded = |us: f64| (us * 1e3).round() / 1e3;
        let line = json!({
            "system": "VirtualLog minus NativeLoglet", "workload": workload, "rounds": all.len(),
            "p50_us": rounded(p50), "p99_us": rounded(p99), "target_p99_us": target, "holds": holds,
        });
        println!("{line}");
    }
    held
}

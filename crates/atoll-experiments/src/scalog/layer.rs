//! An ordering layer of many shards, whose storage servers are emulated: its configuration, what a server reports, and what an observer of
//! the ordering log sees.
//!
//! Every segment of every shard grows at the same constant rate, and all servers of a shard have synced the same. The ordering layer gets
//! only counts, so it does not matter that there are no records.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Loglet, LogletError, LogletId};
use atoll_core::{Encode, Env, NodeId, StorageId, Tick};
use atoll_native::NativeConfig;
use atoll_scalog::config::{CONFIG_FORMAT, MAX_SHARDS};
use atoll_scalog::message::{Report, Reports};
use atoll_scalog::order::OrderEntry;
use atoll_scalog::ordering::{ORDERING_PART, next_tail, read, write};
use atoll_scalog::pace::Pace;
use atoll_scalog::{OrderingSpec, ScalogConfig, Server, ServerOptions, ShardSpec};
use bytes::Bytes;

use crate::latency::Latencies;

/// The Loglet.
pub const LOGLET: LogletId = LogletId(7);
/// The kind of its ordering log.
pub const ORDERING_KIND: &str = "native";
/// Emulated servers have numbers from here on.
const FIRST_SERVER: u32 = 1_000_000;
/// Shards that are added by one entry of the ordering log.
const ADDED_AT_ONCE: usize = 256;
/// How long the ordering log may take for such an entry.
const WRITE_WITHIN: Duration = Duration::from_secs(60);
/// The pause of an observer after an error.
const PAUSE: Duration = Duration::from_millis(1);
/// Shards whose reports are timed, at most. Others only count.
const TIMED: u32 = 50;

/// The shape of an ordering layer.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Number of shards.
    pub shards: u32,
    /// Servers of each.
    pub replicas: u32,
    /// The most children of an aggregator.
    pub fan_in: usize,
    /// How often servers, aggregators and the orderer send what is new.
    pub interval: Duration,
    /// Records that a shard takes per second.
    pub shard_rate: f64,
    /// The nodes over which the aggregators are spread, and the orderer.
    pub aggregators: Vec<NodeId>,
    /// See `aggregators`.
    pub orderer: NodeId,
    /// The servers and the sequencer of the ordering log.
    pub ordering: NativeConfig,
}

impl Layer {
    /// Returns an emulated server, which is no node.
    pub fn server(&self, shard: u32, replica: u32) -> Server {
        let number = FIRST_SERVER + shard * self.replicas + replica;
        Server { node: NodeId(number), storage: StorageId(number.into()) }
    }

    fn spec(&self, shard: u32) -> ShardSpec {
        ShardSpec { shard, servers: (0..self.replicas).map(|replica| self.server(shard, replica)).collect() }
    }

    /// Returns the configuration, with as many shards as one may have.
    pub fn config(&self) -> ScalogConfig {
        let shards = self.shards.min(MAX_SHARDS as u32);
        ScalogConfig {
            format: CONFIG_FORMAT,
            shards: (0..shards).map(|shard| self.spec(shard)).collect(),
            aggregators: ScalogConfig::tree(&self.aggregators, self.shards as usize, self.fan_in),
            orderers: vec![self.orderer],
            interval_us: u32::try_from(self.interval.as_micros()).unwrap_or(u32::MAX),
            added: Vec::new(),
            wanted: (shards, self.replicas),
            ordering: OrderingSpec { kind: ORDERING_KIND.to_owned(), config: self.ordering.to_bytes() },
        }
    }

    /// Returns the id of the ordering log.
    pub fn ordering_log() -> LogletId {
        LOGLET.part(ORDERING_PART)
    }

    /// Adds the shards that are not in the configuration.
    pub async fn add_rest(&self, env: &Env, log: &Arc<dyn Loglet>) -> Result<(), LogletError> {
        let rest: Vec<u32> = (MAX_SHARDS as u32..self.shards.max(MAX_SHARDS as u32)).collect();
        for some in rest.chunks(ADDED_AT_ONCE) {
            let add = some.iter().map(|shard| self.spec(*shard)).collect();
            let until = env.now().after(WRITE_WITHIN);
            write(env, log, &OrderEntry { add, ..OrderEntry::nothing() }, until).await?;
        }
        Ok(())
    }

    /// Returns how many records a segment has after some time. It has one at the start, so that there is something to order.
    pub fn count(&self, since_start: Duration) -> u64 {
        1 + (self.shard_rate / f64::from(self.replicas) * since_start.as_secs_f64()) as u64
    }

    /// Returns the report of a server, in a message for whom it reports to. The first one has the configuration.
    pub fn message(&self, reports: Vec<Report>, leaf: Option<usize>, config: Bytes) -> Reports {
        Reports { loglet: LOGLET, config, at: leaf.map(|leaf| leaf as u32), reports }
    }

    /// Returns what a server reports.
    pub fn report(&self, shard: u32, replica: u32, count: u64) -> Report {
        Report { shard, replica, counts: vec![count; self.replicas as usize] }
    }

    /// Returns whether the reports of a server are timed: of the first server of some shards.
    pub fn is_timed(&self, shard: u32, replica: u32) -> bool {
        replica == 0 && shard.is_multiple_of(self.shards.div_ceil(TIMED).max(1))
    }
}

/// The reports of an emulated server that no cut covers yet. Like a server of the product, it holds further ones back if they are too many.
#[derive(Clone, Debug, Default)]
pub struct Paced {
    pace: Pace,
    sent_at: Tick,
}

impl Paced {
    /// Returns whether the server may report, if this much of each segment is ordered.
    pub fn may_report(&mut self, now: Tick, ordered: Option<&[u64]>) -> bool {
        self.pace.ordered(now, ordered.unwrap_or_default());
        !self.pace.is_full() || now.since(self.sent_at) >= self.pace.patience(ServerOptions::default().resend)
    }

    /// Notes a report.
    pub fn sent(&mut self, now: Tick, counts: Vec<u64>) {
        self.pace.sent(now, counts);
        self.sent_at = now;
    }
}

/// What an observer of the ordering log has seen, as a storage server would.
pub struct Seen {
    /// The number of entries with a cut, and the shards in them.
    pub cuts: u64,
    /// See `cuts`.
    pub shards_in_cuts: u64,
    /// Bytes of these entries.
    pub bytes: u64,
    /// Records that are ordered, since the first entry, and until [`Seen::begin`].
    ordered: (u64, u64),
    /// From a report until a cut covers it, since [`Seen::begin`].
    pub latencies: Latencies,
    counts: BTreeMap<u32, Vec<u64>>,
    /// Of each timed server: counts that it reported, and when.
    reported: BTreeMap<u32, VecDeque<(u64, Tick)>>,
    measures: bool,
}

impl Seen {
    pub fn new() -> Self {
        Seen {
            cuts: 0,
            shards_in_cuts: 0,
            bytes: 0,
            ordered: (0, 0),
            latencies: Latencies::new(),
            counts: BTreeMap::new(),
            reported: BTreeMap::new(),
            measures: false,
        }
    }

    /// Begins to count and to time.
    pub fn begin(&mut self) {
        (self.cuts, self.shards_in_cuts, self.bytes, self.measures) = (0, 0, 0, true);
        self.ordered.1 = self.ordered.0;
        self.latencies = Latencies::new();
    }

    /// Returns how many records were ordered since [`Seen::begin`].
    pub fn ordered(&self) -> u64 {
        self.ordered.0 - self.ordered.1
    }

    /// Returns what is ordered of each segment of a shard. None if nothing is.
    pub fn ordered_of(&self, shard: u32) -> Option<&[u64]> {
        self.counts.get(&shard).map(Vec::as_slice)
    }

    /// Notes that a server of a timed shard reported a count.
    pub fn report(&mut self, now: Tick, shard: u32, count: u64) {
        let waiting = self.reported.entry(shard).or_default();
        if waiting.back().is_none_or(|(last, _)| *last < count) {
            waiting.push_back((count, now));
        }
    }

    /// Takes an entry of the ordering log. Pads are empty.
    pub fn entry(&mut self, now: Tick, bytes: &Bytes) {
        let Ok(entry) = OrderEntry::parse(bytes.clone()) else { return };
        if entry.cut.is_empty() {
            return;
        }
        self.cuts += 1;
        self.shards_in_cuts += entry.cut.len() as u64;
        self.bytes += bytes.len() as u64;
        for cut in entry.cut {
            let known = self.counts.entry(cut.shard).or_insert_with(|| vec![0; cut.counts.len()]);
            for (known, count) in known.iter_mut().zip(&cut.counts) {
                self.ordered.0 += count.saturating_sub(*known);
                *known = (*known).max(*count);
            }
            let all = known.iter().copied().min().unwrap_or(0);
            let Some(waiting) = self.reported.get_mut(&cut.shard) else { continue };
            while let Some((_, at)) = waiting.pop_front_if(|(count, _)| *count <= all) {
                if self.measures {
                    self.latencies.add(now.since(at));
                }
            }
        }
    }
}

/// Reads the ordering log from its beginning, as servers and clients do, and gives each entry to `take`.
pub async fn observe(env: Env, log: Arc<dyn Loglet>, take: impl Fn(Tick, &Bytes) + Send) {
    let mut at = 0;
    loop {
        let Ok(tail) = next_tail(&log, at).await else {
            env.sleep(PAUSE).await;
            continue;
        };
        let Ok(page) = read(&log, at, tail.at.0).await else {
            env.sleep(PAUSE).await;
            continue;
        };
        at = page.first + page.entries.len() as u64;
        page.entries.iter().for_each(|bytes| take(env.now(), bytes));
    }
}

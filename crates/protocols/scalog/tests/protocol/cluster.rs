//! The test cluster: on every node the roles of Scalog, and those of native Loglets for the ordering logs.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::conformance::cluster::{self, All};
use atoll_contract::*;
use atoll_core::level::since;
use atoll_core::*;
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use atoll_scalog::config::CONFIG_FORMAT;
use atoll_scalog::ordering::ORDERING_PART;
use atoll_scalog::roles::{AGGREGATOR, ORDERER, SERVER};
use atoll_scalog::{
    Aggregator, Orderer, OrdererOptions, OrderingLogs, OrderingSpec, ScalogConfig, Server, ServerOptions,
    ShardSpec, StorageServer,
};
use bytes::Bytes;

pub use cluster::{Cluster, batch};

/// Entries of an ordering log that somebody has read: the place of the first one, and the entries. Pads are empty.
pub type Tapped = Arc<Mutex<Vec<(u64, Vec<Bytes>)>>>;

/// An ordering log that notes what is read from it.
#[derive(Debug)]
struct Tap(Arc<dyn Loglet>, Tapped);

impl Tap {
    fn note(&self, first: Offset, entries: &[Entry]) {
        let bytes = |e: &Entry| if e.is_pad() { Bytes::new() } else { e.payload.clone() };
        self.1.lock().unwrap().push((first.0, entries.iter().map(bytes).collect()));
    }
}

impl Loglet for Tap {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.0.append(batch)
    }
    fn keeps_order(&self) -> bool {
        self.0.keeps_order()
    }
    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.0.check_tail()
    }
    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.0.wait_tail(above)
    }
    fn wait_entries(
        &self,
        above: Offset,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<(Tail, Vec<Entry>), LogletError>> {
        Box::pin(async move {
            let (tail, entries) = self.0.wait_entries(above, max_bytes).await?;
            if !entries.is_empty() {
                self.note(above, &entries);
            }
            Ok((tail, entries))
        })
    }
    fn known_tail(&self) -> Offset {
        self.0.known_tail()
    }
    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(async move {
            let first = range.start;
            let got = self.0.read(range, max_bytes, from).await?;
            self.note(first, &got.entries);
            Ok(got)
        })
    }
    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        self.0.prefix_trim(to)
    }
    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        self.0.seal()
    }
}

/// Ordering logs that are native Loglets.
#[derive(Clone, Debug)]
pub struct NativeLogs(pub NativeProvider, Tapped);

impl NativeLogs {
    pub fn new(env: Env) -> Self {
        Self::tapping(env, Tapped::default())
    }

    pub fn tapping(env: Env, tapped: Tapped) -> Self {
        let options = NativeOptions::default();
        NativeLogs(NativeProvider::new(env, Arc::new(All(Vec::new())), options), tapped)
    }
}

impl OrderingLogs for NativeLogs {
    fn open(&self, loglet: LogletId, spec: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError> {
        let log = self.0.open(loglet.part(ORDERING_PART), &spec.config)?;
        Ok(Arc::new(Tap(log, self.1.clone())))
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>> {
        Box::pin(async move {
            let config = self.0.plan(spec, previous.map(|p| &p.config)).await?;
            Ok(OrderingSpec { kind: "native".into(), config })
        })
    }

    fn provision(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        self.0.provision(loglet.part(ORDERING_PART), &spec.config)
    }

    fn delete(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        self.0.delete(loglet.part(ORDERING_PART), &spec.config)
    }

    fn duties(&self, spec: &OrderingSpec) -> Duties {
        self.0.duties(&spec.config)
    }

    fn can_end(&self, spec: &OrderingSpec, reached: &dyn Fn(NodeId) -> bool) -> bool {
        self.0.can_seal(&spec.config, reached)
    }
}

/// Adds the roles to a node.
pub fn assemble(core: &mut NodeCore, storage: StorageId) {
    // Shards of nodes that restart are no reason to end them.
    assemble_tapped(core, storage, Tapped::default(), Duration::ZERO);
}

fn assemble_tapped(core: &mut NodeCore, storage: StorageId, tapped: Tapped, stuck_after: Duration) {
    let env = core.env();
    // There is no Scalog below it.
    env.levels().learn(since::READ_NEXT).unwrap();
    let logs: Arc<dyn OrderingLogs> = Arc::new(NativeLogs::tapping(env.clone(), tapped));
    core.add_role(LOG_SERVER, Box::new(LogServer::new(env.clone(), storage, LogServerOptions::default())));
    core.add_role(SEQUENCER, Box::new(Sequencer::new(env.clone(), SequencerOptions::default())));
    let server = StorageServer::new(env.clone(), storage, logs.clone(), ServerOptions::default());
    core.add_role(SERVER, Box::new(server));
    core.add_role(AGGREGATOR, Box::new(Aggregator::new(env.clone())));
    let options = OrdererOptions { stuck_after, snapshot_after: 16, ..OrdererOptions::default() };
    core.add_role(ORDERER, Box::new(Orderer::new(env, logs, options)));
}

/// A cluster whose ordering logs are noted, and whose orderers end shards that are stuck for this long.
pub fn new(nodes: u32, seed: u64, tapped: Tapped, stuck_after: Duration) -> Cluster {
    Cluster::new(nodes, seed, move |core, storage| {
        assemble_tapped(core, storage, tapped.clone(), stuck_after);
    })
}

/// A configuration: these shards, orderers and aggregators (with parents), and an ordering log with its sequencer on one node.
pub fn config(
    storage: impl Fn(NodeId) -> StorageId,
    sequencer: &Env,
    ordering: &[u32],
    shards: &[&[u32]],
    orderers: &[u32],
    tree: &[(u32, Option<u32>)],
) -> ScalogConfig {
    let servers = ordering.iter().map(|n| (NodeId(*n), storage(NodeId(*n)))).collect();
    let native = NativeConfig::new(servers, (sequencer.node(), sequencer.incarnation())).unwrap();
    let shard = |(n, nodes): (usize, &&[u32])| {
        let server = |n: &u32| Server { node: NodeId(*n), storage: storage(NodeId(*n)) };
        ShardSpec { shard: n as u32, servers: nodes.iter().map(server).collect() }
    };
    let aggregator = |(node, parent): &(u32, Option<u32>)| atoll_scalog::config::Aggregator {
        node: NodeId(*node),
        parent: *parent,
    };
    ScalogConfig {
        format: CONFIG_FORMAT,
        shards: shards.iter().enumerate().map(shard).collect(),
        aggregators: tree.iter().map(aggregator).collect(),
        orderers: orderers.iter().map(|n| NodeId(*n)).collect(),
        interval_us: 300,
        added: Vec::new(),
        wanted: (shards.len() as u32, 2),
        ordering: OrderingSpec { kind: "native".into(), config: native.to_bytes() },
    }
}

//! Creates Scalog Loglets: opens, copies and deletes them, and describes them to code that knows no kind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Binding, Duties, Duty, Evidence, Extent, Kinds, Loglet, LogletError, LogletId, LogletProvider,
    LogletSpec, Offset, Part, PlanError, Progress, ReadError, ReadFrom, Reason, RoleOfKind, SealedConfig,
    Trouble, Unavailability,
};
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Directory, Encode, Env, NodeId};
use atoll_loglet_store::batches;
use atoll_loglet_store::message::{Delete, Verdict};
use atoll_loglet_store::status::{delete_here, held_here};

use crate::config::{OrderingSpec, ScalogConfig};
use crate::loglet::{ScalogLoglet, ScalogOptions};
use crate::message::{Fetch, Holding};
use crate::order::{Order, SealedOrder};
use crate::ordering::{ORDERING_PART, OrderingExtent, OrderingLogs};
use crate::reasons;
use crate::roles::SERVER;

/// The name of this kind in chains.
pub const KIND: &str = "scalog";
/// The role of nodes that hold entries, in specifications.
pub const STORAGE_ROLE: &str = "storage";
/// The role of nodes that propose cuts, in specifications.
pub const ORDERER_ROLE: &str = "orderer";
/// The role of nodes that merge reports, in specifications.
pub const AGGREGATOR_ROLE: &str = "aggregator";
/// The name of the part that is the ordering log, in specifications.
pub const ORDERING: &str = "ordering";
/// The options of specifications.
pub(crate) const OPTIONS: [&str; 4] = ["shards", "replicas", "interval_us", "fan_in"];
const ROLES: [RoleOfKind; 3] = [
    RoleOfKind { name: STORAGE_ROLE, holds: true },
    RoleOfKind { name: ORDERER_ROLE, holds: false },
    RoleOfKind { name: AGGREGATOR_ROLE, holds: false },
];
/// How long a server may take to say how far it is.
const ANSWER: Duration = Duration::from_millis(500);
/// How long this node's own server may take to delete, or to look for entries of the ordering log.
const OWN_ANSWER: Duration = Duration::from_secs(2);

/// Ordering logs that are single Loglets of some kind of the node. They become unavailable with that Loglet's own sequencer. Then the node
/// replaces the whole Loglet, which it can seal without that sequencer.
#[derive(Clone, Debug)]
pub struct KindLogs {
    /// The kinds of the node.
    pub kinds: Kinds,
    /// The kind of new ordering logs.
    pub of: String,
}

impl OrderingLogs for KindLogs {
    fn open(&self, loglet: LogletId, spec: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError> {
        self.kinds.provider(&spec.kind)?.open(loglet.part(ORDERING_PART), &spec.config)
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>> {
        Box::pin(async move {
            let kind = spec.kind.clone().unwrap_or_else(|| self.of.clone());
            let before = previous.filter(|p| p.kind == kind).map(|p| &p.config);
            let config = self.kinds.provider(&kind)?.plan(spec, before).await?;
            Ok(OrderingSpec { kind, config })
        })
    }

    fn provision(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        let (provider, config) = (self.kinds.provider(&spec.kind), spec.config.clone());
        Box::pin(async move {
            match provider {
                Ok(provider) => provider.provision(loglet.part(ORDERING_PART), &config).await,
                Err(_) => Err(LogletError::Unavailable(Unavailability::NoQuorum)),
            }
        })
    }

    fn delete(&self, loglet: LogletId, spec: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        let (provider, config) = (self.kinds.provider(&spec.kind), spec.config.clone());
        Box::pin(async move {
            match provider {
                Ok(provider) => provider.delete(loglet.part(ORDERING_PART), &config).await,
                Err(_) => Err(LogletError::Unavailable(Unavailability::NoQuorum)),
            }
        })
    }

    fn duties(&self, spec: &OrderingSpec) -> Duties {
        self.kinds.provider(&spec.kind).map_or_else(|_| Duties::default(), |p| p.duties(&spec.config))
    }

    fn can_end(&self, spec: &OrderingSpec, reached: &dyn Fn(NodeId) -> bool) -> bool {
        self.kinds.provider(&spec.kind).is_ok_and(|provider| provider.can_seal(&spec.config, reached))
    }

    fn lacks<'a>(&'a self, node: NodeId, logs: &'a [OrderingExtent]) -> BoxFuture<'a, Option<Vec<u64>>> {
        Box::pin(async move {
            let mut all = vec![0; logs.len()];
            let mut by_kind: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
            for (index, log) in logs.iter().enumerate() {
                by_kind.entry(&log.spec.kind).or_default().push(index);
            }
            for (kind, indices) in by_kind {
                let provider = self.kinds.provider(kind).ok()?;
                let is_holder = |index: &usize| provider.duties(&logs[*index].spec.config).is_holder(node);
                let held: Vec<usize> = indices.into_iter().filter(is_holder).collect();
                let extents: Vec<Extent> = held.iter().map(|index| extent_of(&logs[*index])).collect();
                if extents.is_empty() {
                    continue;
                }
                for (index, progress) in held.into_iter().zip(provider.progress(node, &extents).await?) {
                    all[index] = progress.lacks;
                }
            }
            Some(all)
        })
    }

    fn back_fill<'a>(&'a self, log: &'a OrderingExtent) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Ok(provider) = self.kinds.provider(&log.spec.kind) {
                provider.back_fill(&extent_of(log)).await;
            }
        })
    }

    /// What appenders report is about storage servers, too, so it says nothing about this log.
    fn reason(&self, spec: &OrderingSpec, evidence: &Evidence<'_>) -> Option<Reason> {
        let evidence = Evidence { appends: None, ..*evidence };
        self.kinds.provider(&spec.kind).ok()?.reason_to_reconfigure(&spec.config, &evidence)
    }
}

fn extent_of(log: &OrderingExtent) -> Extent {
    let (loglet, config) = (log.loglet.part(ORDERING_PART), log.spec.config.clone());
    Extent { loglet, config, sealed: SealedConfig::new(), range: Offset::ZERO..Offset(log.entries) }
}

/// The provider of "scalog".
#[derive(Clone, Debug)]
pub struct ScalogProvider {
    pub(crate) env: Env,
    pub(crate) directory: DirectoryOf,
    pub(crate) logs: Arc<dyn OrderingLogs>,
    pub(crate) options: Arc<ScalogOptions>,
}

/// The members as the node sees them.
#[derive(Clone)]
pub(crate) struct DirectoryOf(pub Arc<dyn Directory>);

impl std::fmt::Debug for DirectoryOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Directory")
    }
}

/// Returns the part of the ordering log that a sealed Loglet needs. None if it is open: then its ordering log grows.
fn ordering_of(extent: &Extent) -> Option<OrderingExtent> {
    let (spec, sealed) = (parse(&extent.config).ok()?.ordering, SealedOrder::parse(&extent.sealed)?);
    Some(OrderingExtent { loglet: extent.loglet, spec, entries: sealed.entries })
}

pub(crate) fn parse(config: &Bytes) -> Result<ScalogConfig, PlanError> {
    ScalogConfig::parse(config).map_err(PlanError::Unreadable)
}

/// Returns which node does what for a Loglet with this configuration, without its ordering log. Servers are bound to their data
/// directories. Orderers and aggregators keep nothing: any life of them will do.
pub(crate) fn duties(config: &Bytes) -> Duties {
    let Ok(config) = parse(config) else { return Duties::default() };
    let servers = config.all_shards().flat_map(|shard| &shard.servers);
    let servers =
        servers.map(|s| Duty { role: STORAGE_ROLE, node: s.node, binding: Binding::Holds(s.storage) });
    let helps = |role| move |node: NodeId| Duty { role, node, binding: Binding::Helps };
    let orderers = config.orderers.iter().copied().map(helps(ORDERER_ROLE));
    let aggregators = config.aggregators.iter().map(|a| a.node).map(helps(AGGREGATOR_ROLE));
    Duties::of_parts([Duties(servers.chain(orderers).chain(aggregators).collect())])
}

impl ScalogProvider {
    /// Creates the provider for the node of `env`. It chooses among the members that `directory` shows, and opens ordering logs with
    /// `logs`.
    pub fn new(
        env: Env,
        directory: Arc<dyn Directory>,
        logs: Arc<dyn OrderingLogs>,
        options: ScalogOptions,
    ) -> Self {
        ScalogProvider { env, directory: DirectoryOf(directory), logs, options: Arc::new(options) }
    }

    /// Like [`LogletProvider::open`], with the concrete type.
    pub fn open_scalog(&self, id: LogletId, config: &Bytes) -> Result<ScalogLoglet, PlanError> {
        let read = parse(config)?;
        let log = self.logs.open(id, &read.ordering)?;
        Ok(ScalogLoglet::new(
            self.env.clone(),
            id,
            (read, config.clone()),
            log,
            (self.options.clone(), self.directory.clone()),
        ))
    }

    /// Like `open_scalog`, for an operation that cannot report an unreadable configuration.
    fn opened(&self, id: LogletId, config: &Bytes) -> Result<ScalogLoglet, LogletError> {
        self.open_scalog(id, config).map_err(|_| LogletError::Unavailable(Unavailability::StorageFailed))
    }

    /// Appends entries one after the other to one segment, so that they keep their order, and seals.
    async fn copy(
        &self,
        loglet: ScalogLoglet,
        source: &dyn Loglet,
        range: Range<Offset>,
    ) -> Result<(), LogletError> {
        let failed = LogletError::Unavailable(Unavailability::NoQuorum);
        let tail = loglet.check_tail().await?;
        // An earlier attempt may have copied some.
        let mut at = range.start.plus(tail.at.0);
        let shard = loglet.config().shards.first().map_or(0, |shard| shard.shard);
        while at < range.end && tail.sealed.is_none() {
            let step_bytes = self.options.step_bytes as usize;
            let got = source.read(at..range.end, step_bytes, ReadFrom::Anywhere).await;
            let got = got.map_err(|error| match error {
                ReadError::Gone | ReadError::Trimmed(_) => LogletError::Gone,
                _ => failed.clone(),
            })?;
            for batch in batches(got.entries) {
                let (expected, count) = (at.since(range.start), batch.len() as u64);
                let placed = loglet.append_to_shard(shard, 0, batch, Some(expected)).await;
                let placed = placed.map_err(|_| failed.clone())?;
                let is_next = placed.offsets().map(|o| o.0).eq(expected..expected + count);
                if !is_next {
                    return Err(failed);
                }
                at = at.plus(count);
            }
        }
        loglet.seal().await?;
        let tail = loglet.check_tail().await?;
        if tail.at.0 == range.end.since(range.start) { Ok(()) } else { Err(failed) }
    }

    async fn delete_all(&self, id: LogletId, loglet: ScalogLoglet) -> Result<(), LogletError> {
        let until = self.env.now().after(self.options.op_timeout);
        // The newest shards are in the ordering log only. It may be deleted already.
        let _ = loglet.refresh().await;
        let named = duties(&loglet.0.config_bytes);
        let mut nodes = loglet.with_order(Order::nodes);
        nodes.extend(
            named.holders().map(|(node, _)| node).filter(|node| !nodes.contains(node)).collect::<Vec<_>>(),
        );
        loop {
            // Without the ordering log, no append can be ordered any more.
            let ordering = self.logs.delete(id, &loglet.config().ordering).await;
            let round = self.env.now().after(self.options.round_timeout);
            let request = Delete { loglet: id };
            let replies = self.env.gather_role(&nodes, SERVER, request, round, |_| false).await;
            let done = replies.ok().filter(|(_, answer)| answer.verdict == (Verdict::Done {})).count();
            // A server that was away learns of it when its node finds a Loglet that no chain names.
            match ordering {
                Ok(()) | Err(LogletError::Gone) if done > 0 => return Ok(()),
                _ if self.env.now() >= until => {
                    return Err(LogletError::Unavailable(Unavailability::NoQuorum));
                }
                _ => self.env.sleep(self.env.jitter(self.options.retry)).await,
            }
        }
    }
}

impl LogletProvider for ScalogProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn roles(&self) -> &'static [RoleOfKind] {
        &ROLES
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            let previous = previous.map(parse).transpose()?;
            Ok(self.choose(spec, previous.as_ref()).await?.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move {
            let loglet = loglet?;
            self.logs.provision(id, &loglet.config().ordering).await?;
            loglet.check_tail().await.map(|_| ())
        })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.open_scalog(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let loglet = self.opened(id, config)?;
            self.copy(loglet, source, range).await
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let loglet = self.opened(id, config);
        Box::pin(async move { self.delete_all(id, loglet?).await })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        let config = match parse(config) {
            Ok(config) => config,
            Err(error) => return vec![("unreadable", error.to_string())],
        };
        let list = |nodes: Vec<NodeId>| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let shard = |shard: &crate::config::ShardSpec| {
            format!("{}: {}", shard.shard, list(shard.servers.iter().map(|s| s.node).collect()))
        };
        let shards: Vec<String> = config.all_shards().map(shard).collect();
        vec![
            ("shards", shards.join("; ")),
            ("orderers", list(config.orderers.clone())),
            ("aggregators", list(config.aggregators.iter().map(|a| a.node).collect())),
            ("interval_us", config.interval_us.to_string()),
            ("ordering", config.ordering.kind.clone()),
        ]
    }

    fn duties(&self, config: &Bytes) -> Duties {
        let ordering = parse(config).map_or_else(|_| Duties::default(), |c| self.logs.duties(&c.ordering));
        Duties::of_parts([duties(config), ordering])
    }

    fn parts(&self, config: &Bytes) -> Vec<Part> {
        let Ok(config) = parse(config) else { return Vec::new() };
        let shard = |shard: &crate::config::ShardSpec| {
            let duty = |s: &crate::config::Server| Duty {
                role: STORAGE_ROLE,
                node: s.node,
                binding: Binding::Holds(s.storage),
            };
            let duties = Duties(shard.servers.iter().map(duty).collect());
            Part { name: format!("shard-{}", shard.shard), duties }
        };
        let helps = |role: &'static str, nodes: Vec<NodeId>| {
            let duty = |node: NodeId| Duty { role, node, binding: Binding::Helps };
            Part {
                name: role.to_owned(),
                duties: Duties::of_parts([Duties(nodes.into_iter().map(duty).collect())]),
            }
        };
        let mut parts: Vec<Part> = config.all_shards().map(shard).collect();
        parts.push(helps(ORDERER_ROLE, config.orderers.clone()));
        if !config.aggregators.is_empty() {
            parts.push(helps(AGGREGATOR_ROLE, config.aggregators.iter().map(|a| a.node).collect()));
        }
        parts.push(Part { name: ORDERING.to_owned(), duties: self.logs.duties(&config.ordering) });
        parts
    }

    fn has_shards(&self) -> bool {
        true
    }

    /// A seal concerns the ordering log alone: shards may be dead (scalog.md §10).
    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        parse(config).is_ok_and(|config| self.logs.can_end(&config.ordering, reached))
    }

    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason> {
        let config = parse(config).ok()?;
        let ordering = self.logs.reason(&config.ordering, evidence);
        reasons::reason(&config, evidence, ordering)
    }

    /// An append waits for a primary, its backups, an orderer and the ordering log. Its failure points to none of them.
    fn suspect(&self, _config: &Bytes, _trouble: Trouble) -> Option<NodeId> {
        None
    }

    /// A server has every record of its shard that it knows to be ordered, because a cut covers only what all servers of a shard have. So
    /// it lacks nothing below the number up to which it has applied the ordering log. A node that only holds the ordering log lacks no
    /// record. Of the ordering log of a sealed Loglet, the entries that a node lacks are counted with the records.
    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        Box::pin(async move {
            let loglets = extents.iter().map(|extent| extent.loglet).collect();
            let asked = self.env.call(node, Holding { loglets });
            let held = self.env.within(ANSWER, asked).await.ok()?.ok()?.loglets;
            let logs: Vec<Option<OrderingExtent>> = extents.iter().map(ordering_of).collect();
            let some: Vec<OrderingExtent> = logs.iter().flatten().cloned().collect();
            let mut lacks = self.logs.lacks(node, &some).await?.into_iter();
            let one = |(extent, log): (&Extent, &Option<OrderingExtent>)| {
                let (from, to) = (extent.range.start, extent.range.end);
                let known = held.iter().find(|(id, _)| *id == extent.loglet).map(|(_, upto)| Offset(*upto));
                let has_up_to = match known {
                    Some(known) => known.clamp(from, to.max(from)),
                    None if duties(&extent.config).is_holder(node) => from,
                    None => to,
                };
                let of_log = log.as_ref().and_then(|_| lacks.next()).unwrap_or(0);
                let has_up_to = if of_log > 0 && known.is_none() { from } else { has_up_to };
                Progress { has_up_to, lacks: to.since(has_up_to) + of_log }
            };
            Some(extents.iter().zip(&logs).map(one).collect())
        })
    }

    /// The server of this node looks for entries of the ordering log that it has not applied: it has the records. What this node lacks of
    /// the ordering log itself, it fetches.
    fn back_fill(&self, extent: &Extent) -> BoxFuture<'_, ()> {
        let (log, end) = (ordering_of(extent), extent.range.end);
        let fetch = Fetch {
            loglet: extent.loglet,
            config: extent.config.clone(),
            shard: 0,
            from: end.0.saturating_sub(1),
            to: end.0,
            max_bytes: 1,
            patience_ms: u32::try_from(OWN_ANSWER.as_millis()).unwrap_or(u32::MAX),
        };
        let asks = duties(&extent.config).is_holder(self.env.node()) && end > extent.range.start;
        Box::pin(async move {
            if let Some(log) = log {
                self.logs.back_fill(&log).await;
            }
            if asks {
                hit("scalog.back_fill");
                // Ignore the answer: the next round checks again.
                drop(self.env.within(OWN_ANSWER, self.env.call(self.env.node(), fetch)).await);
            }
        })
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(held_here(&self.env, SERVER, above))
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(delete_here(&self.env, SERVER, id, OWN_ANSWER))
    }
}

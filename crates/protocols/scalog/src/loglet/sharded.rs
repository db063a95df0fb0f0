//! The operations on shards that the virtual log knows, without knowing the kind.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::loglet::sharded::{
    PlannedChange, ShardAppendError, ShardChange, ShardState, Sharded, ShardedError, Shards,
};
use atoll_contract::{
    AppendError, Batch, Entry, LogletError, Offset, Placement, PlanError, ReadError, Unavailability,
};
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Encode, Identify, Identity, NodeId};

use super::ScalogLoglet;
use super::shards::ChangeError;
use crate::config::{ScalogConfig, Server, ShardError, ShardSpec};
use crate::message::Fetch;
use crate::order::Order;
use crate::provider::parse;

/// How long a node may take to identify itself before it counts as down.
const IDENTIFY: Duration = Duration::from_secs(1);
/// How long new servers may take to apply the ordering log, before their shard is added.
const GET_READY: Duration = Duration::from_secs(2);

fn failed(error: LogletError) -> ShardedError {
    match error {
        LogletError::Gone => ShardedError::Gone,
        LogletError::Unavailable(why) => ShardedError::Unavailable(why),
    }
}

fn refused(words: String) -> ShardedError {
    ShardedError::Refused(words)
}

fn not_planned(error: PlanError) -> ShardedError {
    refused(error.to_string())
}

fn not_changed(error: ChangeError) -> ShardedError {
    match error {
        ChangeError::Refused(why) => refused(why.to_string()),
        ChangeError::Sealed => ShardedError::Sealed,
        ChangeError::Unknown(LogletError::Gone) => ShardedError::Gone,
        ChangeError::Unknown(LogletError::Unavailable(why)) => ShardedError::Unknown(why),
    }
}

impl ScalogLoglet {
    fn state(&self) -> Shards {
        self.with_order(|order| {
            let one = |(number, shard): (&u32, &crate::order::Shard)| ShardState {
                number: *number,
                nodes: shard.servers.iter().map(|server| server.node).collect(),
                records: shard.counts.iter().sum(),
                leaving: shard.leaving.filter(|_| shard.is_live()),
                ended: shard.ended.map(|end| Offset(end.base)),
            };
            let shards = order.shards().iter().map(one).collect();
            Shards { view: order.view(), tail: Offset(order.base()), shards }
        })
    }

    /// Returns the nodes that may keep a new shard, with their data directories: those that are named, or the fittest that keep no shard
    /// that takes records.
    async fn servers_for(&self, named: &[NodeId]) -> Result<Vec<Server>, ShardedError> {
        let s = &self.0;
        let candidates = s.directory.0.candidates();
        let is_fit = |c: &&atoll_core::Candidate| c.log && c.alive && !c.failing && !c.draining && !c.leaving;
        let busy: BTreeSet<NodeId> = self.with_order(|order| {
            let live = order.shards().values().filter(|shard| shard.is_live());
            live.flat_map(|shard| &shard.servers).map(|server| server.node).collect()
        });
        let ask: Vec<NodeId> = match named {
            [] => candidates.iter().filter(is_fit).map(|c| c.node).filter(|n| !busy.contains(n)).collect(),
            named => named.to_vec(),
        };
        let asked: BTreeSet<NodeId> = ask.into_iter().collect();
        let ask: Vec<NodeId> = asked.into_iter().collect();
        let until = s.env.now().after(IDENTIFY);
        let replies = s.env.gather(&ask, Identify {}, until, |_| false).await;
        let up: Vec<Identity> = replies.into_ok().map(|(_, identity)| identity).collect();
        let server = |i: &Identity| Server { node: i.node, storage: i.storage };
        if named.is_empty() {
            let wanted = s.config.wanted.1.max(1) as usize;
            let mut fit: Vec<&Identity> = up.iter().filter(|i| i.log && !i.failed && !i.draining).collect();
            fit.sort_by_key(|i| i.node);
            if fit.len() < wanted {
                return Err(refused(format!(
                    "{} nodes are up that keep no shard that takes records; a shard has {wanted}",
                    fit.len()
                )));
            }
            return Ok(fit.into_iter().take(wanted).map(server).collect());
        }
        let one = |node: &NodeId| match up.iter().find(|i| i.node == *node) {
            None => Err(refused(format!("node {node} is unknown, or does not answer"))),
            Some(i) if !i.log => Err(refused(format!("node {node} does not have the role \"log\""))),
            Some(i) if i.draining => Err(refused(format!("node {node} is being drained"))),
            Some(i) if i.failed => Err(refused(format!("node {node} has a disk that fails or hangs"))),
            Some(i) => Ok(server(i)),
        };
        named.iter().map(one).collect()
    }

    async fn plan_add(
        &self,
        config: &ScalogConfig,
        number: Option<u32>,
        nodes: &[NodeId],
    ) -> Result<PlannedChange, ShardedError> {
        let used = self.with_order(|order| order.shards().last_key_value().map_or(0, |(last, _)| *last));
        let used = config.all_shards().map(|shard| shard.shard).max().unwrap_or(0).max(used);
        let Some(shard) = number.or(used.checked_add(1)) else {
            return Err(refused(ShardError::Exists(used).to_string()));
        };
        let servers = self.servers_for(nodes).await?;
        let spec = ShardSpec { shard, servers };
        let again = config.added.contains(&spec);
        let is_there = self.with_order(|order| order.shards().contains_key(&shard));
        if !(again && is_there) {
            self.with_order(|order| order.check_add(&spec)).map_err(|why| refused(why.to_string()))?;
        }
        let with = match again {
            // An earlier attempt was not completed.
            true => config.clone(),
            false => config.with_shard(spec.clone()).map_err(|why| refused(why.to_string()))?,
        };
        let nodes = spec.servers.iter().map(|server| server.node).collect();
        let change = ShardChange::Add { number: Some(shard), nodes };
        Ok(PlannedChange { number: shard, change, config: with.to_bytes() })
    }

    async fn planned(&self, config: &Bytes, change: &ShardChange) -> Result<PlannedChange, ShardedError> {
        let read = parse(config).map_err(not_planned)?;
        self.refresh().await.map_err(failed)?;
        if self.is_sealed() {
            return Err(ShardedError::Sealed);
        }
        match change {
            ShardChange::Add { number, nodes } => self.plan_add(&read, *number, nodes).await,
            ShardChange::End { number, .. } => {
                let known = self.with_order(|order| {
                    order.shards().get(number).map(|s| s.is_live() && order.is_last(*number))
                });
                let why = match known {
                    Some(false) => {
                        let (number, change, config) = (*number, change.clone(), config.clone());
                        return Ok(PlannedChange { number, change, config });
                    }
                    Some(true) => ShardError::Last(*number),
                    None => ShardError::Unknown(*number),
                };
                Err(refused(why.to_string()))
            }
        }
    }

    /// Makes the servers of a new shard apply the ordering log, so that the shard takes records as soon as it is there. A server that is
    /// not ready in time gets there by itself.
    async fn get_ready(&self, spec: &ShardSpec, config: &Bytes) {
        let s = &self.0;
        let to = self.with_order(Order::base);
        let patience_ms = if to == 0 { 0 } else { u32::try_from(GET_READY.as_millis()).unwrap_or(u32::MAX) };
        let asked: Vec<_> = spec
            .servers
            .iter()
            .map(|server| {
                let fetch = Fetch {
                    loglet: s.id,
                    config: config.clone(),
                    shard: spec.shard,
                    from: to.saturating_sub(1),
                    to,
                    max_bytes: 1,
                    patience_ms,
                };
                s.env.call(server.node, fetch)
            })
            .collect();
        let all = async {
            for answer in asked {
                // Whatever it says, the server has heard of the Loglet.
                let _ = answer.await;
            }
        };
        if s.env.within(GET_READY, all).await.is_err() {
            hit("scalog.shard.not_ready");
        }
    }

    async fn make(&self, planned: &PlannedChange) -> Result<(), ShardedError> {
        match &planned.change {
            ShardChange::Add { number, .. } => {
                let config = parse(&planned.config).map_err(not_planned)?;
                let spec = config.added.iter().find(|spec| Some(spec.shard) == *number).cloned();
                let spec = spec.ok_or_else(|| refused("the configuration lacks the shard".to_owned()))?;
                self.get_ready(&spec, &planned.config).await;
                hit("scalog.shard.add");
                self.add_shard(spec).await.map_err(not_changed)
            }
            ShardChange::End { number, after } => {
                hit("scalog.shard.end");
                self.finalize(*number, *after).await.map_err(not_changed)
            }
        }
    }

    async fn append_chosen(
        &self,
        shard: u32,
        batch: Batch,
        not_below: Option<Offset>,
    ) -> Result<Placement, ShardAppendError> {
        let is_live = || {
            let live = |order: &Order| order.shards().get(&shard).is_some_and(|s| s.is_live());
            self.with_order(live) || self.is_sealed()
        };
        // It may have been added meanwhile. If it has ended meanwhile, its servers say so, unless they do not answer, as before a retry.
        if !is_live() || not_below.is_some() {
            self.refresh().await.map_err(|_| AppendError::NotAppended(Unavailability::NoQuorum))?;
        }
        if !is_live() {
            return Err(ShardAppendError::NotLive(shard));
        }
        // A retry must find the first attempt, through whatever node it comes.
        let client = batch.ops().next().map_or(0, |op| op.client.0);
        let replicas = self.with_order(|order| order.shards().get(&shard).map_or(1, |s| s.servers.len()));
        let segment = (client % replicas.max(1) as u64) as usize;
        let done = self.append_to_shard(shard, segment, batch, not_below.map(|at| at.0)).await;
        match done {
            Err(AppendError::NotAppended(why)) => {
                // The shard may have ended meanwhile.
                self.refresh().await.map_err(|_| AppendError::NotAppended(why))?;
                if is_live() {
                    Err(AppendError::NotAppended(why).into())
                } else {
                    Err(ShardAppendError::NotLive(shard))
                }
            }
            other => Ok(other?),
        }
    }
}

impl Sharded for ScalogLoglet {
    fn shards(&self) -> BoxFuture<'_, Result<Shards, ShardedError>> {
        Box::pin(async move {
            self.refresh().await.map_err(failed)?;
            Ok(self.state())
        })
    }

    fn plan<'a>(
        &'a self,
        config: &'a Bytes,
        change: &'a ShardChange,
    ) -> BoxFuture<'a, Result<PlannedChange, ShardedError>> {
        Box::pin(self.planned(config, change))
    }

    fn change<'a>(&'a self, planned: &'a PlannedChange) -> BoxFuture<'a, Result<(), ShardedError>> {
        Box::pin(self.make(planned))
    }

    fn append_to_shard(
        &self,
        shard: u32,
        batch: Batch,
        not_below: Option<Offset>,
    ) -> BoxFuture<'_, Result<Placement, ShardAppendError>> {
        Box::pin(self.append_chosen(shard, batch, not_below))
    }

    fn read_in_shard(&self, at: Offset, shard: u32) -> BoxFuture<'_, Result<Option<Entry>, ReadError>> {
        Box::pin(self.read_one(at.0, shard))
    }
}

//! Plans keyspaces, tells the acceptors of them, and deletes them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use atoll_contract::keyspace::{
    Durability, Keyspace, KeyspaceError, KeyspaceId, KeyspacePlanError, KeyspaceProvider, KeyspaceSpec,
    Layout, LayoutState, MAX_REPLICAS, MAX_SHARDS, Replica, ShardPlacement, Unavailability,
};
use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Directory, Env, Identify, NodeId};
use bytes::Bytes;

use crate::groups::{self, Next};
use crate::keyspace::ENGINE;
use crate::message::{Create, DropKeyspace, GroupConfig};
use crate::mover;
use crate::placement::{Ring, Rule};
use crate::space::{InPlaceSpace, Known, Options};

/// How many shards, and so groups of acceptors, a keyspace has if nobody says otherwise.
const USUAL_SHARDS: u32 = 64;
/// How many replicas a shard has if nobody says otherwise and there are enough nodes.
const USUAL_REPLICAS: usize = 3;
/// How long a node may take to say who it is, or to learn of its groups.
const PATIENCE: Duration = Duration::from_millis(500);
/// The option with the zones of nodes.
const ZONES: &str = "zones";

/// Returns the groups in which a node is an acceptor.
pub(crate) fn groups_of(layout: &Layout, node: NodeId) -> Vec<GroupConfig> {
    let here = |config: &GroupConfig| config.replicas.iter().any(|r| r.node == node);
    groups::configs(layout).into_iter().filter(here).collect()
}

/// Creates keyspaces in place.
#[derive(Clone)]
pub struct InPlaceProvider {
    env: Env,
    directory: Arc<dyn Directory>,
    options: Options,
    /// What the open handles to each keyspace share.
    known: Arc<Mutex<BTreeMap<KeyspaceId, Weak<Mutex<Known>>>>>,
}

impl std::fmt::Debug for InPlaceProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InPlaceProvider").field("options", &self.options).finish_non_exhaustive()
    }
}

impl InPlaceProvider {
    /// Creates the provider of a node.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: Options) -> Self {
        InPlaceProvider { env, directory, options, known: Arc::default() }
    }

    /// Returns the suitable nodes that answer, with their present identities.
    async fn candidates(&self, spec: &KeyspaceSpec) -> BTreeMap<NodeId, Replica> {
        let named = |node| spec.nodes.is_empty() || spec.nodes.contains(&node);
        let suits = self.directory.candidates().into_iter();
        let suits: Vec<NodeId> = suits
            .filter(|c| c.log && !c.draining && !c.failing && named(c.node))
            .map(|candidate| candidate.node)
            .collect();
        let until = self.env.now().after(PATIENCE);
        let replies = self.env.gather(&suits, Identify {}, until, |_| false).await;
        let fit = replies.into_ok().filter(|(_, who)| who.log && !who.draining && !who.failed);
        let replica = |(node, who): (NodeId, atoll_core::Identity)| {
            let identity = match spec.durability {
                Durability::Disk => who.storage.0,
                Durability::Memory => u128::from(who.incarnation.0),
            };
            (node, Replica { node, identity })
        };
        fit.map(replica).collect()
    }

    /// Places shards on the nodes that answer.
    async fn place(
        &self,
        spec: &KeyspaceSpec,
        shards: u32,
    ) -> Result<Vec<ShardPlacement>, KeyspacePlanError> {
        if let Some(wanted) = spec.options.keys().find(|name| *name != ZONES) {
            let (wanted, known) = (wanted.clone(), ZONES.to_owned());
            return Err(KeyspacePlanError::UnknownOption { engine: ENGINE, wanted, known });
        }
        let invalid = |what, allowed| Err(KeyspacePlanError::Invalid { what, allowed });
        let Ok(rule) = Rule::parse(spec.options.get(ZONES).map_or("", String::as_str)) else {
            return invalid("zones", "a list such as 1:a,2:a,3:b, with each node once");
        };
        if spec.replicas.is_some_and(|n| n == 0 || n as usize > MAX_REPLICAS) {
            return invalid("replicas", "1 to 9");
        }
        let nodes = self.candidates(spec).await;
        let usual = USUAL_REPLICAS.min(nodes.len().max(1));
        let replicas = spec.replicas.map_or(usual, |n| n as usize);
        if nodes.len() < replicas {
            return Err(KeyspacePlanError::TooFew { up: nodes.len(), wanted: replicas });
        }
        let ring = Ring::new(&nodes.keys().copied().collect::<Vec<_>>(), rule);
        let place = |shard| ShardPlacement {
            replicas: ring.replicas(shard, replicas).iter().map(|node| nodes[node]).collect(),
        };
        Ok((0..shards).map(place).collect())
    }

    async fn plan_now(&self, spec: &KeyspaceSpec) -> Result<Layout, KeyspacePlanError> {
        let invalid = |what, allowed| Err(KeyspacePlanError::Invalid { what, allowed });
        let shards = spec.shards.unwrap_or(USUAL_SHARDS);
        if shards == 0 || shards as usize > MAX_SHARDS {
            return invalid("shards", "1 to 1024");
        }
        if spec.buckets.is_some_and(|n| n != 1) {
            return invalid("buckets", "1: each key is a register of its own");
        }
        let shards = self.place(spec, shards).await?;
        let id = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
        let layout = Layout {
            engine: ENGINE.to_owned(),
            id: KeyspaceId(id),
            epoch: 1,
            state: LayoutState::Normal,
            durability: spec.durability,
            buckets: 1,
            shards,
            options: Bytes::new(),
        };
        Ok(groups::with_zones(&layout, spec.options.get(ZONES).map_or("", String::as_str)))
    }

    /// Plans a move of every shard whose replicas are not those that `spec` describes. If it names no zones, the keyspace keeps to those
    /// that it has. A move that was planned before and has not been completed gets a new group to go to; what is sealed stays sealed.
    async fn plan_move_now(&self, layout: &Layout, spec: &KeyspaceSpec) -> Result<Layout, KeyspacePlanError> {
        let (Some(mut plans), Some(zones)) = (groups::plans(layout), groups::zones(layout)) else {
            let (what, allowed) = ("the groups of the keyspace", "what this version of the program can read");
            return Err(KeyspacePlanError::Invalid { what, allowed });
        };
        let usual = layout.shards.iter().map(|shard| shard.replicas.len() as u32).max();
        let replicas = spec.replicas.or(usual);
        let mut spec = KeyspaceSpec { durability: layout.durability, replicas, ..spec.clone() };
        let zones = spec.options.entry(ZONES.to_owned()).or_insert(zones).clone();
        let wanted = self.place(&spec, layout.shards.len() as u32).await?;
        let planned = groups::with_zones(layout, &zones);
        let mut moves = planned != *layout;
        for ((plan, present), wanted) in plans.iter_mut().zip(&layout.shards).zip(wanted) {
            let same = |other: &[Replica]| {
                let (mut a, mut b) = (other.to_vec(), wanted.replicas.clone());
                a.sort_unstable();
                b.sort_unstable();
                a == b
            };
            let stays = plan.next.as_ref().map_or(same(&present.replicas), |next| same(&next.replicas));
            if !stays {
                let sealed = plan.next.take().map(|next| next.sealed).unwrap_or_default();
                plan.next = Some(Next { epoch: layout.epoch + 1, replicas: wanted.replicas, sealed });
                moves = true;
            }
        }
        Ok(if moves { groups::with_plans(&planned, &plans) } else { planned })
    }

    async fn provision_now(&self, layout: &Layout) -> Result<(), KeyspaceError> {
        let mut told = Vec::new();
        for node in layout.nodes() {
            let (env, groups) = (self.env.clone(), groups_of(layout, node));
            told.push(self.env.launch("in-place.provision", async move {
                let answer = env.within(PATIENCE, env.call(node, Create { groups })).await;
                matches!(answer, Ok(Ok(_)))
            }));
        }
        let mut all = true;
        for ticket in told {
            all &= ticket.await.unwrap_or(false);
        }
        if all { Ok(()) } else { Err(KeyspaceError::NotDone(Unavailability::NoQuorum)) }
    }

    /// Drops the keyspace on every node that answers. Of each group, a majority must have dropped it: the rest serves nobody.
    async fn delete_now(&self, layout: &Layout) -> Result<(), KeyspaceError> {
        let drop = DropKeyspace { keyspace: layout.id, epoch: layout.epoch };
        let until = self.env.now().after(PATIENCE);
        let replies = self.env.gather(&groups::all_nodes(layout), drop, until, |_| false).await;
        let done: Vec<NodeId> = replies.into_ok().map(|(node, _)| node).collect();
        let enough = |shard: &ShardPlacement| {
            shard.replicas.iter().filter(|r| done.contains(&r.node)).count() >= shard.majority()
        };
        if layout.shards.iter().all(enough) {
            return Ok(());
        }
        Err(KeyspaceError::NotDone(Unavailability::NoQuorum))
    }
}

impl KeyspaceProvider for InPlaceProvider {
    fn engine(&self) -> &'static str {
        ENGINE
    }

    fn plan<'a>(&'a self, spec: &'a KeyspaceSpec) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>> {
        Box::pin(self.plan_now(spec))
    }

    fn provision<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        Box::pin(self.provision_now(layout))
    }

    fn open(&self, layout: &Layout) -> Arc<dyn Keyspace> {
        let mut known = lock(&self.known);
        known.retain(|_, handles| handles.strong_count() > 0);
        let shared = known.get(&layout.id).and_then(Weak::upgrade).unwrap_or_default();
        known.insert(layout.id, Arc::downgrade(&shared));
        Arc::new(InPlaceSpace::sharing(self.env.clone(), layout.clone(), self.options, shared))
    }

    fn plan_move<'a>(
        &'a self,
        layout: &'a Layout,
        spec: &'a KeyspaceSpec,
    ) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>> {
        Box::pin(self.plan_move_now(layout, spec))
    }

    fn step<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<Option<Layout>, KeyspaceError>> {
        Box::pin(mover::step(&self.env, self.options, layout))
    }

    fn nodes(&self, layout: &Layout) -> Vec<NodeId> {
        groups::all_nodes(layout)
    }

    fn left_to_move(&self, layout: &Layout) -> usize {
        groups::plans(layout).iter().flatten().filter(|plan| plan.next.is_some()).count()
    }

    fn delete<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        Box::pin(self.delete_now(layout))
    }
}

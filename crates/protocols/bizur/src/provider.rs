//! Plans keyspaces and their moves, tells the replicas of them, and deletes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::keyspace::{
    Durability, Keyspace, KeyspaceError, KeyspaceId, KeyspacePlanError, KeyspaceProvider, KeyspaceSpec,
    Layout, LayoutState, MAX_BUCKETS, MAX_REPLICAS, MAX_SHARDS, Replica, ShardPlacement, Unavailability,
};
use atoll_core::{BoxFuture, Directory, Env, Identify, Identity, NodeId};
use bytes::Bytes;

use crate::client::{BizurKeyspace, ClientOptions};
use crate::groups::{self, Group};
use crate::message::{Create, DropKeyspace, Instance, Open};
use crate::mover;

/// The name of the engine.
pub const ENGINE: &str = "bizur";
/// How many shards a keyspace has if nobody says otherwise.
const USUAL_SHARDS: u32 = 64;
/// How many buckets a shard has if nobody says otherwise. Buckets should hold a few kilobytes, and outnumber the operations in flight.
const USUAL_BUCKETS: u32 = 64;
/// How many replicas a shard has if nobody says otherwise and there are enough nodes.
const USUAL_REPLICAS: usize = 3;
/// How long a node may take to say who it is, or to learn of its replicas.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns a node that has said who it is as a replica.
pub(crate) fn identity(node: NodeId, who: &Identity, durability: Durability) -> Replica {
    let identity = match durability {
        Durability::Disk => who.storage.0,
        Durability::Memory => u128::from(who.incarnation.0),
    };
    Replica { node, identity }
}

/// Returns the instances of which a node holds replicas.
pub(crate) fn instances_on(layout: &Layout, node: NodeId) -> Vec<Instance> {
    let here = |instance: &Instance| instance.config.replicas.iter().any(|r| r.node == node);
    groups::instances(layout).into_iter().filter(here).collect()
}

/// Tells a node of its instances. Returns false if it says that it is no replica of one of them, None if it does not answer.
pub(crate) async fn tell(
    env: &Env,
    node: NodeId,
    instances: Vec<Instance>,
    patience: Duration,
) -> Option<bool> {
    let (moved, first): (Vec<_>, Vec<_>) = instances.into_iter().partition(|i| i.former.is_some());
    let mut is_member = true;
    if !first.is_empty() || moved.is_empty() {
        let shards = first.into_iter().map(|instance| instance.config).collect();
        let created = env.within(patience, env.call(node, Create { shards })).await.ok()?.ok()?;
        is_member &= created.not_member == 0;
    }
    if !moved.is_empty() {
        let opened = env.within(patience, env.call(node, Open { shards: moved })).await.ok()?.ok()?;
        is_member &= opened.not_member == 0;
    }
    Some(is_member)
}

/// Creates keyspaces on Bizur.
#[derive(Clone)]
pub struct BizurProvider {
    env: Env,
    directory: Arc<dyn Directory>,
    options: ClientOptions,
}

impl std::fmt::Debug for BizurProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BizurProvider").field("options", &self.options).finish_non_exhaustive()
    }
}

impl BizurProvider {
    /// Creates the provider of a node.
    pub fn new(env: Env, directory: Arc<dyn Directory>, options: ClientOptions) -> Self {
        BizurProvider { env, directory, options }
    }

    /// Returns the replicas that may be placed: the suitable nodes that answer, under their present identities.
    async fn candidates(&self, spec: &KeyspaceSpec) -> Vec<Replica> {
        let named = |node| spec.nodes.is_empty() || spec.nodes.contains(&node);
        let suits = self.directory.candidates().into_iter();
        let suits: Vec<NodeId> = suits
            .filter(|c| c.log && !c.draining && !c.failing && named(c.node))
            .map(|candidate| candidate.node)
            .collect();
        let until = self.env.now().after(PATIENCE);
        let replies = self.env.gather(&suits, Identify {}, until, |_| false).await;
        let mut replicas: Vec<Replica> = replies
            .into_ok()
            .filter(|(_, who)| who.log && !who.draining && !who.failed)
            .map(|(node, who)| identity(node, &who, spec.durability))
            .collect();
        replicas.sort_unstable();
        replicas
    }

    async fn plan_now(&self, spec: &KeyspaceSpec) -> Result<Layout, KeyspacePlanError> {
        if let Some(wanted) = spec.options.keys().next() {
            let (wanted, known) = (wanted.clone(), "none".to_owned());
            return Err(KeyspacePlanError::UnknownOption { engine: ENGINE, wanted, known });
        }
        let invalid = |what, allowed| Err(KeyspacePlanError::Invalid { what, allowed });
        let (shards, buckets) = (spec.shards.unwrap_or(USUAL_SHARDS), spec.buckets.unwrap_or(USUAL_BUCKETS));
        if shards == 0 || shards as usize > MAX_SHARDS {
            return invalid("shards", "1 to 1024");
        }
        if buckets == 0 || buckets > MAX_BUCKETS {
            return invalid("buckets", "1 to 65536");
        }
        if spec.replicas.is_some_and(|n| n == 0 || n as usize > MAX_REPLICAS) {
            return invalid("replicas", "1 to 9");
        }
        let nodes = self.candidates(spec).await;
        let usual = USUAL_REPLICAS.min(nodes.len().max(1));
        let replicas = spec.replicas.map_or(usual, |n| n as usize);
        if nodes.len() < replicas {
            return Err(KeyspacePlanError::TooFew { up: nodes.len(), wanted: replicas });
        }
        // The first replicas, which lead, are spread over all nodes.
        let place = |shard: usize| ShardPlacement {
            replicas: (0..replicas).map(|i| nodes[(shard + i) % nodes.len()]).collect(),
        };
        let id = u128::from(self.env.random()) << 64 | u128::from(self.env.random());
        Ok(Layout {
            engine: ENGINE.to_owned(),
            id: KeyspaceId(id),
            epoch: 1,
            state: LayoutState::Normal,
            durability: spec.durability,
            buckets,
            shards: (0..shards as usize).map(place).collect(),
            options: Bytes::new(),
        })
    }

    /// Plans a move of every shard whose replicas are not as `spec` wants them. A replica stays where it is if its node may hold it, under
    /// the identity that it has now. A move that was planned before continues, to other replicas if necessary: the group that serves may
    /// be sealed already.
    async fn plan_move_now(&self, layout: &Layout, spec: &KeyspaceSpec) -> Result<Layout, KeyspacePlanError> {
        if let Some(wanted) = spec.options.keys().next() {
            let (wanted, known) = (wanted.clone(), "none".to_owned());
            return Err(KeyspacePlanError::UnknownOption { engine: ENGINE, wanted, known });
        }
        let invalid = |what, allowed| Err(KeyspacePlanError::Invalid { what, allowed });
        let Some(mut plans) = groups::plans(layout) else {
            return invalid("the groups of the keyspace", "what this version of the program can read");
        };
        if spec.replicas.is_some_and(|n| n == 0 || n as usize > MAX_REPLICAS) {
            return invalid("replicas", "1 to 9");
        }
        let spec = KeyspaceSpec { durability: layout.durability, ..spec.clone() };
        let nodes = self.candidates(&spec).await;
        let mut loads: BTreeMap<Replica, usize> = nodes.iter().map(|replica| (*replica, 0)).collect();
        let mut moves = false;
        for (shard, (plan, present)) in plans.iter_mut().zip(&layout.shards).enumerate() {
            let goal = plan.next.as_ref().map_or(&present.replicas, |next| &next.replicas);
            let wanted = spec.replicas.map_or(present.replicas.len(), |n| n as usize);
            if nodes.len() < wanted {
                return Err(KeyspacePlanError::TooFew { up: nodes.len(), wanted });
            }
            let replicas = place(shard, goal, wanted, &mut loads);
            if replicas != *goal {
                plan.next = Some(Group { epoch: layout.epoch + 1, replicas });
                moves = true;
            }
        }
        Ok(if moves { groups::with_plans(layout, &plans) } else { layout.clone() })
    }

    async fn provision_now(&self, layout: &Layout) -> Result<(), KeyspaceError> {
        let mut told = Vec::new();
        for node in layout.nodes() {
            let (env, shards) = (self.env.clone(), instances_on(layout, node));
            told.push(self.env.launch("bizur.provision", async move {
                tell(&env, node, shards, PATIENCE).await.is_some()
            }));
        }
        let mut all = true;
        for ticket in told {
            all &= ticket.await.unwrap_or(false);
        }
        if all { Ok(()) } else { Err(KeyspaceError::NotDone(Unavailability::NoQuorum)) }
    }

    /// Drops the keyspace on every node that answers. Those that do not learn of it when a client comes, or serve nobody: a majority of
    /// each shard must have dropped it.
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

/// Returns replicas for a shard: those of `goal` that may stay, in their order, and for the rest the nodes with the fewest replicas.
/// `loads` has how many replicas each node has got so far. If none stays, the first replicas, which lead, are spread.
fn place(
    shard: usize,
    goal: &[Replica],
    wanted: usize,
    loads: &mut BTreeMap<Replica, usize>,
) -> Vec<Replica> {
    let mut replicas: Vec<Replica> = goal.iter().filter(|r| loads.contains_key(r)).copied().collect();
    replicas.truncate(wanted);
    let none_stays = replicas.is_empty();
    while replicas.len() < wanted {
        let free = loads.iter().filter(|(replica, _)| !replicas.contains(replica));
        let Some((replica, _)) = free.min_by_key(|(_, load)| **load) else { break };
        replicas.push(*replica);
    }
    if none_stays {
        replicas.rotate_left(shard % wanted);
    }
    for replica in &replicas {
        *loads.entry(*replica).or_default() += 1;
    }
    replicas
}

impl KeyspaceProvider for BizurProvider {
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
        Arc::new(BizurKeyspace::new(self.env.clone(), layout.clone(), self.options))
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

    /// A shard has moved once its buckets are copied, and the nodes that it left are not needed any more.
    fn left_to_move(&self, layout: &Layout) -> usize {
        let moves = |plan: &&groups::ShardPlan| plan.next.is_some() || plan.former.is_some();
        groups::plans(layout).iter().flatten().filter(moves).count()
    }

    fn nodes(&self, layout: &Layout) -> Vec<NodeId> {
        groups::all_nodes(layout)
    }

    fn delete<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>> {
        Box::pin(self.delete_now(layout))
    }
}

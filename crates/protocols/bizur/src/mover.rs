//! Moves shards between groups of replicas while they serve (§6).
//!
//! The register with the layout of the keyspace orders the steps, so any node does the next one, and several may at the same time:
//!
//! 1. R1: the layout names the next group. The present one serves.
//! 2. R2: a majority of the present group is sealed. Nothing is acknowledged in it any more, neither a write nor a read.
//! 3. R3: the layout says that the next group serves, and which one was before. Only now the next group is made, so a plan that is replaced
//!    has left nothing behind. Its leader copies each bucket from a sealed majority of the former group, when it is first needed and in the
//!    background. The content that a majority of the new group has is the one that counts, whatever a leader that died has seen.
//! 4. R4: once a leader of the new group has all buckets, the former replicas are retired (R5), and the layout forgets them.
//!
//! Clients wait for a moment between 2 and 3. The sealed replicas tell them then where the shard is.

use std::time::Duration;

use atoll_contract::keyspace::{KeyspaceError, Layout, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Env, ForRole, Identify, NodeId};

use crate::client::{BizurKeyspace, ClientOptions};
use crate::groups::{self, Group, ShardPlan};
use crate::message::{Instance, Open, Retire, Seal, Sealed, ShardConfig};
use crate::provider::identity;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

const NO_QUORUM: KeyspaceError = KeyspaceError::NotDone(Unavailability::NoQuorum);

/// Does the next step of a move. Returns the layout that comes next, which the caller must write into its register; None if nothing moves.
pub(crate) async fn step(
    env: &Env,
    options: ClientOptions,
    layout: &Layout,
) -> Result<Option<Layout>, KeyspaceError> {
    let Some(mut plans) = groups::plans(layout) else {
        return Err(KeyspaceError::NotDone(Unavailability::StorageFailed));
    };
    let moves = |plan: &ShardPlan| plan.next.is_some() || plan.former.is_some();
    let Some(shard) = plans.iter().position(moves) else { return Ok(None) };
    let Some(instance) = groups::instances(layout).into_iter().nth(shard) else { return Ok(None) };
    if let Some(former) = instance.former.clone() {
        complete(env, options, layout, shard as u32, &instance, &former).await?;
        plans[shard].former = None;
        return Ok(Some(groups::with_plans(layout, &plans)));
    }
    let Some(next) = plans[shard].next.clone() else { return Ok(None) };
    is_there(env, &groups::config(layout, shard, next.clone())).await?;
    let present = &instance.config;
    let request = Seal { config: present.clone(), next: None };
    if confirm(env, present, request, present.majority()).await < present.majority() {
        return Err(NO_QUORUM);
    }
    hit("bizur.move.sealed");
    let next = Group { epoch: next.epoch, replicas: next.replicas };
    Ok(Some(groups::opened(layout, plans, shard, next)))
}

/// Has the new group copy all buckets of a shard, and then retires the former one.
async fn complete(
    env: &Env,
    options: ClientOptions,
    layout: &Layout,
    shard: u32,
    instance: &Instance,
    former: &ShardConfig,
) -> Result<(), KeyspaceError> {
    let (config, next) = (&instance.config, Some(instance.clone()));
    let nodes: Vec<NodeId> = config.replicas.iter().map(|replica| replica.node).collect();
    let (open, until) = (Open { shards: vec![instance.clone()] }, env.now().after(PATIENCE));
    // The others learn of it from clients.
    let enough = config.majority();
    env.gather(&nodes, open, until, |replies| replies.ok().count() >= enough).await;
    let seal = Seal { config: former.clone(), next };
    confirm(env, former, seal, former.majority()).await;
    BizurKeyspace::new(env.clone(), layout.clone(), options).copy(shard).await?;
    hit("bizur.move.copied");
    // One that does not hear of it stays sealed.
    let retire = Retire { config: former.clone(), next: instance.clone() };
    confirm(env, former, retire, former.replicas.len()).await;
    Ok(())
}

/// Sends a request to all replicas of a group. Returns how many have done it, at least `enough` of them if there are so many.
async fn confirm<R>(env: &Env, group: &ShardConfig, request: R, enough: usize) -> usize
where
    R: ForRole<Reply = Sealed> + Clone,
{
    let nodes: Vec<NodeId> = group.replicas.iter().map(|replica| replica.node).collect();
    let until = env.now().after(PATIENCE);
    let is_enough = |done: usize| done >= enough;
    let replies = env
        .gather(&nodes, request, until, |replies| {
            is_enough(replies.ok().filter(|(_, reply)| reply.done).count())
        })
        .await;
    replies.into_ok().filter(|(_, reply)| reply.done).count()
}

/// Makes sure that a majority of the next group is there, before the present one is sealed.
async fn is_there(env: &Env, next: &ShardConfig) -> Result<(), KeyspaceError> {
    let nodes: Vec<NodeId> = next.replicas.iter().map(|replica| replica.node).collect();
    let until = env.now().after(PATIENCE);
    let replies = env.gather(&nodes, Identify {}, until, |_| false).await;
    let here = replies
        .into_ok()
        .filter(|(node, who)| !who.failed && next.replicas.contains(&identity(*node, who, next.durability)))
        .count();
    if here >= next.majority() { Ok(()) } else { Err(NO_QUORUM) }
}

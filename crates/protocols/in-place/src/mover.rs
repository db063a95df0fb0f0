//! Moves shards between groups of acceptors: the sealed hand-over (§9a), with one epoch for each group and no proposal for a key.
//!
//! The register with the layout of the keyspace orders the steps, so any node does the next one, and several may at the same time:
//!
//! 1. The layout names the next group. The present one serves.
//! 2. The next group is made. A majority of the present one is sealed, and the layout names *which* acceptors these are. Nothing can be
//!    chosen in the group any more, and what these acceptors hold never changes.
//! 3. Of each key, the highest vote of exactly these acceptors is the state with which it begins in the next group, as a vote in the ballot
//!    [`Ballot::GENESIS`]. Everybody who copies finds the same votes, so this ballot has one state for each key (rmw-I2).
//! 4. Once a majority of the next group has voted for all of them, the layout says that this group serves.
//! 5. The former group is cleared. It refuses everybody who still asks.
//!
//! The highest vote contains everything that was chosen (rmw-I3). If it was not chosen itself, it may have been, and its proposer was told
//! nothing, as after a write-through (rmw-W4).
//!
//! If a sealed acceptor is gone for good before step 4, another majority is sealed and named, and the next group gets another epoch: no
//! node has served in the first one. An acceptor of the next group that has missed the copy has only not voted yet, so it may serve.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_contract::keyspace::{KeyspaceError, Layout, Replica, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Env, ForRole, NodeId};
use bytes::Bytes;

use crate::ballot::Ballot;
use crate::groups::{self, GroupPlan, Next};
use crate::message::{Create, Fetch, Fetched, GroupConfig, Raise, Reject, Retire, Seal, Sealed, Step};
use crate::round::{Progress, Round, ask};
use crate::space::{InPlaceSpace, Options};
use crate::state::KeyState;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How many keys are copied at the same time.
const AT_ONCE: usize = 64;
/// How often a vote of the next group is asked for before the step fails.
const TRIES: u32 = 8;

const NO_QUORUM: KeyspaceError = KeyspaceError::NotDone(Unavailability::NoQuorum);

/// Does the next step of a move. Returns the layout that comes next, which the caller must write into its register; None if nothing moves.
pub(crate) async fn step(
    env: &Env,
    options: Options,
    layout: &Layout,
) -> Result<Option<Layout>, KeyspaceError> {
    let Some(mut plans) = groups::plans(layout) else {
        return Err(KeyspaceError::NotDone(Unavailability::StorageFailed));
    };
    let moves = |plan: &GroupPlan| plan.next.is_some() || plan.former.is_some();
    let Some(shard) = plans.iter().position(moves) else { return Ok(None) };
    let (plan, placement) = (&mut plans[shard], &layout.shards[shard]);
    if let Some(former) = plan.former.take() {
        hit("in-place.move.cleared");
        let config = groups::config(layout, shard as u32, former.epoch, former.replicas);
        let _ = confirm(env, &config, Retire { config: config.clone() }, config.replicas.len()).await;
        return Ok(Some(groups::with_plans(layout, &plans)));
    }
    let Some(next) = plan.next.clone() else { return Ok(None) };
    let present = groups::config(layout, shard as u32, plan.epoch, placement.replicas.clone());
    let target = groups::config(layout, shard as u32, next.epoch, next.replicas.clone());
    if next.sealed.is_empty() {
        create(env, &target).await?;
        let sealed = seal(env, &present).await?;
        hit("in-place.move.sealed");
        plan.next = Some(Next { sealed, ..next });
        return Ok(Some(groups::with_plans(layout, &plans)));
    }
    let after = groups::opened(layout, plans.clone(), shard, &next);
    let space = InPlaceSpace::new(env.clone(), after.clone(), options);
    match copy(&space, &present, &target, &next.sealed).await {
        Ok(()) => {
            hit("in-place.move.opened");
            Ok(Some(after))
        }
        Err(error) => {
            let sealed = seal(env, &present).await?;
            if sealed.iter().all(|replica| next.sealed.contains(replica)) {
                return Err(error);
            }
            hit("in-place.move.sealed_again");
            let epoch = layout.epoch + 1;
            plans[shard].next = Some(Next { epoch, sealed, ..next });
            Ok(Some(groups::with_plans(layout, &plans)))
        }
    }
}

/// Sends a request to all acceptors of a group, and returns those that have done it, at most `enough` of them.
async fn confirm<R>(env: &Env, group: &GroupConfig, request: R, enough: usize) -> Vec<Replica>
where
    R: ForRole<Reply = Sealed> + Clone,
{
    let nodes: Vec<NodeId> = group.replicas.iter().map(|replica| replica.node).collect();
    let until = env.now().after(PATIENCE);
    let mut done = BTreeSet::new();
    let replies = env
        .gather(&nodes, request, until, |replies| {
            replies.ok().filter(|(_, reply)| reply.rejected.is_none()).count() >= enough
        })
        .await;
    for (node, reply) in replies.into_ok() {
        if reply.rejected.is_none() && done.len() < enough {
            done.insert(node);
        }
    }
    group.replicas.iter().filter(|replica| done.contains(&replica.node)).copied().collect()
}

/// Makes the next group, before the present one is sealed: a majority must be there.
async fn create(env: &Env, target: &GroupConfig) -> Result<(), KeyspaceError> {
    let nodes: Vec<NodeId> = target.replicas.iter().map(|replica| replica.node).collect();
    let until = env.now().after(PATIENCE);
    let replies = env.gather(&nodes, Create { groups: vec![target.clone()] }, until, |_| false).await;
    let made = replies.into_ok().filter(|(_, made)| made.not_member + made.dropped == 0).count();
    if made >= target.majority() { Ok(()) } else { Err(NO_QUORUM) }
}

/// Seals a majority, durably. Returns which acceptors these are.
async fn seal(env: &Env, present: &GroupConfig) -> Result<Vec<Replica>, KeyspaceError> {
    let sealed = confirm(env, present, Seal { config: present.clone() }, present.majority()).await;
    if sealed.len() >= present.majority() { Ok(sealed) } else { Err(NO_QUORUM) }
}

/// Copies all keys. On return, a majority of the next group has voted for each, durably if the keyspace is.
async fn copy(
    space: &InPlaceSpace,
    present: &GroupConfig,
    target: &GroupConfig,
    sealed: &[Replica],
) -> Result<(), KeyspaceError> {
    let env = &space.0.env;
    let (mut after, mut clock): (Option<Bytes>, u64) = (None, 0);
    loop {
        let mut pages = Vec::with_capacity(sealed.len());
        for source in sealed {
            let fetch = Fetch { group: present.key, identity: source.identity, after: after.clone() };
            match env.within(PATIENCE, env.call(source.node, fetch)).await {
                Ok(Ok(page)) if page.rejected.is_none() => pages.push(page),
                // It was cleared: another node has completed the move.
                Ok(Ok(page)) if page.rejected == Some(Reject::Moved {}) => {
                    return Err(KeyspaceError::NotDone(Unavailability::Gone));
                }
                _ => return Err(NO_QUORUM),
            }
        }
        clock = pages.iter().map(|page| page.clock).max().unwrap_or(0).max(clock);
        let (votes, upto) = merge(pages);
        let mut copied = Vec::new();
        for (key, state) in votes {
            let read = KeyState::read(&state, 0)
                .map_err(|_| KeyspaceError::NotDone(Unavailability::StorageFailed))?;
            if read.is_tombstone() {
                // Nothing is left of it but its clock (rmw-T11).
                clock = clock.max(read.clock);
                continue;
            }
            copied.push(env.launch("in-place.install", install(space.clone(), target.clone(), key, state)));
            if copied.len() >= AT_ONCE {
                all(&mut copied).await?;
            }
        }
        all(&mut copied).await?;
        match upto {
            Some(upto) => after = Some(upto),
            None => break,
        }
    }
    let raised = confirm(env, target, Raise { config: target.clone(), clock }, target.majority()).await;
    if raised.len() >= target.majority() { Ok(()) } else { Err(NO_QUORUM) }
}

async fn all(copied: &mut Vec<atoll_core::Ticket<bool>>) -> Result<(), KeyspaceError> {
    for ticket in copied.drain(..) {
        if !ticket.await.unwrap_or(false) {
            return Err(NO_QUORUM);
        }
    }
    Ok(())
}

/// Returns the highest vote for each key, and up to which key they are complete, if there is more.
fn merge(pages: Vec<Fetched>) -> (BTreeMap<Bytes, Bytes>, Option<Bytes>) {
    let ends = pages.iter().filter(|page| page.more).filter_map(|page| page.votes.last());
    let upto = ends.map(|last| last.key.clone()).min();
    let mut highest: BTreeMap<Bytes, (Ballot, Bytes)> = BTreeMap::new();
    for vote in pages.into_iter().flat_map(|page| page.votes) {
        if upto.as_ref().is_some_and(|upto| vote.key > *upto) {
            continue;
        }
        let known = highest.entry(vote.key).or_insert((Ballot::ZERO, Bytes::new()));
        if vote.voted > known.0 {
            *known = (vote.voted, vote.state);
        }
    }
    (highest.into_iter().map(|(key, (_, state))| (key, state)).collect(), upto)
}

/// Gets a majority of the next group to vote for the state with which a key begins.
async fn install(space: InPlaceSpace, target: GroupConfig, key: Bytes, state: Bytes) -> bool {
    let (shared, majority) = (&space.0, target.majority());
    let step = Step::Write { ballot: Ballot::GENESIS, through: true, state };
    for _ in 0..TRIES {
        let until = shared.env.now().after(shared.options.reply_timeout);
        let enough = |round: &Round| {
            let votes = round.votes().0;
            if votes >= majority || round.hopeless(votes, majority) { Progress::Done } else { Progress::Wait }
        };
        let round = ask(shared, &target, &key, &step, until, enough).await;
        if round.votes().0 >= majority {
            return true;
        }
        if round.votes().1 > 0 {
            // A higher ballot is promised, so the group serves already.
            return false;
        }
        shared.back_off(1, true).await;
    }
    false
}

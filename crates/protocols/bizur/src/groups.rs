//! The groups of replicas of a keyspace: the epoch of each, and where its shard moves (§6). They are what only this engine reads of a
//! layout.
//!
//! Every shard has an epoch of its own, so it moves without the others. Epochs are numbers of layouts, and none is used twice.

use atoll_contract::keyspace::{Layout, Replica, ShardPlacement};
use atoll_core::{Decode, Encode, NodeId};

use crate::message::{Instance, ShardConfig, ShardKey};

atoll_core::record! {
    /// A group of replicas of one shard.
    pub struct Group {
        /// Its epoch.
        pub epoch: u64,
        /// Its replicas.
        pub replicas: Vec<Replica>,
    }
}

atoll_core::record! {
    /// What a layout says of one shard, in addition to its replicas.
    pub struct ShardPlan {
        /// The epoch of the group that serves.
        pub epoch: u64,
        /// The group to which the shard moves.
        pub next: Option<Group>,
        /// The group before this one, as long as the buckets are copied from it.
        pub former: Option<Group>,
    }
}

/// Returns the plans of all shards, in their order. None if a newer version of the program wrote them.
pub(crate) fn plans(layout: &Layout) -> Option<Vec<ShardPlan>> {
    if layout.options.is_empty() {
        // Nothing has moved since the keyspace was created.
        let first = ShardPlan { epoch: 1, next: None, former: None };
        return Some(vec![first; layout.shards.len()]);
    }
    let plans = Vec::<ShardPlan>::from_bytes(layout.options.clone()).ok()?;
    (plans.len() == layout.shards.len()).then_some(plans)
}

/// Returns the layout with other plans. It is the next one of its keyspace.
pub(crate) fn with_plans(layout: &Layout, plans: &[ShardPlan]) -> Layout {
    Layout { epoch: layout.epoch + 1, options: plans.to_vec().to_bytes(), ..layout.clone() }
}

/// Returns the layout as it is once the next group of a shard serves.
pub(crate) fn opened(layout: &Layout, mut plans: Vec<ShardPlan>, shard: usize, next: Group) -> Layout {
    let mut layout = layout.clone();
    let (Some(placement), Some(plan)) = (layout.shards.get_mut(shard), plans.get_mut(shard)) else {
        return layout;
    };
    let before = std::mem::replace(placement, ShardPlacement { replicas: next.replicas });
    let former = Some(Group { epoch: plan.epoch, replicas: before.replicas });
    *plan = ShardPlan { epoch: next.epoch, next: None, former };
    with_plans(&layout, &plans)
}

/// Returns a group of a shard as its replicas know it.
pub(crate) fn config(layout: &Layout, shard: usize, group: Group) -> ShardConfig {
    ShardConfig {
        key: ShardKey { keyspace: layout.id, epoch: group.epoch, shard: shard as u32 },
        durability: layout.durability,
        shards: layout.shards.len() as u32,
        buckets: layout.buckets,
        replicas: group.replicas,
    }
}

/// Returns the instances of all shards that serve. A plan that cannot be read has instances without replicas, which never answer: an empty
/// keyspace must not stand in for one that has moved.
pub(crate) fn instances(layout: &Layout) -> Vec<Instance> {
    let plans = plans(layout);
    let instance = |(shard, placement): (usize, &ShardPlacement)| {
        let plan = plans.as_ref().and_then(|plans| plans.get(shard));
        let replicas = plan.map(|_| placement.replicas.clone()).unwrap_or_default();
        let group = Group { epoch: plan.map_or(0, |plan| plan.epoch), replicas };
        let former = plan.and_then(|plan| plan.former.clone()).map(|former| config(layout, shard, former));
        Instance { config: config(layout, shard, group), former }
    };
    layout.shards.iter().enumerate().map(instance).collect()
}

/// Returns every node that a layout names, also those of groups that are to come, or from which buckets are still copied.
pub(crate) fn all_nodes(layout: &Layout) -> Vec<NodeId> {
    let mut nodes = layout.nodes();
    for plan in plans(layout).unwrap_or_default() {
        let groups = plan.next.into_iter().chain(plan.former);
        nodes.extend(groups.flat_map(|group| group.replicas).map(|replica| replica.node));
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::keyspace::{Durability, KeyspaceId, LayoutState};
    use bytes::Bytes;

    fn replicas(nodes: [u32; 3]) -> Vec<Replica> {
        nodes.iter().map(|n| Replica { node: NodeId(*n), identity: u128::from(*n) }).collect()
    }

    #[test]
    fn a_shard_moves_alone_and_unreadable_plans_have_no_replicas() {
        let shard = || ShardPlacement { replicas: replicas([1, 2, 3]) };
        let mut layout = Layout {
            engine: crate::ENGINE.to_owned(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability: Durability::Disk,
            buckets: 4,
            shards: vec![shard(), shard()],
            options: Bytes::new(),
        };
        let next = Group { epoch: 2, replicas: replicas([4, 5, 6]) };
        let moved = opened(&layout, plans(&layout).unwrap_or_default(), 1, next);
        let now = instances(&moved);
        assert_eq!((moved.epoch, now[0].config.key.epoch, now[1].config.key.epoch), (2, 1, 2));
        assert_eq!(now[1].config.replicas, replicas([4, 5, 6]));
        assert_eq!(now[0].former, None);
        assert_eq!(now[1].former.as_ref().map(|former| former.key.epoch), Some(1));
        assert_eq!(all_nodes(&moved), (1..=6).map(NodeId).collect::<Vec<_>>());
        layout.options = Bytes::from_static(b"?");
        assert!(instances(&layout).iter().all(|instance| instance.config.replicas.is_empty()));
    }
}

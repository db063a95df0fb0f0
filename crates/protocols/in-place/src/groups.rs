//! The groups of a keyspace: the epoch of each, where it moves (§9a), and the rule for where it may be. They are what only this engine
//! reads of a layout.
//!
//! Every group has an epoch of its own, so a shard moves without the others. Epochs are numbers of layouts, and none is used twice.

use atoll_contract::keyspace::{Layout, Replica, ShardPlacement};
use atoll_core::{Decode, Encode, Reader};
use bytes::{Bytes, BytesMut};

use crate::message::{GroupConfig, GroupKey};

atoll_core::record! {
    /// The group that takes over a shard.
    pub struct Next {
        /// Its epoch.
        pub epoch: u64,
        /// Its acceptors.
        pub replicas: Vec<Replica>,
        /// The acceptors of the present group whose votes count: a majority, sealed for good. Empty before they were chosen.
        pub sealed: Vec<Replica>,
    }
}

atoll_core::record! {
    /// A group that has handed over its shard, and still holds its keys.
    pub struct Former {
        /// Its epoch.
        pub epoch: u64,
        /// Its acceptors.
        pub replicas: Vec<Replica>,
    }
}

atoll_core::record! {
    /// What a layout says of the group of one shard, in addition to its acceptors.
    pub struct GroupPlan {
        /// Its epoch.
        pub epoch: u64,
        /// Where it moves.
        pub next: Option<Next>,
        /// The group before it, if that is still to be cleared.
        pub former: Option<Former>,
    }
}

/// What only this engine reads of a layout.
struct Plans {
    /// The groups, in the order of their shards.
    groups: Vec<GroupPlan>,
    /// The zones of the nodes, as the user named them. Moves keep to them unless they name others. Empty: there are none.
    zones: String,
}

impl Plans {
    fn read(layout: &Layout) -> Option<Plans> {
        if layout.options.is_empty() {
            // Nothing has moved since the keyspace was created, and it has no zones.
            let first = GroupPlan { epoch: 1, next: None, former: None };
            return Some(Plans { groups: vec![first; layout.shards.len()], zones: String::new() });
        }
        let mut from = Reader::new(layout.options.clone());
        let groups = Vec::<GroupPlan>::decode(&mut from).ok()?;
        let zones = if from.left() == 0 { String::new() } else { String::decode(&mut from).ok()? };
        from.finish("the plans of groups").ok()?;
        (groups.len() == layout.shards.len()).then_some(Plans { groups, zones })
    }

    fn written(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.groups.encode(&mut out);
        // A program that does not know this field reads the plans of a keyspace without zones.
        if !self.zones.is_empty() {
            self.zones.encode(&mut out);
        }
        out.freeze()
    }
}

/// Returns the plans of all groups, in the order of their shards. None if a newer version of the program wrote them.
pub(crate) fn plans(layout: &Layout) -> Option<Vec<GroupPlan>> {
    Plans::read(layout).map(|plans| plans.groups)
}

/// Returns the zones that the keyspace keeps to. None if a newer version of the program wrote them.
pub(crate) fn zones(layout: &Layout) -> Option<String> {
    Plans::read(layout).map(|plans| plans.zones)
}

/// Returns the layout with other zones. Its number stays.
pub(crate) fn with_zones(layout: &Layout, zones: &str) -> Layout {
    match Plans::read(layout) {
        Some(plans) if plans.zones != zones => {
            let options = Plans { zones: zones.to_owned(), ..plans }.written();
            Layout { options, ..layout.clone() }
        }
        _ => layout.clone(),
    }
}

/// Returns the layout with other plans. It is the next one of its keyspace.
pub(crate) fn with_plans(layout: &Layout, plans: &[GroupPlan]) -> Layout {
    let zones = zones(layout).unwrap_or_default();
    let options = Plans { groups: plans.to_vec(), zones }.written();
    Layout { epoch: layout.epoch + 1, options, ..layout.clone() }
}

/// Returns the layout as it is once a shard has moved.
pub(crate) fn opened(layout: &Layout, mut plans: Vec<GroupPlan>, shard: usize, next: &Next) -> Layout {
    let mut layout = layout.clone();
    let (Some(placement), Some(plan)) = (layout.shards.get_mut(shard), plans.get_mut(shard)) else {
        return layout;
    };
    let now = ShardPlacement { replicas: next.replicas.clone() };
    let before = std::mem::replace(placement, now);
    let former = Some(Former { epoch: plan.epoch, replicas: before.replicas });
    *plan = GroupPlan { epoch: next.epoch, next: None, former };
    with_plans(&layout, &plans)
}

/// Returns the groups of a keyspace, as their acceptors know them. A plan that cannot be read has groups without acceptors, which never
/// answer: an empty keyspace must not stand in for one that has moved.
pub(crate) fn configs(layout: &Layout) -> Vec<GroupConfig> {
    let plans = plans(layout);
    let config = |(shard, placement): (usize, &ShardPlacement)| {
        let plan = plans.as_ref().and_then(|plans| plans.get(shard));
        let replicas = plan.map(|_| placement.replicas.clone()).unwrap_or_default();
        config(layout, shard as u32, plan.map_or(0, |plan| plan.epoch), replicas)
    };
    layout.shards.iter().enumerate().map(config).collect()
}

/// Returns a group of a shard, present, former or next.
pub(crate) fn config(layout: &Layout, shard: u32, epoch: u64, replicas: Vec<Replica>) -> GroupConfig {
    GroupConfig {
        key: GroupKey { keyspace: layout.id, epoch, shard },
        durability: layout.durability,
        shards: layout.shards.len() as u32,
        replicas,
    }
}

/// Returns every replica that a layout names, also those of groups that are to come or to be cleared.
pub(crate) fn all_nodes(layout: &Layout) -> Vec<atoll_core::NodeId> {
    let mut nodes = layout.nodes();
    for plan in plans(layout).unwrap_or_default() {
        let next = plan.next.map(|next| next.replicas).unwrap_or_default();
        let former = plan.former.map(|former| former.replicas).unwrap_or_default();
        nodes.extend(next.iter().chain(&former).map(|replica| replica.node));
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::keyspace::{Durability, KeyspaceId, LayoutState};
    use atoll_core::NodeId;

    fn replicas(nodes: [u32; 3]) -> Vec<Replica> {
        nodes.iter().map(|n| Replica { node: NodeId(*n), identity: u128::from(*n) }).collect()
    }

    #[test]
    fn a_shard_moves_alone_and_unreadable_plans_have_no_acceptors() {
        let shard = || ShardPlacement { replicas: replicas([1, 2, 3]) };
        let mut layout = Layout {
            engine: crate::ENGINE.to_owned(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability: Durability::Disk,
            buckets: 1,
            shards: vec![shard(), shard()],
            options: Bytes::new(),
        };
        let plans = plans(&layout).unwrap_or_default();
        let next = Next { epoch: 2, replicas: replicas([4, 5, 6]), sealed: replicas([1, 2, 3]) };
        let moved = opened(&layout, plans, 1, &next);
        let epochs: Vec<u64> = configs(&moved).iter().map(|config| config.key.epoch).collect();
        assert_eq!((moved.epoch, epochs), (2, vec![1, 2]));
        assert_eq!(configs(&moved)[1].replicas, replicas([4, 5, 6]));
        assert_eq!(all_nodes(&moved), (1..=6).map(NodeId).collect::<Vec<_>>());
        let zoned = with_zones(&moved, "1:a,4:b");
        assert_eq!((zoned.epoch, configs(&zoned)), (2, configs(&moved)));
        assert_eq!(
            zones(&opened(&zoned, super::plans(&zoned).unwrap_or_default(), 0, &next)).as_deref(),
            Some("1:a,4:b")
        );
        assert_eq!(with_zones(&zoned, ""), moved, "without zones, there is nothing of them");
        layout.options = Bytes::from_static(b"?");
        assert!(configs(&layout).iter().all(|config| config.replicas.is_empty()));
    }
}

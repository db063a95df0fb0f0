//! Why another Loglet should follow a Scalog Loglet. A dead server stops the appends of its own shard only, and the orderers end that shard
//! if others are live. So urgent is only a Loglet without any whole shard, without an orderer, or whose ordering log has an urgent reason.

use atoll_contract::cluster::{Health, Picture};
use atoll_contract::loglet::reason::Holders;
use atoll_contract::{Evidence, Reason, Urgency};
use atoll_core::{NodeId, StorageId};

use crate::config::{ScalogConfig, Server, ShardSpec};
use crate::provider::STORAGE_ROLE;

/// Returns the most urgent reason, if there is one. `ordering` is the one of the ordering log.
pub(crate) fn reason(
    config: &ScalogConfig,
    evidence: &Evidence<'_>,
    ordering: Option<Reason>,
) -> Option<Reason> {
    if ordering.as_ref().is_some_and(Reason::is_urgent) {
        return ordering;
    }
    let cluster = evidence.cluster;
    no_whole_shard(config, cluster)
        .or_else(|| no_orderer(config, cluster))
        .or_else(|| {
            let all: Vec<NodeId> = config.shards.iter().flat_map(|s| &s.servers).map(|s| s.node).collect();
            config.shards.iter().find_map(|shard| {
                let nodes: Vec<(NodeId, StorageId)> =
                    shard.servers.iter().map(|s| (s.node, s.storage)).collect();
                Holders { role: STORAGE_ROLE, nodes: &nodes, all: &all }.reason(evidence)
            })
        })
        .or_else(|| helper_leaves(config, cluster))
        .or(ordering)
}

fn is_gone(cluster: &Picture, node: NodeId) -> bool {
    let life = cluster.members.get(&node).and_then(|sight| sight.life);
    cluster.is_removed(node) || (life.is_some_and(|l| !l.hears) && !cluster.reach.is_there(node))
}

/// A shard takes appends only while all of its servers do.
fn no_whole_shard(config: &ScalogConfig, cluster: &Picture) -> Option<Reason> {
    let broken = |server: &Server| {
        let sight = cluster.members.get(&server.node);
        if is_gone(cluster, server.node) {
            return Some((Urgency::AtOnce, "does not answer"));
        }
        if sight.is_some_and(|s| s.storage.0 != 0 && s.storage != server.storage) {
            return Some((Urgency::AtOnce, "has another data directory"));
        }
        match sight.map(|s| s.disk) {
            Some(Health::Closed) => Some((Urgency::AtOnce, "has a disk that fails")),
            // It may recover by itself.
            Some(Health::Hanging) => Some((Urgency::Soon, "has a disk that hangs")),
            _ => None,
        }
    };
    let of_shard = |shard: &ShardSpec| {
        let all = shard.servers.iter().filter_map(|s| broken(s).map(|(urgency, why)| (urgency, s.node, why)));
        all.max_by_key(|(urgency, node, _)| (*urgency, std::cmp::Reverse(*node)))
    };
    let all: Option<Vec<_>> = config.shards.iter().map(of_shard).collect();
    // The shard that may recover first decides how urgent it is.
    let (urgency, node, why) = all?.into_iter().min_by_key(|(urgency, node, _)| (*urgency, *node))?;
    Some(Reason::new(node, urgency, format!("no shard is whole: a server on node {node} {why}")))
}

/// Without an orderer, no record gets a number.
fn no_orderer(config: &ScalogConfig, cluster: &Picture) -> Option<Reason> {
    let first = *config.orderers.first()?;
    let all_gone = config.orderers.iter().all(|node| is_gone(cluster, *node));
    all_gone
        .then(|| Reason::new(first, Urgency::AtOnce, format!("the orderer on node {first} does not answer")))
}

/// A node that only helps is replaced before it leaves.
fn helper_leaves(config: &ScalogConfig, cluster: &Picture) -> Option<Reason> {
    let helpers = config.orderers.iter().copied().chain(config.aggregators.iter().map(|a| a.node));
    let leaves = |node: &NodeId| {
        let sight = cluster.members.get(node);
        cluster.is_removed(*node) || sight.is_some_and(|s| s.candidate.draining || s.candidate.leaving)
    };
    let mut leaving = helpers.filter(leaves).filter(|node| cluster.other_orderers(*node).next().is_some());
    let node = leaving.next()?;
    Some(Reason::new(node, Urgency::Calm, format!("node {node} is leaving and helps to order appends")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{config, shard};
    use atoll_contract::cluster::Picture;
    use atoll_core::Tick;

    fn seen(cluster: &Picture) -> Option<(NodeId, Urgency)> {
        let config = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        reason(&config, &Evidence { cluster, appends: None }, None).map(|r| (r.node, r.urgency))
    }

    #[test]
    fn a_loglet_without_a_whole_shard_is_urgent() {
        let all = || Picture::all_well(5);
        assert_eq!(seen(&all()), None);
        // The other shard takes the appends. The server should be replaced, which is not urgent.
        let one = seen(&all().without(2, Tick(0)));
        assert_ne!(one.map(|(_, urgency)| urgency), Some(Urgency::AtOnce));
        let both = all().without(2, Tick(0)).without(3, Tick(0));
        assert_eq!(seen(&both), Some((NodeId(2), Urgency::AtOnce)));
    }

    #[test]
    fn disks_count_and_the_mildest_shard_decides() {
        let closed = |cluster: Picture, n| cluster.with(n, |s| s.disk = Health::Closed);
        let hangs = |cluster: Picture, n| cluster.with(n, |s| s.disk = Health::Hanging);
        // The other shard takes the appends.
        let one = seen(&closed(Picture::all_well(5), 1));
        assert_ne!(one.map(|(_, urgency)| urgency), Some(Urgency::AtOnce));
        let both = closed(closed(Picture::all_well(5), 1), 4);
        assert_eq!(seen(&both), Some((NodeId(1), Urgency::AtOnce)));
        let may_recover = hangs(closed(Picture::all_well(5), 1), 4);
        assert_eq!(seen(&may_recover), Some((NodeId(4), Urgency::Soon)));
        let other_directory = Picture::all_well(5).with(1, |s| s.storage = StorageId(99));
        assert_eq!(seen(&closed(other_directory, 4)).map(|(_, u)| u), Some(Urgency::AtOnce));
    }

    #[test]
    fn the_ordering_log_and_the_orderers_are_needed_by_all_shards() {
        let config = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        let ordering = |urgency| Some(Reason::new(NodeId(9), urgency, "ordering"));
        let of = |cluster: &Picture, ordering| {
            reason(&config, &Evidence { cluster, appends: None }, ordering).map(|r| (r.node, r.urgency))
        };
        let dead = Picture::all_well(5).without(1, Tick(0)).without(3, Tick(0));
        assert_eq!(of(&dead, ordering(Urgency::AtOnce)), Some((NodeId(9), Urgency::AtOnce)));
        assert_eq!(of(&dead, ordering(Urgency::Calm)), Some((NodeId(1), Urgency::AtOnce)));
        let well = Picture::all_well(5);
        assert_eq!(of(&well, ordering(Urgency::Calm)), Some((NodeId(9), Urgency::Calm)));
        // The only orderer is on node 1.
        assert_eq!(of(&well.without(1, Tick(99_000_000_000)), None), Some((NodeId(1), Urgency::AtOnce)));
    }
}

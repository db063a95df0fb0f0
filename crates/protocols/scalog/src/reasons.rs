//! Why another Loglet should follow a Scalog Loglet. A dead server stops the appends of its own shard only, and the orderers end that
//! shard if others are live. So urgent is only a Loglet without any whole shard, without an orderer, or whose ordering log has an urgent
//! reason. A shard that the orderers have ended does not come back, and only the ordering log says which ones those are: so if appends
//! fail although the orderers had time to end a shard, a single server that is gone is urgent, too.

use atoll_contract::cluster::{Health, Picture};
use atoll_contract::loglet::reason::Holders;
use atoll_contract::{Evidence, Reason, Trouble, Urgency};
use atoll_core::{Candidate, NodeId, StorageId};

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
        .or_else(|| appends_fail(config, evidence))
        .or_else(|| {
            let all: Vec<NodeId> = config.all_shards().flat_map(|s| &s.servers).map(|s| s.node).collect();
            config.all_shards().find_map(|shard| {
                let nodes: Vec<(NodeId, StorageId)> =
                    shard.servers.iter().map(|s| (s.node, s.storage)).collect();
                Holders { role: STORAGE_ROLE, nodes: &nodes, all: &all }.reason(evidence)
            })
        })
        .or_else(|| helper_leaves(config, cluster))
        .or_else(|| of_shape(config, cluster))
        .or(ordering)
}

fn is_gone(cluster: &Picture, node: NodeId) -> bool {
    let life = cluster.members.get(&node).and_then(|sight| sight.life);
    cluster.is_removed(node) || (life.is_some_and(|l| !l.hears) && !cluster.reach.is_there(node))
}

/// Why a server takes no records, and how urgent that is.
type Broken = (Urgency, NodeId, &'static str);

/// Returns why a server takes no records of its shard, if there is a reason.
fn broken(server: &Server, shard: &ShardSpec, cluster: &Picture) -> Option<Broken> {
    let (node, sight) = (server.node, cluster.members.get(&server.node));
    if is_gone(cluster, node) {
        return Some((Urgency::AtOnce, node, "does not answer"));
    }
    if sight.is_some_and(|s| s.storage.0 != 0 && s.storage != server.storage) {
        return Some((Urgency::AtOnce, node, "has another data directory"));
    }
    match sight.map(|s| s.disk) {
        Some(Health::Closed) => return Some((Urgency::AtOnce, node, "has a disk that fails")),
        // It may recover by itself.
        Some(Health::Hanging) => return Some((Urgency::Soon, node, "has a disk that hangs")),
        _ => {}
    }
    let is_cut_off = |other: &Server| {
        let both_report = [node, other.node].iter().all(|n| cluster.reach.rows.contains_key(n));
        both_report && !cluster.reach.pair(node, other.node)
    };
    shard.servers.iter().any(is_cut_off).then_some((Urgency::Soon, node, "does not reach another one"))
}

/// Returns the reason for which a shard takes no records, if there is one.
fn not_whole(shard: &ShardSpec, cluster: &Picture) -> Option<Broken> {
    let all = shard.servers.iter().filter_map(|server| broken(server, shard, cluster));
    all.max_by_key(|(urgency, node, _)| (*urgency, std::cmp::Reverse(*node)))
}

/// Some shard is needed that takes records: all of its servers do.
fn no_whole_shard(config: &ScalogConfig, cluster: &Picture) -> Option<Reason> {
    let all: Option<Vec<_>> = config.all_shards().map(|shard| not_whole(shard, cluster)).collect();
    // The shard that may recover first decides how urgent it is.
    let (urgency, node, why) = all?.into_iter().min_by_key(|(urgency, node, _)| (*urgency, *node))?;
    Some(Reason::new(node, urgency, format!("no shard is whole: a server on node {node} {why}")))
}

/// An append that fails has waited for longer than the orderers take to end a shard whose server is gone (scalog-S17). So that shard is the
/// last one, or only clients of that server append, and nobody notices that the shard is stuck.
fn appends_fail(config: &ScalogConfig, evidence: &Evidence<'_>) -> Option<Reason> {
    evidence.appends.filter(|trouble| matches!(trouble, Trouble::NoSequencer | Trouble::NoQuorum))?;
    let all = config.all_shards().filter_map(|shard| not_whole(shard, evidence.cluster));
    let (urgency, node, why) = all.max_by_key(|(urgency, node, _)| (*urgency, std::cmp::Reverse(*node)))?;
    Some(Reason::new(node, urgency, format!("appends fail: a storage server on node {node} {why}")))
}

/// Returns the reason to use more servers again, after nodes were down.
fn of_shape(config: &ScalogConfig, cluster: &Picture) -> Option<Reason> {
    let wanted = config.wanted.0.saturating_mul(config.wanted.1) as usize;
    let servers = config.shards.iter().map(|shard| shard.servers.len()).sum::<usize>();
    let is_fit = |c: &&Candidate| c.log && c.alive && !c.failing && !c.draining && !c.leaving;
    let is_possible = cluster.candidates().filter(is_fit).count() >= wanted;
    let words = format!("{servers} of {wanted} storage servers are in use, and more nodes are up");
    let node = config.shards.first()?.servers.first()?.node;
    (servers < wanted && is_possible).then(|| Reason::new(node, Urgency::Calm, words).node_may_stay())
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
#[allow(clippy::unwrap_used)]
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
    fn a_shard_that_was_ended_does_not_hide_that_the_last_one_is_broken() {
        let config = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        let of = |cluster: &Picture, appends| {
            reason(&config, &Evidence { cluster, appends }, None).map(|r| (r.node, r.urgency))
        };
        let dead = Picture::all_well(5).without(3, Tick(99_000_000_000));
        assert_ne!(of(&dead, None).map(|(_, urgency)| urgency), Some(Urgency::AtOnce));
        for trouble in [Trouble::NoSequencer, Trouble::NoQuorum] {
            assert_eq!(of(&dead, Some(trouble)), Some((NodeId(3), Urgency::AtOnce)));
            assert_eq!(of(&Picture::all_well(5), Some(trouble)), None);
        }
        assert_ne!(of(&dead, Some(Trouble::DiskFull)).map(|(_, u)| u), Some(Urgency::AtOnce));
    }

    #[test]
    fn two_servers_of_a_shard_must_reach_each_other() {
        let cut = |cluster: Picture, one: u32, other: u32| {
            let mut cluster = cluster;
            for (a, b) in [(one, other), (other, one)] {
                let row = cluster.reach.rows.get_mut(&NodeId(a)).unwrap();
                row.reaches.retain(|node| *node != NodeId(b));
            }
            cluster
        };
        let one = cut(Picture::all_well(5), 1, 2);
        assert_eq!(seen(&one), None);
        assert_eq!(seen(&cut(one, 3, 4)), Some((NodeId(1), Urgency::Soon)));
    }

    #[test]
    fn servers_that_were_down_are_used_again() {
        let mut config = config(vec![shard(0, &[1, 2])]);
        config.wanted = (2, 2);
        let of = |members| {
            let cluster = Picture::all_well(members);
            reason(&config, &Evidence { cluster: &cluster, appends: None }, None)
                .map(|r| (r.words, r.urgency))
        };
        assert_eq!(of(3), None);
        let words = "2 of 4 storage servers are in use, and more nodes are up".to_owned();
        assert_eq!(of(4), Some((words, Urgency::Calm)));
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

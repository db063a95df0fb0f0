//! Why another Loglet should follow a Scalog Loglet. A dead server stops the appends of its own shard only, and the orderers end that shard
//! if others are live. So only a Loglet without any whole shard is urgent.

use atoll_contract::loglet::reason::Holders;
use atoll_contract::{Evidence, Reason, Urgency};
use atoll_core::{NodeId, StorageId};

use crate::config::{ScalogConfig, ShardSpec};
use crate::provider::STORAGE_ROLE;

/// Returns the most urgent reason, if there is one.
pub(crate) fn reason(config: &ScalogConfig, evidence: &Evidence<'_>) -> Option<Reason> {
    let cluster = evidence.cluster;
    let is_gone = |node: NodeId| {
        let life = cluster.members.get(&node).and_then(|sight| sight.life);
        cluster.is_removed(node) || (life.is_some_and(|l| !l.hears) && !cluster.reach.is_there(node))
    };
    let gone = |shard: &ShardSpec| shard.servers.iter().map(|s| s.node).find(|node| is_gone(*node));
    let broken: Vec<Option<NodeId>> = config.shards.iter().map(gone).collect();
    if let Some(Some(node)) = broken.first()
        && broken.iter().all(Option::is_some)
    {
        let words = format!("no shard is whole: its server on node {node} does not answer");
        return Some(Reason::new(*node, Urgency::AtOnce, words));
    }
    let all: Vec<NodeId> = config.shards.iter().flat_map(|s| &s.servers).map(|s| s.node).collect();
    config.shards.iter().find_map(|shard| {
        let nodes: Vec<(NodeId, StorageId)> = shard.servers.iter().map(|s| (s.node, s.storage)).collect();
        Holders { role: STORAGE_ROLE, nodes: &nodes, all: &all }.reason(evidence)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{config, shard};
    use atoll_contract::cluster::Picture;
    use atoll_core::Tick;

    fn seen(cluster: &Picture) -> Option<(NodeId, Urgency)> {
        let config = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        reason(&config, &Evidence { cluster, appends: None }).map(|r| (r.node, r.urgency))
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
}

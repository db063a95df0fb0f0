//! Why another loglet should follow a local one. It has no orderer, and while its only node is gone, nobody can seal it. So it can only
//! leave a node that is drained, or whose disk fails, while that node still answers.

use atoll_contract::loglet::reason::Holders;
use atoll_contract::{Evidence, Reason};

use crate::config::LocalConfig;
use crate::provider::SERVER;

/// Returns the reason, if there is one.
pub(crate) fn reason(config: &LocalConfig, evidence: &Evidence<'_>) -> Option<Reason> {
    let node = [(config.node, config.storage)];
    Holders { role: SERVER, nodes: &node, all: &[config.node] }.reason(evidence)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::Urgency;
    use atoll_contract::cluster::{Health, Picture};
    use atoll_core::{NodeId, StorageId};

    fn seen(cluster: &Picture) -> Option<Reason> {
        let config = LocalConfig { node: NodeId(2), storage: StorageId(2) };
        reason(&config, &Evidence { cluster, appends: None })
    }

    #[test]
    fn a_node_with_a_failing_disk_is_left_while_it_answers() {
        assert_eq!(seen(&Picture::all_well(2)), None);
        let full = Picture::all_well(2).with(2, |s| s.disk = Health::Full);
        let reason = seen(&full).expect("another node can take its place");
        assert_eq!(reason.words, "the disk of the server on node 2 has failed for long");
        assert_eq!((reason.urgency, reason.next.avoid), (Urgency::Calm, vec![NodeId(2)]));
    }

    #[test]
    fn a_log_on_the_only_node_stays_there() {
        let alone = Picture::all_well(1).with(1, |s| s.disk = Health::Full);
        let config = LocalConfig { node: NodeId(1), storage: StorageId(1) };
        assert_eq!(reason(&config, &Evidence { cluster: &alone, appends: None }), None);
    }
}

//! Why another loglet should follow a trio loglet: its clerk cannot pass appends on, or the store or the mirror should be replaced.

use atoll_contract::loglet::reason::{Holders, Orderer};
use atoll_contract::{Evidence, Reason};
use atoll_core::NodeId;

use crate::config::TrioConfig;
use crate::provider::{CLERK, MIRROR, STORE};

/// Returns the most urgent reason, if there is one. Appends wait for the clerk, which needs only the store.
pub(crate) fn reason(config: &TrioConfig, evidence: &Evidence<'_>) -> Option<Reason> {
    let TrioConfig { clerk: (node, life), store, mirror } = *config;
    let enough = |reached: &dyn Fn(NodeId) -> bool| reached(store.0);
    let clerk = Orderer { role: CLERK, node, life, enough: &enough };
    let all = [store.0, mirror.0];
    let holders = [(STORE, store), (MIRROR, mirror)];
    let of_holder = |(role, node)| Holders { role, nodes: &[node], all: &all }.reason(evidence);
    clerk.reason(evidence).or_else(|| holders.into_iter().find_map(of_holder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::cluster::Picture;
    use atoll_core::{Incarnation, StorageId, Tick};

    #[test]
    fn each_role_has_its_own_reason() {
        let config = TrioConfig {
            clerk: (NodeId(1), Incarnation(1)),
            store: (NodeId(2), StorageId(2)),
            mirror: (NodeId(3), StorageId(3)),
        };
        let words = |cluster: &Picture| {
            reason(&config, &Evidence { cluster, appends: None }).map(|reason| reason.words)
        };
        assert_eq!(words(&Picture::all_well(4)), None);
        let drained = |node| Picture::all_well(4).with(node, |s| s.candidate.draining = true);
        assert_eq!(words(&drained(1)), Some("node 1 is leaving and has the role clerk".to_owned()));
        assert_eq!(words(&drained(2)), Some("node 2 is drained".to_owned()));
        let gone = Picture::all_well(4).without(3, Tick(0));
        assert_eq!(words(&gone), Some("the mirror on node 3 has been gone for long".to_owned()));
    }
}

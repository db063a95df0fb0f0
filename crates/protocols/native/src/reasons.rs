//! Why another loglet should follow a native one: its sequencer cannot order appends any more, or a server should be replaced while a
//! majority still has every entry (virtuallog §5).

use atoll_contract::loglet::reason::{Holders, Orderer};
use atoll_contract::{Evidence, Reason};
use atoll_core::NodeId;

use crate::config::NativeConfig;
use crate::provider::{SEQUENCER, SERVER};

/// Returns whether these nodes are a majority of the servers.
pub(crate) fn is_quorum(config: &NativeConfig, reached: &dyn Fn(NodeId) -> bool) -> bool {
    config.servers.iter().filter(|(node, _)| reached(*node)).count() >= config.quorum()
}

/// Returns the most urgent reason, if there is one. Appends wait for the sequencer, so its reasons come first; without one server, they do
/// not wait.
pub(crate) fn reason(config: &NativeConfig, evidence: &Evidence<'_>) -> Option<Reason> {
    let (node, life) = config.sequencer;
    let enough = |reached: &dyn Fn(NodeId) -> bool| is_quorum(config, reached);
    let sequencer = Orderer { role: SEQUENCER, node, life, enough: &enough };
    let servers = Holders { role: SERVER, nodes: &config.servers, all: &config.nodes() };
    sequencer.reason(evidence).or_else(|| servers.reason(evidence))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::cluster::{Health, Picture};
    use atoll_contract::{Trouble, Urgency};
    use atoll_core::{Incarnation, StorageId, Tick};

    /// A loglet on nodes 1 to 3 of `cluster`, with the sequencer on node 2.
    fn seen(cluster: &Picture, appends: Option<Trouble>) -> Option<(String, Urgency)> {
        let servers = (1..=3).map(|n| (NodeId(n), StorageId(n.into()))).collect();
        let config = NativeConfig::new(servers, (NodeId(2), Incarnation(2))).unwrap();
        reason(&config, &Evidence { cluster, appends }).map(|r| (r.words, r.urgency))
    }

    fn words(words: &str, urgency: Urgency) -> Option<(String, Urgency)> {
        Some((words.to_owned(), urgency))
    }

    #[test]
    fn a_loglet_whose_nodes_are_well_stays() {
        assert_eq!(seen(&Picture::all_well(4), None), None);
        assert_eq!(seen(&Picture::all_well(3).without(3, Tick(0)), None), None, "there is no spare");
    }

    #[test]
    fn a_sequencer_that_is_lost_or_restarted_is_urgent() {
        use Urgency::AtOnce;
        let gone = Picture::all_well(4).without(2, Tick(0));
        assert_eq!(seen(&gone, None), words("the sequencer on node 2 does not answer", AtOnce));
        let again = Picture::all_well(4).with(2, |s| {
            s.life = s.life.map(|l| atoll_contract::cluster::Life { incarnation: Some(Incarnation(9)), ..l })
        });
        assert_eq!(seen(&again, None), words("the sequencer on node 2 was restarted", AtOnce));
        let told = seen(&Picture::all_well(4), Some(Trouble::WrongSequencer));
        assert_eq!(told, words("the sequencer on node 2 was restarted", AtOnce));
        assert_eq!(seen(&Picture::all_well(4), Some(Trouble::NoSequencer)), None, "one node's word");
    }

    #[test]
    fn a_server_is_replaced_once_it_is_gone_for_long() {
        let gone = |since| Picture::all_well(4).without(3, since);
        assert_eq!(seen(&gone(Tick(99_000_000_000)), None), None);
        let reason = words("the server on node 3 has been gone for long", Urgency::Calm);
        assert_eq!(seen(&gone(Tick(0)), None), reason);
        let disk = Picture::all_well(4).with(3, |s| s.disk = Health::Closed);
        assert!(seen(&disk, None).unwrap().0.starts_with("the disk of the server on node 3"));
    }
}

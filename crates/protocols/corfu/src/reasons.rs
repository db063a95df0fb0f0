//! Why another Loglet should follow a CORFU Loglet. Appends need every unit of a chain, so a unit that is gone or was restarted is as
//! urgent as a sequencer.

use atoll_contract::loglet::reason::{Holders, Orderer};
use atoll_contract::{Evidence, Reason};
use atoll_core::{Incarnation, NodeId};

use crate::projection::Projection;
use crate::provider::{SEQUENCER_ROLE, UNIT_ROLE};

/// Returns whether these nodes have a unit of each chain. That suffices to seal, because all units of a chain have the same positions below
/// the tail.
pub(crate) fn can_seal(projection: &Projection, reached: &dyn Fn(NodeId) -> bool) -> bool {
    projection.active().chains.iter().all(|chain| chain.units.iter().any(|unit| reached(unit.0)))
}

/// Returns the most urgent reason, if there is one: the sequencer's, then those of units that hold up appends, then those of units that
/// should be replaced.
pub(crate) fn reason(projection: &Projection, evidence: &Evidence<'_>) -> Option<Reason> {
    let (node, life) = projection.sequencer;
    let enough = |reached: &dyn Fn(NodeId) -> bool| {
        projection.active().chains.iter().flat_map(|chain| &chain.units).all(|unit| reached(unit.0))
    };
    let sequencer = Orderer { role: SEQUENCER_ROLE, node, life, enough: &enough };
    // Appenders report problems with the sequencer only.
    let cluster_only = Evidence { appends: None, ..*evidence };
    let of_unit = |(node, life): &(NodeId, Incarnation)| {
        // A unit works with no other node. It is enough if some member hears it.
        let is_heard = |_: &dyn Fn(NodeId) -> bool| evidence.cluster.reach.is_there(*node);
        let unit = Orderer { role: UNIT_ROLE, node: *node, life: *life, enough: &is_heard };
        unit.reason(&cluster_only)
    };
    let units = projection.units();
    let all: Vec<NodeId> = units.iter().map(|unit| unit.0).collect();
    let holders = Holders { role: UNIT_ROLE, nodes: &units, all: &all };
    let reason = sequencer.reason(evidence).or_else(|| projection.lives.iter().find_map(of_unit));
    reason.or_else(|| holders.reason(evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::projection::UnitId;
    use atoll_contract::Urgency;
    use atoll_contract::cluster::Picture;
    use atoll_core::{StorageId, Tick};

    /// A Loglet with one chain of two units on nodes 1 and 2 of `cluster`, and the sequencer on node 3.
    fn seen(cluster: &Picture) -> Option<(String, Urgency)> {
        let unit = |n: u32| -> UnitId { (NodeId(n), StorageId(n.into())) };
        let life = |n: u32| (NodeId(n), Incarnation(n.into()));
        let mut projection = Projection::simple(1, life(3), 1, vec![vec![unit(1), unit(2)]]);
        projection.lives = vec![life(1), life(2)];
        reason(&projection, &Evidence { cluster, appends: None }).map(|r| (r.words, r.urgency))
    }

    #[test]
    fn a_unit_that_is_gone_is_as_urgent_as_the_sequencer() {
        assert_eq!(seen(&Picture::all_well(4)), None);
        for (node, role) in [(1, "unit"), (2, "unit"), (3, "sequencer")] {
            let words = format!("the {role} on node {node} does not answer");
            let found = seen(&Picture::all_well(4).without(node, Tick(0)));
            assert_eq!(found, Some((words, Urgency::AtOnce)));
        }
    }
}

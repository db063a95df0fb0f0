//! Why another Loglet should follow a CORFU Loglet. Appends need every unit of a chain, so a unit that is gone, or that has lost its data
//! directory, is as urgent as a sequencer. A unit that was restarted serves again.

use atoll_contract::loglet::reason::{Holders, Orderer};
use atoll_contract::{Evidence, Reason, Trouble, Urgency};
use atoll_core::{Candidate, NodeId};

use crate::projection::{Projection, UnitId};
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
    // Only the sequencer's own refusal is evidence against it: every other trouble may be that of a unit.
    let refused = evidence.appends.filter(|trouble| *trouble == Trouble::WrongSequencer);
    let units = projection.units();
    let all: Vec<NodeId> = units.iter().map(|unit| unit.0).collect();
    let holders = Holders { role: UNIT_ROLE, nodes: &units, all: &all };
    sequencer
        .reason(&Evidence { appends: refused, ..*evidence })
        .or_else(|| units.iter().find_map(|unit| of_unit(*unit, evidence)))
        .or_else(|| holders.reason(evidence))
        .or_else(|| of_shape(projection, evidence))
}

/// Returns the reason to use more units again, after nodes were down.
fn of_shape(projection: &Projection, evidence: &Evidence<'_>) -> Option<Reason> {
    let wanted = projection.wanted.0.saturating_mul(projection.wanted.1) as usize;
    let units = projection.units();
    let is_fit = |c: &&Candidate| c.log && c.alive && !c.failing && !c.draining && !c.leaving;
    let is_possible = evidence.cluster.candidates().filter(is_fit).count() >= wanted;
    let words = format!("{} of {wanted} units are in use, and more nodes are up", units.len());
    let node = units.first()?.0;
    (units.len() < wanted && is_possible).then(|| Reason::new(node, Urgency::Calm, words).node_may_stay())
}

/// Returns the reason for which appends wait for a unit, or will once it leaves.
fn of_unit((node, storage): UnitId, evidence: &Evidence<'_>) -> Option<Reason> {
    let sight = evidence.cluster.members.get(&node);
    // Its new data directory may hold new entries, but nothing of this Loglet (corfu-C16).
    if sight.is_some_and(|sight| sight.storage.0 != 0 && sight.storage != storage) {
        let words = format!("node {node} has another data directory");
        return Some(Reason::new(node, Urgency::AtOnce, words).node_may_stay());
    }
    // A unit works with no other node. It is enough if some member hears it. Any life of its node will do.
    let is_heard = |_: &dyn Fn(NodeId) -> bool| evidence.cluster.reach.is_there(node);
    let life = sight.and_then(|sight| sight.life?.incarnation).unwrap_or_default();
    let unit = Orderer { role: UNIT_ROLE, node, life, enough: &is_heard };
    unit.reason(&Evidence { appends: None, ..*evidence })
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::cluster::{Life, Picture};
    use atoll_core::{Incarnation, StorageId, Tick};

    /// A Loglet with one chain of two units on nodes 1 and 2, and the sequencer on node 3.
    fn found(cluster: &Picture, appends: Option<Trouble>) -> Option<(String, Urgency)> {
        let unit = |n: u32| -> UnitId { (NodeId(n), StorageId(n.into())) };
        let sequencer = (NodeId(3), Incarnation(3));
        let projection = Projection::simple(1, sequencer, 1, vec![vec![unit(1), unit(2)]]);
        reason(&projection, &Evidence { cluster, appends }).map(|r| (r.words, r.urgency))
    }

    #[test]
    fn a_unit_that_is_gone_is_as_urgent_as_the_sequencer() {
        assert_eq!(found(&Picture::all_well(4), None), None);
        for (node, role) in [(1, "unit"), (2, "unit"), (3, "sequencer")] {
            let words = format!("the {role} on node {node} does not answer");
            let reason = found(&Picture::all_well(4).without(node, Tick(0)), None);
            assert_eq!(reason, Some((words, Urgency::AtOnce)));
        }
    }

    #[test]
    fn a_unit_may_restart_but_not_lose_its_disk() {
        let again = |life: Life| Life { incarnation: Some(Incarnation(77)), ..life };
        let restarted = |node| Picture::all_well(4).with(node, |s| s.life = s.life.map(again));
        assert_eq!(found(&restarted(1), None), None);
        let words = "the sequencer on node 3 was restarted".to_owned();
        assert_eq!(found(&restarted(3), None), Some((words, Urgency::AtOnce)));
        let lost = Picture::all_well(4).with(2, |s| s.storage = StorageId(99));
        let words = "node 2 has another data directory".to_owned();
        assert_eq!(found(&lost, None), Some((words, Urgency::AtOnce)));
    }

    #[test]
    fn units_that_were_down_are_used_again() {
        let unit = |n: u32| -> UnitId { (NodeId(n), StorageId(n.into())) };
        let mut projection =
            Projection::simple(1, (NodeId(1), Incarnation(1)), 1, vec![vec![unit(1), unit(2)]]);
        let found = |projection: &Projection, members| {
            let cluster = Picture::all_well(members);
            reason(projection, &Evidence { cluster: &cluster, appends: None }).map(|r| (r.words, r.urgency))
        };
        assert_eq!(found(&projection, 3), None);
        projection.wanted = (3, 1);
        let words = "2 of 3 units are in use, and more nodes are up".to_owned();
        assert_eq!(found(&projection, 3), Some((words, Urgency::Calm)));
        assert_eq!(found(&projection, 2), None);
    }

    #[test]
    fn a_unit_that_fails_is_not_the_fault_of_the_sequencer() {
        for trouble in [Trouble::SequencerFailed, Trouble::NoQuorum, Trouble::NoSequencer, Trouble::DiskFull]
        {
            assert_eq!(found(&Picture::all_well(4), Some(trouble)), None);
        }
        let words = "the sequencer on node 3 was restarted".to_owned();
        let refused = found(&Picture::all_well(4), Some(Trouble::WrongSequencer));
        assert_eq!(refused, Some((words, Urgency::AtOnce)));
    }
}

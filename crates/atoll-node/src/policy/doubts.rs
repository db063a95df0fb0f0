//! Decides whether evidence from this node's appenders counts against a sequencer or against this node. It is a state machine without a
//! clock.
//!
//! A node whose own links are slow or lose packets has evidence against every sequencer except its own. If each piece of evidence moved the
//! log, the log would move again and again until the links recover (vlog-V18). So a node remembers the members that it does not work well
//! with, whichever of the two noticed. Once these are a majority of the other members, the likely cause is this node. Sequencers that fail
//! one after the other are still replaced, as long as they are a minority.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{NodeId, Tick};

use crate::mutants;
use atoll_contract::cluster::reach::is_majority;

/// How long a node remembers that it did not work well with another. This is longer than a log takes to move and produce new evidence.
const REMEMBERED_FOR: Duration = Duration::from_secs(10);

/// See the module documentation. Bounded by the number of members.
#[derive(Clone, Debug, Default)]
pub struct Doubts {
    /// The members that this node did not work well with, and when there was last evidence of that.
    bad: BTreeMap<NodeId, Tick>,
}

impl Doubts {
    /// Records that another member reports that it cannot work with this node.
    pub fn heard(&mut self, now: Tick, from: NodeId) {
        self.bad.insert(from, now);
    }

    /// Records evidence of this node, `me`, against the sequencer on node `against`. `others` is the number of members besides `me`.
    /// Returns the nodes to distrust: either all that this node does not work well with, or only this node.
    pub fn weigh(&mut self, now: Tick, me: NodeId, against: NodeId, others: usize) -> Vec<NodeId> {
        self.bad.retain(|_, last| now.since(*last) < REMEMBERED_FOR);
        if against == me {
            return vec![me];
        }
        self.bad.insert(against, now);
        if mutant(mutants::POLICY_NEVER_ME) {
            return vec![against];
        }
        if self.bad.len() < 2 || !is_majority(self.bad.len(), others) {
            // Returning only `against` would let the log move back to a node that it left for the same reason.
            return self.bad.keys().copied().collect();
        }
        hit("policy.it_is_me");
        // Refresh all of them while the problem lasts. The log stays with one of them, so only that one produces new evidence.
        self.bad.values_mut().for_each(|last| *last = now);
        vec![me]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: NodeId = NodeId(1);

    fn at(seconds: u64) -> Tick {
        Tick(0).after(Duration::from_secs(seconds))
    }

    #[test]
    fn one_of_two_others_is_to_blame_and_both_are_not() {
        let mut doubts = Doubts::default();
        assert_eq!(doubts.weigh(at(0), ME, NodeId(2), 2), [NodeId(2)]);
        assert_eq!(doubts.weigh(at(1), ME, NodeId(2), 2), [NodeId(2)], "the same again");
        assert_eq!(doubts.weigh(at(5), ME, NodeId(3), 2), [ME]);
        for seconds in (6..60).step_by(5) {
            assert_eq!(doubts.weigh(at(seconds), ME, NodeId(3), 2), [ME], "for as long as it continues");
        }
        assert_eq!(doubts.weigh(at(71), ME, NodeId(3), 2), [NodeId(3)], "it was over");
    }

    #[test]
    fn what_others_say_of_this_node_counts_as_much() {
        let mut doubts = Doubts::default();
        doubts.heard(at(0), NodeId(2));
        doubts.heard(at(0), NodeId(3));
        assert_eq!(doubts.weigh(at(1), ME, NodeId(2), 2), [ME]);
    }

    #[test]
    fn of_five_two_may_fail_one_after_the_other() {
        let mut doubts = Doubts::default();
        assert_eq!(doubts.weigh(at(0), ME, NodeId(2), 4), [NodeId(2)]);
        assert_eq!(doubts.weigh(at(3), ME, NodeId(3), 4), [NodeId(2), NodeId(3)]);
        assert_eq!(doubts.weigh(at(6), ME, NodeId(4), 4), [ME]);
    }

    #[test]
    fn of_two_nodes_the_other_is_to_blame_and_a_node_may_blame_itself() {
        let mut doubts = Doubts::default();
        assert_eq!(doubts.weigh(at(0), ME, NodeId(2), 1), [NodeId(2)]);
        assert_eq!(doubts.weigh(at(0), ME, ME, 1), [ME]);
    }
}

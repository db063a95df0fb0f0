//! How a client finds the leader of a shard, without replacing one that is only slow.
//!
//! Replicas that do not lead name the leader that they have voted for. A replica that does not hear that leader stands at once when it is
//! asked (`node.rs`), so a dead leader needs no word from clients. A leader that others hear is asked again, with more time for its answer.
//! Only if it does not answer for long, or says itself that it does not lead, the client *insists*: it asks another replica to lead.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{NodeId, Tick};

/// How many times the usual time an attempt has at most.
const MOST_PATIENCE: u32 = 4;

/// The state of one search. It belongs to one request.
#[derive(Debug)]
pub(crate) struct Search {
    nodes: Arc<[NodeId]>,
    /// The node of the next attempt.
    pub(crate) node: NodeId,
    /// Whether that node should lead.
    pub(crate) insist: bool,
    /// The nodes that leave attempts without an answer: since when, and how many times the usual time their next attempt has.
    silent: BTreeMap<NodeId, (Tick, u32)>,
    /// The nodes that have said that they do not lead, one after the other, since the last attempt without an answer. What a node said
    /// before that may be old.
    denied: BTreeSet<NodeId>,
}

impl Search {
    /// Begins with the leader of the last search, or with the first replica. There is at least one.
    pub(crate) fn new(nodes: Arc<[NodeId]>, last: Option<NodeId>) -> Self {
        let node = last.filter(|node| nodes.contains(node)).unwrap_or(nodes[0]);
        Search { nodes, node, insist: false, silent: BTreeMap::new(), denied: BTreeSet::new() }
    }

    /// Returns how long the next attempt may take, if one usually takes `attempt` at most.
    pub(crate) fn wait(&self, attempt: Duration) -> Duration {
        attempt * self.silent.get(&self.node).map_or(1, |(_, patience)| *patience)
    }

    /// The node has answered, so it is not silent. Returns its answer.
    pub(crate) fn heard<T>(&mut self, answer: T) -> T {
        self.silent.remove(&self.node);
        answer
    }

    fn next(&self, after: NodeId) -> NodeId {
        let at = self.nodes.iter().position(|node| *node == after).unwrap_or(0);
        self.nodes[(at + 1) % self.nodes.len()]
    }

    fn aim(&mut self, node: NodeId, insist: bool) {
        (self.node, self.insist) = (node, insist);
        if insist {
            self.denied.clear();
        }
    }

    /// The attempt that began at `began` has got no answer. Another replica may know whether the node is gone. If it is not, the next
    /// attempt has more time, unless time was not what this one lacked.
    pub(crate) fn no_answer(&mut self, began: Tick, timed_out: bool) {
        let (_, patience) = self.silent.entry(self.node).or_insert((began, 1));
        if timed_out {
            *patience = (*patience * 2).min(MOST_PATIENCE);
        }
        self.denied.clear();
        self.aim(self.next(self.node), false);
    }

    /// The node cannot lead: its disk has failed, or it has forgotten the shard.
    pub(crate) fn cannot_lead(&mut self) {
        self.aim(self.next(self.node), true);
    }

    /// The node knows that the shard moves, and not yet where to. Another one may know it.
    pub(crate) fn moves(&mut self) {
        self.aim(self.next(self.node), false);
    }

    /// The node says that it does not lead, and which one does as far as it knows.
    pub(crate) fn not_leader(&mut self, now: Tick, depose_after: Duration, leader: Option<NodeId>) {
        let node = self.node;
        self.denied.insert(node);
        let other = |leader: &NodeId| *leader != node && self.nodes.contains(leader);
        match leader.filter(other) {
            Some(leader) if self.is_silent(now, depose_after, leader) => {
                hit("bizur.client.deposes");
                self.aim(node, true);
            }
            // Each of two replicas may take the other one for the leader, after an election that nobody has won.
            Some(leader) if self.denied.contains(&leader) => {
                hit("bizur.client.nobody_leads");
                self.aim(node, true);
            }
            Some(leader) => self.aim(leader, false),
            None => {
                let next = self.next(node);
                self.aim(next, self.denied.contains(&next));
            }
        }
    }

    fn is_silent(&self, now: Tick, depose_after: Duration, leader: NodeId) -> bool {
        self.silent.get(&leader).is_some_and(|(since, _)| now.since(*since) >= depose_after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: Duration = Duration::from_millis(150);
    const DEPOSE: Duration = Duration::from_millis(1_500);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn at(ms: u64) -> Tick {
        Tick(ms * 1_000_000)
    }

    fn search(first: NodeId) -> Search {
        Search::new([A, B, C].into(), Some(first))
    }

    fn aim(search: &Search) -> (NodeId, bool, Duration) {
        (search.node, search.insist, search.wait(ATTEMPT))
    }

    #[test]
    fn a_slow_leader_that_others_hear_gets_more_time() {
        let mut s = search(A);
        s.no_answer(at(0), true);
        assert_eq!(aim(&s), (B, false, ATTEMPT), "another one may know that it is gone");
        s.not_leader(at(160), DEPOSE, Some(A));
        assert_eq!(aim(&s), (A, false, ATTEMPT * 2));
        s.no_answer(at(160), true);
        s.not_leader(at(470), DEPOSE, Some(A));
        assert_eq!(aim(&s), (A, false, ATTEMPT * 4));
        // It answers, if only that it is busy.
        s.heard(());
        assert_eq!(aim(&s), (A, false, ATTEMPT));
    }

    #[test]
    fn a_leader_that_answers_nothing_for_long_is_replaced() {
        let mut s = search(A);
        let mut now = 0;
        while now < 1_500 {
            s.no_answer(at(now), false);
            now += 100;
            s.not_leader(at(now), DEPOSE, Some(A));
            assert_eq!(s.insist, now >= 1_500, "after {now} ms");
        }
        assert_eq!(aim(&s), (B, true, ATTEMPT));
    }

    #[test]
    fn two_replicas_that_name_each_other_do_not_lead() {
        let mut s = search(B);
        s.not_leader(at(0), DEPOSE, Some(C));
        assert_eq!(aim(&s), (C, false, ATTEMPT));
        s.not_leader(at(1), DEPOSE, Some(B));
        assert_eq!(aim(&s), (C, true, ATTEMPT));
    }

    #[test]
    fn what_a_node_said_before_a_silence_is_no_reason_to_replace_it() {
        let mut s = search(B);
        s.not_leader(at(0), DEPOSE, Some(C));
        s.no_answer(at(1), true);
        assert_eq!(s.node, A);
        // In the meantime, the first one was elected.
        s.not_leader(at(200), DEPOSE, Some(B));
        assert_eq!(aim(&s), (B, false, ATTEMPT));
    }
}

//! How a client finds the leader of a shard, without replacing one that is only slow.
//!
//! Replicas that do not lead name the leader that they have voted for. A replica that does not hear that leader stands at once when it is
//! asked (`node.rs`), so a dead leader needs no word from clients. A leader that others hear is asked again, with more time for its answer.
//! Only if it does not answer for long, or says itself that it does not lead, the client *insists*: it asks another replica to lead.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{NodeId, Tick};

/// How many times the usual time an attempt has at most.
const MOST_PATIENCE: u32 = 4;

/// The state of one search. It belongs to one request.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) nodes: Vec<NodeId>,
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
    pub(crate) fn new(nodes: Vec<NodeId>, last: Option<NodeId>) -> Self {
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

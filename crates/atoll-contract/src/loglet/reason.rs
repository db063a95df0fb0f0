//! Reasons to reconfigure: why another Loglet should follow the active one. Each kind has its own; the node supplies what it knows, decides
//! when to act, and knows none of them.
//!
//! The rules here are those that many kinds share: for a node that orders appends in one life of its process, and for nodes that hold
//! entries in a data directory. A kind combines them as it needs, once for each of its parts if it has several, and adds its own.

use std::fmt;

use atoll_core::{Incarnation, NodeId, StorageId};

use super::{LogletSpec, Unavailability};
use crate::cluster::{Health, Picture};

/// A problem that an appender met. It is evidence for the policy, which decides whether to extend (virtuallog §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The sequencer does not answer.
    NoSequencer,
    /// The sequencer is in another life than the configuration names: the segment will never accept an append again.
    WrongSequencer,
    /// The sequencer's journal is closed permanently.
    SequencerFailed,
    /// Not enough servers answer.
    NoQuorum,
    /// A disk is full. This ends without an extend once there is space again.
    DiskFull,
}

impl Trouble {
    /// Returns the problem that an append with this outcome met. None if the outcome says nothing about the Loglet.
    pub fn of(why: Unavailability) -> Option<Trouble> {
        match why {
            Unavailability::NoSequencer => Some(Trouble::NoSequencer),
            Unavailability::WrongSequencer => Some(Trouble::WrongSequencer),
            Unavailability::StorageFailed => Some(Trouble::SequencerFailed),
            Unavailability::NoQuorum => Some(Trouble::NoQuorum),
            Unavailability::DiskFull => Some(Trouble::DiskFull),
            Unavailability::Busy | Unavailability::TooLarge | Unavailability::Stopping => None,
        }
    }
}

/// How soon a node acts on a [`Reason`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The Loglet works. The reason must last for a while, and a Loglet that is young is left alone for longer.
    Calm,
    /// Appends wait, but the reason depends on reports of which members reach each other. After a change, such reports contradict each
    /// other for some heartbeats, so the reason must last for that long.
    Soon,
    /// Appends wait, and what this node knows is enough to act at once.
    AtOnce,
}

/// Why another Loglet should follow the active one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The node that it is about. Reasons about the same node count as one cause.
    pub node: NodeId,
    /// How soon the node acts.
    pub urgency: Urgency,
    /// Whether the node that it is about knows this best, and acts without waiting for its turn.
    pub first_hand: bool,
    /// What the next Loglet should be like. The node adds the members that seem to be down, failing or leaving to those to avoid.
    pub next: LogletSpec,
    /// The reason in words, for `atoll status` and for the log of the node.
    pub words: String,
}

impl Reason {
    /// Returns a reason that is about a node. The next Loglet should avoid the node.
    pub fn new(node: NodeId, urgency: Urgency, words: impl Into<String>) -> Self {
        let next = LogletSpec::default().avoiding([node]);
        Reason { node, urgency, first_hand: false, next, words: words.into() }
    }

    /// Lets the next Loglet use the node again.
    #[must_use]
    pub fn node_may_stay(mut self) -> Self {
        self.next.avoid.retain(|node| *node != self.node);
        self
    }

    /// Lets the node that it is about act without waiting for its turn.
    #[must_use]
    pub fn known_first_hand(mut self) -> Self {
        self.first_hand = true;
        self
    }

    /// Whether appends wait until the log is extended.
    pub fn is_urgent(&self) -> bool {
        self.urgency != Urgency::Calm
    }

    /// Whether the reason must last for a while before a node acts.
    pub fn must_last(&self) -> bool {
        self.urgency != Urgency::AtOnce
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// What a node knows that may be a reason to reconfigure a Loglet.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The cluster.
    pub cluster: &'a Picture,
    /// The problem that appenders of this Loglet on this node have reported since the last look.
    pub appends: Option<Trouble>,
}

/// Decides whether the nodes for which a predicate is true suffice for something.
pub type Enough<'a> = dyn Fn(&dyn Fn(NodeId) -> bool) -> bool + 'a;

/// The node that orders the appends of a Loglet, or of one of its parts.
#[derive(Clone, Copy)]
pub struct Orderer<'a> {
    /// The role, as operators call it.
    pub role: &'a str,
    /// The node.
    pub node: NodeId,
    /// The life of its process that orders (native-T6).
    pub life: Incarnation,
    /// Whether these nodes suffice for it to acknowledge appends, and to seal.
    pub enough: &'a Enough<'a>,
}

impl Orderer<'_> {
    /// Returns the reason to move the orderer, if there is one, in the order of urgency.
    pub fn reason(&self, evidence: &Evidence<'_>) -> Option<Reason> {
        use Urgency::{AtOnce, Calm, Soon};
        let (cluster, node, role) = (evidence.cluster, self.node, self.role);
        let leaving = || {
            Reason::new(node, AtOnce, format!("node {node} is leaving and has the role {role}"))
                .known_first_hand()
        };
        // First, because nothing else is known about a node that is no longer a member.
        if cluster.is_removed(node) {
            return Some(leaving());
        }
        let sight = cluster.members.get(&node);
        let life = sight.and_then(|s| s.life);
        let lost = life.is_some_and(|l| !l.hears);
        let has_quorum = (self.enough)(&|holder| cluster.reach.pair(holder, node));
        if lost && !has_quorum {
            return Some(Reason::new(node, AtOnce, format!("the {role} on node {node} does not answer")));
        }
        let now = life.and_then(|l| l.incarnation);
        if !lost && now.is_some_and(|life| life != self.life) {
            return Some(self.restarted());
        }
        // A node that some members do not reach is still a good server.
        if !has_quorum && self.has_better(cluster) {
            let words = format!("the {role} on node {node} reaches too few of the nodes that hold the log");
            return Some(Reason::new(node, Soon, words).node_may_stay());
        }
        if sight.is_some_and(|s| s.candidate.draining || s.candidate.leaving) {
            return Some(leaving());
        }
        match sight.map(|s| s.disk) {
            Some(Health::Hanging | Health::Closed) if cluster.other_orderers(node).next().is_some() => {
                Some(self.failing())
            }
            _ if self.has_better(cluster) => {
                let words = format!("members cannot reach the {role} on node {node}");
                Some(Reason::new(node, Calm, words).node_may_stay())
            }
            _ => self.after_appends(evidence.appends?),
        }
    }

    /// Returns the reason for which an appender's report is sufficient evidence, if any. It is sufficient only if the orderer itself
    /// answered.
    fn after_appends(&self, trouble: Trouble) -> Option<Reason> {
        match trouble {
            Trouble::WrongSequencer => Some(self.restarted()),
            Trouble::SequencerFailed => Some(self.failing()),
            Trouble::NoSequencer | Trouble::NoQuorum | Trouble::DiskFull => None,
        }
    }

    /// Its new life does not know which positions the old one assigned (native-T6), but may serve the next Loglet.
    fn restarted(&self) -> Reason {
        let words = format!("the {} on node {} was restarted", self.role, self.node);
        Reason::new(self.node, Urgency::AtOnce, words).node_may_stay().known_first_hand()
    }

    fn failing(&self) -> Reason {
        let words = format!("the disk of node {}, which has the role {}, fails", self.node, self.role);
        Reason::new(self.node, Urgency::AtOnce, words)
    }

    /// Whether another node would be a better orderer: enough holders can work with it, and more members can work with it than with this
    /// one (vlog-V18).
    fn has_better(&self, cluster: &Picture) -> bool {
        let now = cluster.use_of(self.node);
        let enough = |node| (self.enough)(&|holder| cluster.reach.works(holder, node));
        cluster.other_orderers(self.node).any(|node| enough(node) && cluster.use_of(node) > now)
    }
}

/// Nodes that hold the same entries, of which any may be replaced by a spare one.
#[derive(Clone, Copy, Debug)]
pub struct Holders<'a> {
    /// The role, as operators call it.
    pub role: &'a str,
    /// The nodes, with the data directories that hold the entries (native-T8).
    pub nodes: &'a [(NodeId, StorageId)],
    /// All nodes that hold entries of the Loglet: none of them is a spare for another one.
    pub all: &'a [NodeId],
}

impl Holders<'_> {
    /// Returns the reason to replace one of the nodes, if there is one.
    pub fn reason(&self, evidence: &Evidence<'_>) -> Option<Reason> {
        let (cluster, role) = (evidence.cluster, self.role);
        let spare = cluster.has_spare_holder(self.all);
        let can_leave = cluster.can_do_without_drained(self.all.len());
        self.nodes.iter().find_map(|(node, storage)| {
            let calm = |words: String| Some(Reason::new(*node, Urgency::Calm, words));
            let Some(sight) = cluster.members.get(node) else {
                let is_removed = spare && cluster.is_removed(*node);
                return is_removed.then(|| calm(format!("node {node} is drained"))).flatten();
            };
            if sight.storage.0 != 0 && sight.storage != *storage {
                // Its new data directory may hold new entries.
                return calm(format!("node {node} has another data directory")).map(Reason::node_may_stay);
            }
            if can_leave && sight.candidate.draining {
                return calm(format!("node {node} is drained"));
            }
            let is_gone = |life: &crate::cluster::Life| !life.hears && !life.is_up;
            if spare && sight.life.filter(is_gone).is_some_and(|life| cluster.is_long_ago(life.since)) {
                return calm(format!("the {role} on node {node} has been gone for long"));
            }
            if spare && sight.disk != Health::Fine && cluster.is_long_ago(sight.disk_since) {
                return calm(format!("the disk of the {role} on node {node} has failed for long"));
            }
            None
        })
    }
}

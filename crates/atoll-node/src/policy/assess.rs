//! What is wrong with a log's active segment, if anything, and which Loglet should follow: a pure function.

use std::time::Duration;

use atoll_core::{Candidate, Directory, Identity, NodeId, Tick};
use atoll_log::{LogletSpec, Members as LogletMembers};

use crate::members::Members;
use crate::settings::Timings;

/// Why a segment should be followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The sequencer's node is suspected: appends wait.
    SequencerGone(NodeId),
    /// The sequencer's node lives another life and has forgotten its positions (native T6).
    SequencerRestarted(NodeId),
    /// The sequencer's node is about to stop, is drained, or was removed.
    SequencerLeaving(NodeId),
    /// A server has another data directory than the segment names (native T8).
    StorageReplaced(NodeId),
    /// A server is drained for good, or was removed.
    ServerDrained(NodeId),
    /// A server was gone for long, and another can take its place.
    ServerGone(NodeId),
}

impl Reason {
    /// Appends wait for this: act at once.
    pub fn is_urgent(self) -> bool {
        matches!(self, Reason::SequencerGone(_) | Reason::SequencerRestarted(_) | Reason::SequencerLeaving(_))
    }

    /// The node it is about.
    pub fn node(self) -> NodeId {
        match self {
            Reason::SequencerGone(n)
            | Reason::SequencerRestarted(n)
            | Reason::SequencerLeaving(n)
            | Reason::StorageReplaced(n)
            | Reason::ServerDrained(n)
            | Reason::ServerGone(n) => n,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::SequencerGone(n) => write!(f, "the sequencer on node {n} does not answer"),
            Reason::SequencerRestarted(n) => write!(f, "the sequencer on node {n} was restarted"),
            Reason::SequencerLeaving(n) => write!(f, "node {n} is leaving and holds the sequencer"),
            Reason::StorageReplaced(n) => write!(f, "node {n} has another data directory"),
            Reason::ServerDrained(n) => write!(f, "node {n} is drained"),
            Reason::ServerGone(n) => write!(f, "the server on node {n} has been gone for long"),
        }
    }
}

/// Whether a segment of so many servers can be laid out without the nodes that are being drained, now: otherwise moving it
/// would put it where it was.
pub fn can_do_without_drained(candidates: &[Candidate], servers: usize) -> bool {
    let staying = || candidates.iter().filter(|c| c.log && !c.draining);
    let wanted = servers.min(staying().count());
    let wanted = if wanted.is_multiple_of(2) { wanted.saturating_sub(1) } else { wanted };
    wanted > 0 && staying().filter(|c| c.alive).count() >= wanted
}

/// Everything that an assessment looks at.
#[derive(Debug)]
pub struct View<'a> {
    /// The members and their lives.
    pub members: &'a Members,
    /// This node.
    pub me: &'a Identity,
    /// Now.
    pub now: Tick,
    /// When things count as gone.
    pub timings: &'a Timings,
}

impl View<'_> {
    /// Whether a node is no member any more: somebody with an old table made a segment on it as it was removed.
    fn is_removed(&self, node: NodeId) -> bool {
        let table = self.members.table();
        table.version > 0 && !table.nodes.contains_key(&node)
    }

    fn sequencer(&self, active: &LogletMembers, candidates: &[Candidate]) -> Option<Reason> {
        let (node, incarnation) = active.sequencer?;
        if node == self.me.node {
            return if incarnation != self.me.incarnation {
                Some(Reason::SequencerRestarted(node))
            } else if self.me.draining || self.me.failed || self.is_removed(node) {
                Some(Reason::SequencerLeaving(node))
            } else {
                None
            };
        }
        let leaving = candidates.iter().any(|c| c.node == node && (c.draining || c.leaving));
        match self.members.liveness(node) {
            Some(life) if !life.alive => Some(Reason::SequencerGone(node)),
            Some(life) if life.incarnation.is_some_and(|i| i != incarnation) => {
                Some(Reason::SequencerRestarted(node))
            }
            _ if leaving || self.is_removed(node) => Some(Reason::SequencerLeaving(node)),
            _ => None,
        }
    }

    fn server(&self, active: &LogletMembers, candidates: &[Candidate]) -> Option<Reason> {
        let table = self.members.table();
        let inside = |node: NodeId| active.servers.iter().any(|(n, _)| *n == node);
        let spare =
            candidates.iter().any(|c| c.log && c.alive && !c.draining && !c.leaving && !inside(c.node));
        let can_leave = can_do_without_drained(candidates, active.servers.len());
        for (node, storage) in &active.servers {
            let row = table.nodes.get(node);
            let known = if *node == self.me.node { Some(self.me.storage) } else { row.map(|r| r.storage) };
            if known.is_some_and(|s| s.0 != 0 && s != *storage) {
                return Some(Reason::StorageReplaced(*node));
            }
            if (can_leave && row.is_some_and(|r| r.draining)) || (spare && self.is_removed(*node)) {
                return Some(Reason::ServerDrained(*node));
            }
            let gone = self.members.liveness(*node).filter(|l| !l.alive);
            let long = gone.is_some_and(|l| self.now.since(l.since) >= self.timings.replace_server_after);
            if spare && long {
                return Some(Reason::ServerGone(*node));
            }
        }
        None
    }

    /// What is wrong with a segment, the most urgent first. None: leave it alone.
    pub fn assess(&self, active: &LogletMembers) -> Option<Reason> {
        let candidates = self.members.candidates();
        self.sequencer(active, &candidates).or_else(|| self.server(active, &candidates))
    }

    /// The next segment: like the active one, without the nodes that are gone or leaving.
    pub fn remedy(&self, reason: Reason) -> LogletSpec {
        let mut avoid: Vec<NodeId> = self
            .members
            .candidates()
            .iter()
            .filter(|c| !c.alive || c.draining || c.leaving)
            .map(|c| c.node)
            .collect();
        // A restarted sequencer may serve again, in its new life; a replaced disk may hold new entries.
        if !matches!(reason, Reason::SequencerRestarted(_) | Reason::StorageReplaced(_)) {
            avoid.push(reason.node());
        }
        avoid.sort_unstable();
        avoid.dedup();
        LogletSpec { avoid, ..LogletSpec::default() }
    }

    /// How long this node waits before it acts, so that not all of them act at once: its rank among the living, the node
    /// in question last.
    pub fn patience(&self, reason: Reason) -> Duration {
        if reason.node() == self.me.node {
            return Duration::ZERO;
        }
        let others = self.members.candidates();
        let rank = others
            .iter()
            .filter(|c| {
                c.alive && !c.draining && !c.leaving && c.node != reason.node() && c.node < self.me.node
            })
            .count();
        self.timings.rank_delay * u32::try_from(rank).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::{Member, MemberTable};
    use atoll_core::{Incarnation, StorageId};

    fn identity(node: u32) -> Identity {
        Identity {
            node: NodeId(node),
            incarnation: Incarnation(u64::from(node)),
            storage: StorageId(u128::from(node)),
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        }
    }

    /// What node 1 says of a segment on nodes 1, 2 and 4 with the sequencer on `sequencer`; the table names `members`.
    fn assess(members: &[u32], sequencer: u32) -> Option<Reason> {
        let row = |n: u32| {
            let host = format!("host{n}:1");
            (NodeId(n), Member::of(&identity(n), host.clone(), host, String::new()))
        };
        let table = MemberTable {
            version: 9,
            nodes: members.iter().map(|n| row(*n)).collect(),
            ..MemberTable::default()
        };
        let me = identity(1);
        let view = Members::new(me.clone(), table);
        for node in 2..=4 {
            let told = crate::members::Told { incarnation: Incarnation(node), leaving: false, full: false };
            view.note(Tick(0), NodeId(node as u32), true, Some(told));
        }
        let active = LogletMembers {
            servers: [1, 2, 4].map(|n| (NodeId(n), StorageId(u128::from(n)))).to_vec(),
            sequencer: Some((NodeId(sequencer), Incarnation(u64::from(sequencer)))),
        };
        let timings = Timings::default();
        View { members: &view, me: &me, now: Tick(0), timings: &timings }.assess(&active)
    }

    #[test]
    fn a_segment_leaves_a_node_that_was_removed() {
        assert_eq!(assess(&[1, 2, 3, 4], 2), None);
        assert_eq!(assess(&[1, 2, 3], 2), Some(Reason::ServerDrained(NodeId(4))));
        assert_eq!(assess(&[1, 2, 3], 4), Some(Reason::SequencerLeaving(NodeId(4))));
        assert_eq!(assess(&[1, 2], 2), None, "nobody can take its place");
        assert_eq!(assess(&[2, 3, 4], 1), Some(Reason::SequencerLeaving(NodeId(1))), "this node was removed");
    }

    #[test]
    fn a_removed_node_is_no_candidate_of_its_own() {
        let table = MemberTable { version: 9, ..MemberTable::default() };
        assert!(Members::new(identity(1), table).candidates().is_empty());
        assert_eq!(Members::new(identity(1), MemberTable::default()).candidates().len(), 1);
    }
}

//! Determines what is wrong with a log's active segment, if anything, and which Loglet should follow. Everything here is a pure function of
//! one snapshot.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Duties, LogletProvider, LogletSpec};
use atoll_core::{Candidate, Directory, Identity, Incarnation, NodeId, Tick};
use bytes::Bytes;

use crate::members::reach::Reach;
use crate::members::table::MemberTable;
use crate::members::{Health, Members};
use crate::settings::Timings;

/// Why a log should be extended, so that another segment follows the active one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Neither this node nor a majority of the servers reaches the sequencer, so appends wait.
    SequencerGone(NodeId),
    /// The sequencer's node is up, but the sequencer reaches no majority of its servers, so appends wait (vlog-V18).
    SequencerWithoutQuorum(NodeId),
    /// The sequencer's node cannot store anything: its journal is closed, or its disk hangs.
    SequencerFailing(NodeId),
    /// A majority reaches the sequencer, but another node could serve more of the members (vlog-V18).
    SequencerCutOff(NodeId),
    /// The sequencer's node has restarted. Its new incarnation does not know which positions the old one assigned (native-T6).
    SequencerRestarted(NodeId),
    /// The sequencer's node is about to stop, is drained, or was removed.
    SequencerLeaving(NodeId),
    /// A server has a storage identity other than the one that the segment names (native-T8).
    StorageReplaced(NodeId),
    /// A server is draining, or was removed.
    ServerDrained(NodeId),
    /// A server has been gone for a long time, and another can take its place.
    ServerGone(NodeId),
    /// A server's disk has been unable to store anything for a long time, and another server can take its place (vlog-V20).
    ServerFailing(NodeId),
}

impl Reason {
    /// Whether appends wait until the log is extended, so that this node should act at once.
    pub fn is_urgent(self) -> bool {
        use Reason::{
            SequencerFailing, SequencerGone, SequencerLeaving, SequencerRestarted, SequencerWithoutQuorum,
        };
        matches!(
            self,
            SequencerGone(_)
                | SequencerWithoutQuorum(_)
                | SequencerFailing(_)
                | SequencerRestarted(_)
                | SequencerLeaving(_)
        )
    }

    /// Whether the reason must last for a while before this node acts. This holds for all reasons that depend on reports of which members
    /// reach each other: for some heartbeats after a change, these reports contradict each other.
    pub fn must_last(self) -> bool {
        !self.is_urgent() || matches!(self, Reason::SequencerWithoutQuorum(_))
    }

    /// Returns the node that the reason is about.
    pub fn node(self) -> NodeId {
        match self {
            Reason::SequencerGone(n)
            | Reason::SequencerWithoutQuorum(n)
            | Reason::SequencerFailing(n)
            | Reason::SequencerCutOff(n)
            | Reason::SequencerRestarted(n)
            | Reason::SequencerLeaving(n)
            | Reason::StorageReplaced(n)
            | Reason::ServerDrained(n)
            | Reason::ServerGone(n)
            | Reason::ServerFailing(n) => n,
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reason::SequencerGone(n) => write!(f, "the sequencer on node {n} does not answer"),
            Reason::SequencerWithoutQuorum(n) => {
                write!(f, "the sequencer on node {n} reaches no majority of its servers")
            }
            Reason::SequencerFailing(n) => write!(f, "the disk of node {n} fails, which holds the sequencer"),
            Reason::SequencerCutOff(n) => write!(f, "members cannot reach the sequencer on node {n}"),
            Reason::SequencerRestarted(n) => write!(f, "the sequencer on node {n} was restarted"),
            Reason::SequencerLeaving(n) => write!(f, "node {n} is leaving and holds the sequencer"),
            Reason::StorageReplaced(n) => write!(f, "node {n} has another data directory"),
            Reason::ServerDrained(n) => write!(f, "node {n} is drained"),
            Reason::ServerGone(n) => write!(f, "the server on node {n} has been gone for long"),
            Reason::ServerFailing(n) => write!(f, "the disk of the server on node {n} has failed for long"),
        }
    }
}

/// Whether a segment with this many servers can now be placed without the draining nodes. If not, an extend would place the next segment on
/// them again.
pub fn can_do_without_drained(candidates: &[Candidate], servers: usize) -> bool {
    let staying = || candidates.iter().filter(|c| c.log && !c.draining);
    let wanted = servers.min(staying().count());
    let wanted = if wanted.is_multiple_of(2) { wanted.saturating_sub(1) } else { wanted };
    wanted > 0 && staying().filter(|c| c.alive && !c.failing).count() >= wanted
}

/// Decides whether the nodes for which a predicate is true suffice for something.
type Enough = dyn Fn(&dyn Fn(NodeId) -> bool) -> bool + Send + Sync;

/// An active segment, as its provider describes it.
#[derive(Clone)]
pub struct Active {
    /// Which nodes hold and which node orders its entries.
    pub duties: Duties,
    /// Whether these nodes suffice to seal it.
    enough: Arc<Enough>,
}

impl Active {
    /// Returns the segment with this configuration.
    pub fn new(provider: &Arc<dyn LogletProvider>, config: &Bytes) -> Self {
        let duties = provider.duties(config);
        let (provider, config) = (provider.clone(), config.clone());
        Active { duties, enough: Arc::new(move |reached| provider.can_seal(&config, reached)) }
    }

    fn holders(&self) -> Vec<NodeId> {
        self.duties.holders().map(|(node, _)| node).collect()
    }
}

/// Everything that an assessment depends on. One snapshot serves all logs of a round.
#[derive(Debug)]
pub struct View<'a> {
    /// This node.
    pub me: &'a Identity,
    /// Now.
    pub now: Tick,
    /// After how long a node counts as gone.
    pub timings: &'a Timings,
    members: &'a Members,
    table: Arc<MemberTable>,
    candidates: Vec<Candidate>,
    everybody: Vec<NodeId>,
    reach: Reach,
}

impl<'a> View<'a> {
    /// Returns a snapshot of what `members` knows now.
    pub fn of(members: &'a Members, me: &'a Identity, now: Tick, timings: &'a Timings) -> Self {
        let (table, candidates, reach) = (members.table(), members.candidates(), members.reach());
        let everybody = candidates.iter().map(|c| c.node).collect();
        View { me, now, timings, members, table, candidates, everybody, reach }
    }

    /// Returns the other members.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        self.everybody.iter().copied().filter(|node| *node != self.me.node)
    }

    /// Returns the members that report that they cannot work with this node.
    pub fn doubters(&self) -> impl Iterator<Item = NodeId> {
        self.others().filter(|node| self.reach.distrusts(*node, self.me.node))
    }

    /// Whether a node is no longer a member. A node with an old table may have placed a segment on it while it was being removed.
    fn is_removed(&self, node: NodeId) -> bool {
        self.table.version > 0 && !self.table.nodes.contains_key(&node)
    }

    /// Returns how many members can work with a node.
    fn use_of(&self, node: NodeId) -> usize {
        self.reach.works_for(node, &self.everybody)
    }

    /// Whether a node is suitable as a sequencer.
    fn is_fit(&self, c: &Candidate) -> bool {
        c.sequencer && c.alive && !c.failing && !c.draining && !c.leaving
    }

    /// Whether another node would be a better sequencer: a majority of the servers can work with it, and more members can work with it than
    /// with `node`.
    fn better_than(&self, node: NodeId, active: &Active) -> bool {
        let now = self.use_of(node);
        let enough = |n| (active.enough)(&|holder| self.reach.works(holder, n));
        self.candidates
            .iter()
            .any(|c| c.node != node && self.is_fit(c) && enough(c.node) && self.use_of(c.node) > now)
    }

    fn orderer(&self, active: &Active, node: NodeId, incarnation: Incarnation) -> Option<Reason> {
        // First, because nothing else is known about a node that is no longer a member.
        if self.is_removed(node) {
            return Some(Reason::SequencerLeaving(node));
        }
        let mine = node == self.me.node;
        let life = self.members.liveness(node);
        let lives = if mine { Some(self.me.incarnation) } else { life.as_ref().and_then(|l| l.incarnation) };
        let lost = !mine && life.is_some_and(|l| !l.alive);
        let has_quorum = (active.enough)(&|holder| self.reach.pair(holder, node));
        if lost && !has_quorum {
            return Some(Reason::SequencerGone(node));
        }
        if !lost && lives.is_some_and(|i| i != incarnation) {
            return Some(Reason::SequencerRestarted(node));
        }
        if !has_quorum && self.better_than(node, active) {
            return Some(Reason::SequencerWithoutQuorum(node));
        }
        let leaving = self.candidates.iter().any(|c| c.node == node && (c.draining || c.leaving));
        if leaving || (mine && self.me.draining) {
            return Some(Reason::SequencerLeaving(node));
        }
        let somebody_else = self.candidates.iter().any(|c| c.node != node && self.is_fit(c));
        match self.members.health_of(node).0 {
            Health::Hanging | Health::Closed if somebody_else => Some(Reason::SequencerFailing(node)),
            _ if self.better_than(node, active) => Some(Reason::SequencerCutOff(node)),
            _ => None,
        }
    }

    fn holder(&self, active: &Active) -> Option<Reason> {
        let inside = |node: NodeId| active.duties.is_holder(node);
        let fit = |c: &&Candidate| c.log && c.alive && !c.failing && !c.draining && !c.leaving;
        let spare = self.candidates.iter().filter(fit).any(|c| !inside(c.node));
        let can_leave = can_do_without_drained(&self.candidates, active.holders().len());
        let long = |since: Tick| self.now.since(since) >= self.timings.replace_server_after;
        for (node, storage) in active.duties.holders() {
            let row = self.table.nodes.get(&node);
            let known = if node == self.me.node { Some(self.me.storage) } else { row.map(|r| r.storage) };
            if known.is_some_and(|s| s.0 != 0 && s != storage) {
                return Some(Reason::StorageReplaced(node));
            }
            if (can_leave && row.is_some_and(|r| r.draining)) || (spare && self.is_removed(node)) {
                return Some(Reason::ServerDrained(node));
            }
            let gone = self.members.liveness(node).filter(|l| !l.alive && !self.members.is_up(node));
            if spare && gone.is_some_and(|l| long(l.since)) {
                return Some(Reason::ServerGone(node));
            }
            let (health, since) = self.members.health_of(node);
            if spare && health != Health::Fine && long(since) {
                return Some(Reason::ServerFailing(node));
            }
        }
        None
    }

    /// Whether this node reaches enough of a segment's servers to seal it. A node that does not could seal only some of them, which would
    /// stop the log without starting a new segment. Such a node also knows little about the other servers, so it leaves the decision to
    /// nodes that reach a majority.
    pub fn can_seal(&self, active: &Active) -> bool {
        (active.enough)(&|holder| self.reach.pair(holder, self.me.node))
    }

    /// Returns the most urgent reason to extend the log, or None if the segment should stay.
    pub fn assess(&self, active: &Active) -> Option<Reason> {
        if !self.can_seal(active) {
            return None;
        }
        let mut sequencers = active.duties.sequencers();
        let of_sequencers = sequencers.find_map(|(node, life)| self.orderer(active, node, life));
        of_sequencers.or_else(|| self.holder(active))
    }

    /// Returns the specification of the next segment, which avoids the nodes that are gone, failing, draining or leaving.
    pub fn remedy(&self, reason: Reason) -> LogletSpec {
        let unfit = |c: &&Candidate| !c.alive || c.failing || c.draining || c.leaving;
        let mut avoid: Vec<NodeId> = self.candidates.iter().filter(unfit).map(|c| c.node).collect();
        // A restarted sequencer may serve again in its new incarnation, a replaced disk may hold new entries, and a node that some members
        // do not reach is still a good server.
        use Reason::{SequencerCutOff, SequencerRestarted, SequencerWithoutQuorum, StorageReplaced};
        let stays = matches!(
            reason,
            SequencerRestarted(_) | StorageReplaced(_) | SequencerCutOff(_) | SequencerWithoutQuorum(_)
        );
        if !stays {
            avoid.push(reason.node());
        }
        avoid.sort_unstable();
        avoid.dedup();
        LogletSpec { avoid, ..LogletSpec::default() }
    }

    /// How long this node waits before it acts, so that the nodes do not all act at once. The wait is proportional to the number of
    /// suitable nodes that rank before it. Nodes that more members can work with rank first, because they know the most. The node that the
    /// reason is about does not count; it acts at once if its own sequencer restarted or is leaving.
    pub fn patience(&self, reason: Reason) -> Duration {
        let order = |node: NodeId| (Reverse(self.use_of(node)), node);
        let leaves = matches!(reason, Reason::SequencerLeaving(_) | Reason::SequencerRestarted(_));
        if reason.node() == self.me.node && leaves {
            return Duration::ZERO;
        }
        let mine = order(self.me.node);
        let first = |c: &&Candidate| {
            let fit = c.alive && !c.failing && !c.draining && !c.leaving && c.node != reason.node();
            fit && order(c.node) < mine
        };
        let rank = self.candidates.iter().filter(first).count();
        self.timings.rank_delay * u32::try_from(rank).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::Report;
    use crate::members::reach::is_majority;
    use crate::members::table::Member;
    use atoll_contract::{Binding, Duty};
    use atoll_core::StorageId;

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

    /// Returns node 1's assessment of a segment on nodes 1, 2 and 4 with the sequencer on `sequencer`. The table lists `members`.
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
            let reaches = [1, 2, 3, 4].map(NodeId).into_iter().filter(|n| n.0 != node).collect();
            let told = Report { incarnation: Incarnation(node.into()), reaches, ..Report::default() };
            view.note(Tick(0), NodeId(node), true, Some(told));
        }
        let active = segment(&[1, 2, 4], sequencer);
        let timings = Timings::default();
        View::of(&view, &me, Tick(0), &timings).assess(&active)
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

    /// Returns node `me`'s assessment in a cluster of `members` nodes. Since the start, `me` has heard the members in `rows`, and each of
    /// those reports which members it reaches.
    fn seen_by(
        me: u32,
        members: u32,
        rows: &[(u32, &[u32], Health)],
        active: &Active,
        now: Tick,
    ) -> Option<Reason> {
        let row = |n: u32| (NodeId(n), Member::of(&identity(n), String::new(), String::new(), String::new()));
        let nodes = (1..=members).map(row).collect();
        let view = Members::new(identity(me), MemberTable { version: 9, nodes, ..MemberTable::default() });
        for node in 1..=members {
            let told = rows.iter().find(|(n, ..)| *n == node).map(|(_, reaches, health)| Report {
                incarnation: Incarnation(node.into()),
                reaches: reaches.iter().map(|n| NodeId(*n)).collect(),
                health: *health,
                ..Report::default()
            });
            if node != me {
                view.note(Tick(0), NodeId(node), told.is_some(), told);
            }
        }
        View::of(&view, &identity(me), now, &Timings::default()).assess(active)
    }

    fn segment(servers: &[u32], sequencer: u32) -> Active {
        let holds = |n: &u32| Binding::Holds(StorageId(u128::from(*n)));
        let mut duties: Vec<Duty> =
            servers.iter().map(|n| Duty { role: "server", node: NodeId(*n), binding: holds(n) }).collect();
        let binding = Binding::Orders(Incarnation(u64::from(sequencer)));
        duties.push(Duty { role: "sequencer", node: NodeId(sequencer), binding });
        let nodes: Vec<NodeId> = servers.iter().map(|n| NodeId(*n)).collect();
        let majority = move |reached: &dyn Fn(NodeId) -> bool| {
            is_majority(nodes.iter().filter(|n| reached(**n)).count(), nodes.len())
        };
        Active { duties: Duties(duties), enough: Arc::new(majority) }
    }

    /// The same for three members, all of which are servers.
    fn three(me: u32, rows: &[(u32, &[u32], Health)], sequencer: u32) -> Option<Reason> {
        seen_by(me, 3, rows, &segment(&[1, 2, 3], sequencer), Tick(0))
    }

    #[test]
    fn a_sequencer_that_one_node_has_lost_is_not_gone_but_cut_off() {
        let fine = Health::Fine;
        // The link between 1 and 2 is cut.
        let seen_by_1 = three(1, &[(3, &[1, 2], fine)], 2);
        assert_eq!(seen_by_1, Some(Reason::SequencerCutOff(NodeId(2))));
        let seen_by_3 = three(3, &[(1, &[3], fine), (2, &[3], fine)], 2);
        assert_eq!(seen_by_3, Some(Reason::SequencerCutOff(NodeId(2))));
        // All members reach node 3, so a sequencer on it stays.
        assert_eq!(three(1, &[(3, &[1, 2], fine)], 3), None);
        assert_eq!(three(3, &[(1, &[3], fine), (2, &[3], fine)], 3), None);
    }

    #[test]
    fn a_sequencer_that_reaches_no_majority_is_no_matter_of_taste() {
        let fine = Health::Fine;
        // Each node hears only node 4. The sequencer on node 2 is up but useless.
        let rows: &[(u32, &[u32], Health)] =
            &[(1, &[4], fine), (2, &[4], fine), (3, &[4], fine), (5, &[4], fine)];
        let reason = seen_by(4, 5, rows, &segment(&[1, 2, 3], 2), Tick(0));
        assert_eq!(reason, Some(Reason::SequencerWithoutQuorum(NodeId(2))));
        assert!(reason.is_some_and(|r| r.is_urgent() && r.must_last()));
        assert_eq!(seen_by(4, 5, rows, &segment(&[1, 2, 3], 4), Tick(0)), None, "it is where it should be");
    }

    #[test]
    fn a_sequencer_that_a_majority_has_lost_is_gone_and_a_node_alone_does_nothing() {
        assert_eq!(three(1, &[(3, &[1], Health::Fine)], 2), Some(Reason::SequencerGone(NodeId(2))));
        assert_eq!(three(1, &[], 2), None, "this one is alone");
    }

    #[test]
    fn who_reaches_no_majority_of_the_servers_replaces_none() {
        let fine = Health::Fine;
        let later = Tick(0).after(Timings::default().replace_server_after * 2);
        // Nodes 2 and 5 do not hear 1 and 3, and node 4 hears all. For node 5, the servers 1 and 3 are gone, and 2 is a spare.
        let rows: &[(u32, &[u32], Health)] = &[(2, &[4, 5], fine), (4, &[1, 2, 3, 5], fine)];
        assert_eq!(seen_by(5, 5, rows, &segment(&[1, 3, 4], 4), later), None);
        assert_eq!(
            seen_by(5, 5, rows, &segment(&[1, 2, 4], 4), later),
            Some(Reason::ServerGone(NodeId(1))),
            "it reaches 2 and 4"
        );
    }

    #[test]
    fn a_sequencer_whose_disk_fails_is_replaced_although_it_answers() {
        let all = |health| three(1, &[(2, &[1, 3], health), (3, &[1, 2], Health::Fine)], 2);
        assert_eq!(all(Health::Fine), None);
        assert_eq!(all(Health::Closed), Some(Reason::SequencerFailing(NodeId(2))));
        assert_eq!(all(Health::Hanging), Some(Reason::SequencerFailing(NodeId(2))));
        // A sequencer stores nothing, so it stays on a node with a full disk until a spare replaces that node as a server.
        assert_eq!(all(Health::Full), None);
    }
}

//! What is wrong with a log's active segment, if anything, and which Loglet should follow: a pure function.

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

/// Why a segment should be followed by another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Neither this node nor a majority of the servers reaches the sequencer: appends wait.
    SequencerGone(NodeId),
    /// This node reaches the sequencer, but the sequencer reaches no majority of its servers: appends wait (vlog-V18).
    SequencerWithoutQuorum(NodeId),
    /// The sequencer's node cannot store anything: its journal is closed, or its disk hangs.
    SequencerFailing(NodeId),
    /// A majority reaches the sequencer, and some members that are up cannot work with it; they can with another (vlog-V18).
    SequencerCutOff(NodeId),
    /// The sequencer's node has restarted in a new incarnation and has forgotten its positions (native-T6).
    SequencerRestarted(NodeId),
    /// The sequencer's node is about to stop, is drained, or was removed.
    SequencerLeaving(NodeId),
    /// A server has another data directory than the segment names (native-T8).
    StorageReplaced(NodeId),
    /// A server is drained for good, or was removed.
    ServerDrained(NodeId),
    /// A server has been gone for a long time, and another can take its place.
    ServerGone(NodeId),
    /// A server's disk has been unable to store anything for a long time, and another server can take its place (vlog-V20).
    ServerFailing(NodeId),
}

impl Reason {
    /// Appends wait for this: act at once.
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

    /// It rests on what others report of whom they reach, and reports differ for some heartbeats after each change.
    pub fn must_last(self) -> bool {
        !self.is_urgent() || matches!(self, Reason::SequencerWithoutQuorum(_))
    }

    /// The node it is about.
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

/// Whether a segment of this many servers can be placed now without the nodes that are being drained. If not, moving it would put it back
/// where it was.
pub fn can_do_without_drained(candidates: &[Candidate], servers: usize) -> bool {
    let staying = || candidates.iter().filter(|c| c.log && !c.draining);
    let wanted = servers.min(staying().count());
    let wanted = if wanted.is_multiple_of(2) { wanted.saturating_sub(1) } else { wanted };
    wanted > 0 && staying().filter(|c| c.alive && !c.failing).count() >= wanted
}

/// Whether the nodes of which a predicate is true suffice for something.
type Enough = dyn Fn(&dyn Fn(NodeId) -> bool) -> bool + Send + Sync;

/// An active segment, as its provider describes it.
#[derive(Clone)]
pub struct Active {
    /// Who does what for it.
    pub duties: Duties,
    /// Whether these nodes suffice to seal it.
    enough: Arc<Enough>,
}

impl Active {
    /// A segment with this configuration.
    pub fn new(provider: &Arc<dyn LogletProvider>, config: &Bytes) -> Self {
        let duties = provider.duties(config);
        let (provider, config) = (provider.clone(), config.clone());
        Active { duties, enough: Arc::new(move |reached| provider.can_seal(&config, reached)) }
    }

    fn holders(&self) -> Vec<NodeId> {
        self.duties.holders().map(|(node, _)| node).collect()
    }
}

/// Everything that assessments look at: one snapshot for all logs of a round.
#[derive(Debug)]
pub struct View<'a> {
    /// This node.
    pub me: &'a Identity,
    /// Now.
    pub now: Tick,
    /// When things count as gone.
    pub timings: &'a Timings,
    members: &'a Members,
    table: Arc<MemberTable>,
    candidates: Vec<Candidate>,
    everybody: Vec<NodeId>,
    reach: Reach,
}

impl<'a> View<'a> {
    /// What `members` knows now.
    pub fn of(members: &'a Members, me: &'a Identity, now: Tick, timings: &'a Timings) -> Self {
        let (table, candidates, reach) = (members.table(), members.candidates(), members.reach());
        let everybody = candidates.iter().map(|c| c.node).collect();
        View { me, now, timings, members, table, candidates, everybody, reach }
    }

    /// The other members.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        self.everybody.iter().copied().filter(|node| *node != self.me.node)
    }

    /// The members that say that they cannot work with this node.
    pub fn doubters(&self) -> impl Iterator<Item = NodeId> {
        self.others().filter(|node| self.reach.distrusts(*node, self.me.node))
    }

    /// Whether a node is no longer a member. A node with an old table may have placed a segment on it while it was being removed.
    fn is_removed(&self, node: NodeId) -> bool {
        self.table.version > 0 && !self.table.nodes.contains_key(&node)
    }

    /// How many members can work with a node.
    fn use_of(&self, node: NodeId) -> usize {
        self.reach.works_for(node, &self.everybody)
    }

    /// Whether a node is as suitable to be a sequencer as any other.
    fn is_fit(&self, c: &Candidate) -> bool {
        c.sequencer && c.alive && !c.failing && !c.draining && !c.leaving
    }

    /// Whether there is a better place for a sequencer: one that a majority of the servers and more of the members can work with.
    fn better_than(&self, node: NodeId, active: &Active) -> bool {
        let now = self.use_of(node);
        let enough = |n| (active.enough)(&|holder| self.reach.works(holder, n));
        self.candidates
            .iter()
            .any(|c| c.node != node && self.is_fit(c) && enough(c.node) && self.use_of(c.node) > now)
    }

    fn orderer(&self, active: &Active, node: NodeId, incarnation: Incarnation) -> Option<Reason> {
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
        if leaving || self.is_removed(node) || (mine && self.me.draining) {
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

    /// Whether this node reaches a majority of a segment's servers. A node that does not could seal only some of them, which would stop the
    /// log without starting a new segment, and it knows little about the others. The nodes that do reach a majority decide.
    pub fn can_seal(&self, active: &Active) -> bool {
        (active.enough)(&|holder| self.reach.pair(holder, self.me.node))
    }

    /// What is wrong with a segment, the most urgent first. None: leave it alone.
    pub fn assess(&self, active: &Active) -> Option<Reason> {
        if !self.can_seal(active) {
            return None;
        }
        let mut orderers = active.duties.orderers();
        let of_orderers = orderers.find_map(|(node, life)| self.orderer(active, node, life));
        of_orderers.or_else(|| self.holder(active))
    }

    /// The next segment: like the active one, without the nodes that are gone, failing or leaving.
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

    /// How long this node waits before it acts, so that the nodes do not all act at once. The wait follows its rank among the living nodes.
    /// Nodes that most members can work with come first, because they see the most; the node in question comes last.
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

    /// A cluster with this many `members`, as node `me` has seen it since the start: `me` hears the members in `rows`, and each of those
    /// reports which members it reaches.
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

    /// Three members, all of them servers.
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
        // On 3 everybody reaches it: no reason for anything.
        assert_eq!(three(1, &[(3, &[1, 2], fine)], 3), None);
        assert_eq!(three(3, &[(1, &[3], fine), (2, &[3], fine)], 3), None);
    }

    #[test]
    fn a_sequencer_that_reaches_no_majority_is_no_matter_of_taste() {
        let fine = Health::Fine;
        // All hear 4, and nobody else. The sequencer is up, and of no use.
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
        // 2 and 5 do not hear 1 and 3; 4 hears all. Seen by 5, the servers 1 and 3 are gone, and 2 is a spare.
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
        // A sequencer keeps nothing: with a full disk it stays until a spare takes its node's place as a server.
        assert_eq!(all(Health::Full), None);
    }
}

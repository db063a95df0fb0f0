//! What this node knows about the cluster, as a value, and what it makes of the reasons to reconfigure that the protocols find in it.
//! Everything here is a pure function of one snapshot.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::cluster::{Life, Picture, Sight};
use atoll_contract::{Duties, Evidence, LogletProvider, LogletSpec, Reason, Trouble};
use atoll_core::{Candidate, Directory, Identity, NodeId, Tick};
use bytes::Bytes;

use crate::members::Members;
use crate::settings::Timings;

/// An active segment, as its provider describes it.
#[derive(Clone, Debug)]
pub struct Active {
    provider: Arc<dyn LogletProvider>,
    config: Bytes,
}

impl Active {
    /// Returns the segment with this configuration.
    pub fn new(provider: &Arc<dyn LogletProvider>, config: &Bytes) -> Self {
        Active { provider: provider.clone(), config: config.clone() }
    }

    /// Returns which nodes hold and which order its entries.
    pub fn duties(&self) -> Duties {
        self.provider.duties(&self.config)
    }

    /// Returns the node that seems to be the cause of what appenders report, if the report points to one.
    pub fn suspect(&self, trouble: Trouble) -> Option<NodeId> {
        self.provider.suspect(&self.config, trouble)
    }
}

/// Returns what `members` knows now.
pub fn picture(members: &Members, me: &Identity, now: Tick, timings: &Timings) -> Picture {
    let table = members.table();
    let sight = |candidate: Candidate| {
        let node = candidate.node;
        let mine = node == me.node;
        let life = match members.liveness(node) {
            _ if mine => {
                Some(Life { hears: true, since: Tick(0), is_up: true, incarnation: Some(me.incarnation) })
            }
            Some(l) => Some(Life {
                hears: l.alive,
                since: l.since,
                is_up: l.alive || members.is_up(node),
                incarnation: l.incarnation,
            }),
            None => None,
        };
        let storage =
            if mine { me.storage } else { table.nodes.get(&node).map(|r| r.storage).unwrap_or_default() };
        let (disk, disk_since) = members.health_of(node);
        (node, Sight { candidate, storage, life, disk, disk_since })
    };
    Picture {
        me: me.node,
        now,
        patience: timings.replace_server_after,
        is_complete: table.version > 0,
        members: members.candidates().into_iter().map(sight).collect(),
        reach: members.reach(),
    }
}

/// Everything that an assessment depends on. One snapshot serves all logs of a round.
#[derive(Debug)]
pub struct View<'a> {
    /// The cluster.
    pub cluster: Picture,
    timings: &'a Timings,
}

impl<'a> View<'a> {
    /// Returns a snapshot of what `members` knows now.
    pub fn of(members: &Members, me: &Identity, now: Tick, timings: &'a Timings) -> Self {
        View { cluster: picture(members, me, now, timings), timings }
    }

    /// Returns the other members.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        self.cluster.members.keys().copied().filter(|node| *node != self.cluster.me)
    }

    /// Returns the members that report that they cannot work with this node.
    pub fn doubters(&self) -> impl Iterator<Item = NodeId> {
        self.others().filter(|node| self.cluster.reach.distrusts(*node, self.cluster.me))
    }

    /// Whether this node reaches enough of a segment's servers to seal it. A node that does not could seal only some of them, which would
    /// stop the log without starting a new segment. Such a node also knows little about the other servers, so it leaves the decision to
    /// nodes that reach enough of them.
    pub fn can_seal(&self, active: &Active) -> bool {
        let reached = |holder| self.cluster.reach.pair(holder, self.cluster.me);
        active.provider.can_seal(&active.config, &reached)
    }

    /// Returns the reason that the segment's protocol has to extend the log, or None if the segment should stay. `appends` is what the
    /// appenders of this node have reported about it.
    pub fn assess(&self, active: &Active, appends: Option<Trouble>) -> Option<Reason> {
        if !self.can_seal(active) {
            return None;
        }
        let evidence = Evidence { cluster: &self.cluster, appends };
        active.provider.reason_to_reconfigure(&active.config, &evidence)
    }

    /// Returns the specification of the next segment: what the reason asks for, without the nodes that are gone, failing, draining or
    /// leaving.
    pub fn remedy(&self, reason: &Reason) -> LogletSpec {
        let mut spec = reason.next.clone().avoiding(self.cluster.unfit());
        spec.avoid.sort_unstable();
        spec.avoid.dedup();
        spec
    }

    /// How long this node waits before it acts, so that the nodes do not all act at once. The wait is proportional to the number of
    /// suitable nodes that rank before it. Nodes that more members can work with rank first, because they know the most. The node that
    /// the reason is about does not count; if it knows the reason best, it acts at once.
    pub fn patience(&self, reason: &Reason) -> Duration {
        if reason.node == self.cluster.me && reason.first_hand {
            return Duration::ZERO;
        }
        self.turn(Some(reason.node))
    }

    /// Returns this node's place in the order of the nodes, as a wait. `except` does not count. Nor does who can work with it, or with
    /// another node that is unfit: a node that has not lost it yet would seem to know more than one that has, so each would take itself
    /// for the last.
    pub fn turn(&self, except: Option<NodeId>) -> Duration {
        let unfit: Vec<NodeId> = self.cluster.unfit().chain(except).collect();
        let fit: Vec<NodeId> =
            self.cluster.members.keys().copied().filter(|node| !unfit.contains(node)).collect();
        let order = |node: NodeId| (Reverse(self.cluster.reach.works_for(node, &fit)), node);
        let mine = order(self.cluster.me);
        let rank = fit.iter().filter(|node| order(**node) < mine).count();
        self.timings.rank_delay * u32::try_from(rank).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::{Member, MemberTable};
    use crate::members::{Health, Report};
    use atoll_contract::Urgency;
    use atoll_contract::cluster::reach::is_majority;
    use atoll_contract::loglet::reason::{Holders, Orderer};
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

    /// Returns node 1's assessment of a segment on nodes 1, 2 and 4 with the sequencer on `sequencer`. The table lists `members`.
    fn assess(members: &[u32], sequencer: u32) -> Option<String> {
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
        let cluster = picture(&view, &me, Tick(0), &Timings::default());
        reason(&cluster, &[1, 2, 4], sequencer).map(|reason| reason.words)
    }

    /// Returns the reason that a protocol with a sequencer and a majority of servers has, as long as this node could seal the segment.
    fn reason(cluster: &Picture, servers: &[u32], sequencer: u32) -> Option<Reason> {
        let nodes: Vec<_> = servers.iter().map(|n| (NodeId(*n), StorageId(u128::from(*n)))).collect();
        let all: Vec<NodeId> = nodes.iter().map(|(node, _)| *node).collect();
        let enough = |reached: &dyn Fn(NodeId) -> bool| {
            is_majority(all.iter().filter(|n| reached(**n)).count(), all.len())
        };
        let (node, life) = (NodeId(sequencer), Incarnation(u64::from(sequencer)));
        let evidence = Evidence { cluster, appends: None };
        let sequencer = Orderer { role: "sequencer", node, life, enough: &enough };
        let servers = Holders { role: "server", nodes: &nodes, all: &all };
        let can_seal = enough(&|holder| cluster.reach.pair(holder, cluster.me));
        can_seal.then(|| sequencer.reason(&evidence).or_else(|| servers.reason(&evidence))).flatten()
    }

    fn words(words: &str) -> Option<String> {
        Some(words.to_owned())
    }

    #[test]
    fn a_segment_leaves_a_node_that_was_removed() {
        assert_eq!(assess(&[1, 2, 3, 4], 2), None);
        assert_eq!(assess(&[1, 2, 3], 2), words("node 4 is drained"));
        assert_eq!(assess(&[1, 2, 3], 4), words("node 4 is leaving and has the role sequencer"));
        assert_eq!(assess(&[1, 2], 2), None, "nobody can take its place");
        assert_eq!(
            assess(&[2, 3, 4], 1),
            words("node 1 is leaving and has the role sequencer"),
            "this node was removed"
        );
    }

    #[test]
    fn a_removed_node_is_no_candidate_of_its_own() {
        let table = MemberTable { version: 9, ..MemberTable::default() };
        assert!(Members::new(identity(1), table).candidates().is_empty());
        assert_eq!(Members::new(identity(1), MemberTable::default()).candidates().len(), 1);
    }

    #[test]
    fn a_node_that_has_lost_another_one_first_does_not_take_itself_for_the_last() {
        let row = |n: u32| (NodeId(n), Member::of(&identity(n), String::new(), String::new(), String::new()));
        let nodes = (1..=5).map(row).collect();
        let view = Members::new(identity(1), MemberTable { version: 9, nodes, ..MemberTable::default() });
        for node in 3..=5 {
            // The heartbeats that say that node 2 is lost are still on their way.
            let reaches = (1..=5).filter(|n| *n != node).map(NodeId).collect();
            let told = Report { incarnation: Incarnation(node.into()), reaches, ..Report::default() };
            view.note(Tick(0), NodeId(node), true, Some(told));
        }
        view.note(Tick(0), NodeId(2), false, None);
        let timings = Timings::default();
        let patience = |about: u32| {
            let reason = Reason::new(NodeId(about), Urgency::AtOnce, "it does not answer");
            View::of(&view, &identity(1), Tick(0), &timings).patience(&reason)
        };
        assert_eq!(patience(2), Duration::ZERO);
        assert_eq!(patience(4), Duration::ZERO, "also if another node died with it");
    }

    /// Returns node `me`'s assessment in a cluster of `members` nodes. Since the start, `me` has heard the members in `rows`, and each of
    /// those reports which members it reaches.
    fn seen_by(
        me: u32,
        members: u32,
        rows: &[(u32, &[u32], Health)],
        (servers, sequencer): (&[u32], u32),
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
        reason(&picture(&view, &identity(me), now, &Timings::default()), servers, sequencer)
    }

    /// The same for three members, all of which are servers.
    fn three(me: u32, rows: &[(u32, &[u32], Health)], sequencer: u32) -> Option<String> {
        seen_by(me, 3, rows, (&[1, 2, 3], sequencer), Tick(0)).map(|reason| reason.words)
    }

    #[test]
    fn a_sequencer_that_one_node_has_lost_is_not_gone_but_cut_off() {
        let fine = Health::Fine;
        // The link between 1 and 2 is cut.
        let seen_by_1 = three(1, &[(3, &[1, 2], fine)], 2);
        assert_eq!(seen_by_1, words("members cannot reach the sequencer on node 2"));
        let seen_by_3 = three(3, &[(1, &[3], fine), (2, &[3], fine)], 2);
        assert_eq!(seen_by_3, words("members cannot reach the sequencer on node 2"));
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
        let reason = seen_by(4, 5, rows, (&[1, 2, 3], 2), Tick(0)).unwrap();
        assert_eq!(reason.words, "the sequencer on node 2 reaches too few of the nodes that hold the log");
        assert_eq!(reason.urgency, Urgency::Soon);
        assert_eq!(seen_by(4, 5, rows, (&[1, 2, 3], 4), Tick(0)), None, "it is where it should be");
    }

    #[test]
    fn a_sequencer_that_a_majority_has_lost_is_gone_and_a_node_alone_does_nothing() {
        assert_eq!(three(1, &[(3, &[1], Health::Fine)], 2), words("the sequencer on node 2 does not answer"));
        assert_eq!(three(1, &[], 2), None, "this one is alone");
    }

    #[test]
    fn who_reaches_no_majority_of_the_servers_replaces_none() {
        let fine = Health::Fine;
        let later = Tick(0).after(Timings::default().replace_server_after * 2);
        // Nodes 2 and 5 do not hear 1 and 3, and node 4 hears all. For node 5, the servers 1 and 3 are gone, and 2 is a spare.
        let rows: &[(u32, &[u32], Health)] = &[(2, &[4, 5], fine), (4, &[1, 2, 3, 5], fine)];
        assert_eq!(seen_by(5, 5, rows, (&[1, 3, 4], 4), later), None);
        assert_eq!(
            seen_by(5, 5, rows, (&[1, 2, 4], 4), later).map(|reason| reason.words),
            words("the server on node 1 has been gone for long"),
            "it reaches 2 and 4"
        );
    }

    #[test]
    fn a_sequencer_whose_disk_fails_is_replaced_although_it_answers() {
        let all = |health| three(1, &[(2, &[1, 3], health), (3, &[1, 2], Health::Fine)], 2);
        assert_eq!(all(Health::Fine), None);
        assert_eq!(all(Health::Closed), words("the disk of node 2, which has the role sequencer, fails"));
        assert_eq!(all(Health::Hanging), words("the disk of node 2, which has the role sequencer, fails"));
        // A sequencer stores nothing, so it stays on a node with a full disk until a spare replaces that node as a server.
        assert_eq!(all(Health::Full), None);
    }
}

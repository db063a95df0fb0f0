//! Which members reach each other, according to their reports. One node cannot observe this alone. A node that loses a peer must not act on
//! the loss if a majority still reaches the peer, and the next sequencer must be a node that as many members as possible reach (vlog-V18).
//!
//! Two members reach each other if the connection works in both directions: each hears the other. Every member reports in its heartbeats
//! which members it reaches. A node knows the rows of the members that it hears itself.

use std::collections::BTreeMap;

use atoll_core::NodeId;

/// What one member reports about the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// The members that it hears and that hear it.
    pub reaches: Vec<NodeId>,
    /// Those of them that it cannot work with.
    pub distrusts: Vec<NodeId>,
}

/// A snapshot of the rows that this node knows: its own, and those of the peers that it hears.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The rows, by member.
    pub rows: BTreeMap<NodeId, Row>,
}

impl Reach {
    fn says(&self, who: NodeId, of: NodeId) -> Option<bool> {
        self.rows.get(&who).map(|row| row.reaches.contains(&of))
    }

    /// Whether `who` reports that it cannot work with `of`.
    pub fn distrusts(&self, who: NodeId, of: NodeId) -> bool {
        self.rows.get(&who).is_some_and(|row| row.distrusts.contains(&of))
    }

    /// Whether the node has reported a row, or a member whose row is known reaches it.
    pub fn is_there(&self, node: NodeId) -> bool {
        self.rows.contains_key(&node) || self.rows.values().any(|row| row.reaches.contains(&node))
    }

    /// Whether two members reach each other. At least one of them must report it, and neither may report the contrary.
    pub fn pair(&self, one: NodeId, other: NodeId) -> bool {
        if one == other {
            return self.is_there(one);
        }
        match (self.says(one, other), self.says(other, one)) {
            (Some(a), Some(b)) => a && b,
            (Some(said), None) | (None, Some(said)) => said,
            (None, None) => false,
        }
    }

    /// Whether two members reach each other and can work with each other. A member that distrusts itself works with nobody.
    pub fn works(&self, one: NodeId, other: NodeId) -> bool {
        let doubted = |who, of| self.distrusts(who, of) || self.distrusts(who, who);
        self.pair(one, other) && !doubted(one, other) && !doubted(other, one)
    }

    /// Returns how many of the members in `among` reach `node`. A node reaches itself if it is there, see [`Reach::is_there`].
    pub fn reached_by(&self, node: NodeId, among: &[NodeId]) -> usize {
        among.iter().filter(|m| self.pair(**m, node)).count()
    }

    /// Returns how many of the members in `among` can work with `node`.
    pub fn works_for(&self, node: NodeId, among: &[NodeId]) -> usize {
        among.iter().filter(|m| self.works(**m, node)).count()
    }
}

/// Whether `count` is more than half of `of`.
pub fn is_majority(count: usize, of: usize) -> bool {
    count * 2 > of
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(rows: &[(u32, &[u32], &[u32])]) -> Reach {
        let ids = |of: &[u32]| of.iter().map(|n| NodeId(*n)).collect();
        let row = |r: &(u32, &[u32], &[u32])| (NodeId(r.0), Row { reaches: ids(r.1), distrusts: ids(r.2) });
        Reach { rows: rows.iter().map(row).collect() }
    }

    #[test]
    fn a_cut_link_leaves_both_ends_a_majority_and_the_third_reaches_all() {
        let all = [1, 2, 3].map(NodeId);
        // The view of node 1, which has no row of node 2.
        let seen = reach(&[(1, &[3], &[]), (3, &[1, 2], &[])]);
        assert_eq!(seen.reached_by(NodeId(2), &all), 2);
        assert_eq!(seen.reached_by(NodeId(1), &all), 2);
        assert_eq!(seen.reached_by(NodeId(3), &all), 3);
    }

    #[test]
    fn a_pair_that_hears_in_one_direction_does_not_reach_each_other() {
        let seen = reach(&[(1, &[2, 3], &[]), (2, &[3], &[]), (3, &[1, 2], &[])]);
        assert!(!seen.pair(NodeId(1), NodeId(2)) && !seen.pair(NodeId(2), NodeId(1)));
        assert!(seen.pair(NodeId(1), NodeId(3)));
    }

    #[test]
    fn a_member_that_nobody_hears_is_not_there() {
        let seen = reach(&[(1, &[3], &[]), (3, &[1], &[])]);
        assert!(!seen.is_there(NodeId(2)));
        assert_eq!(seen.reached_by(NodeId(2), &[1, 2, 3].map(NodeId)), 0);
    }

    #[test]
    fn one_that_is_reached_may_be_of_no_use() {
        let all = [1, 2, 3].map(NodeId);
        let seen = reach(&[(1, &[2, 3], &[2]), (2, &[1, 3], &[]), (3, &[1, 2], &[])]);
        assert_eq!(seen.reached_by(NodeId(2), &all), 3);
        assert_eq!(seen.works_for(NodeId(2), &all), 2);
    }
}

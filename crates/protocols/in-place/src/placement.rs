//! Where groups are: consistent hashing of the shards over the nodes, with replicas spread over zones.
//!
//! Each node has [`POINTS`] points on a ring, by its id alone. The replicas of a shard are the first nodes after the shard's own point. A
//! node whose zone has a replica already comes after all nodes of other zones. So a node that comes or goes moves only the replicas that it
//! gets or had, and a zone that fails takes no more replicas of a group with it than it must.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::NodeId;

/// How many points a node has on the ring. More of them spread the shards more evenly.
const POINTS: u64 = 64;

/// A rule for the placement of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The zones of nodes. A node without one is a zone of its own.
    pub zones: BTreeMap<NodeId, String>,
}

/// A list of zones that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("zones: {part:?} is not NODE:ZONE, such as 1:a")]
pub struct InvalidRule {
    /// The part that is wrong.
    pub part: String,
}

impl Rule {
    /// Reads a list such as `1:a,2:a,3:b`. Empty: every node is a zone of its own.
    pub fn parse(text: &str) -> Result<Rule, InvalidRule> {
        let mut zones = BTreeMap::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let wrong = || InvalidRule { part: part.to_owned() };
            let (node, zone) = part.split_once(':').ok_or_else(wrong)?;
            let node = NodeId(node.trim().parse().map_err(|_| wrong())?);
            if node.0 == 0 || zone.trim().is_empty() || zones.insert(node, zone.trim().to_owned()).is_some() {
                return Err(wrong());
            }
        }
        Ok(Rule { zones })
    }
}

fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Nodes on a ring.
#[derive(Clone, Debug)]
pub struct Ring {
    points: BTreeMap<u64, NodeId>,
    nodes: usize,
    rule: Rule,
}

impl Ring {
    /// Returns the ring of these nodes.
    pub fn new(nodes: &[NodeId], rule: Rule) -> Self {
        let mut points = BTreeMap::new();
        for node in nodes {
            for point in 0..POINTS {
                points.insert(mix((u64::from(node.0) << 32 | point) ^ 0x5851_f42d_4c95_7f2d), *node);
            }
        }
        Ring { points, nodes: nodes.iter().collect::<BTreeSet<_>>().len(), rule }
    }

    /// Returns the nodes of the replicas of a shard, as many as asked for if there are so many nodes.
    pub fn replicas(&self, shard: u32, count: usize) -> Vec<NodeId> {
        let count = count.min(self.nodes);
        let start = mix(u64::from(shard).wrapping_add(0x9e37_79b9_7f4a_7c15));
        let around = self.points.range(start..).chain(self.points.range(..start));
        let mut order: Vec<NodeId> = Vec::new();
        for (_, node) in around {
            if !order.contains(node) {
                order.push(*node);
            }
        }
        let zone =
            |node: NodeId| self.rule.zones.get(&node).cloned().unwrap_or_else(|| format!("node {node}"));
        let mut taken: Vec<NodeId> = Vec::new();
        // In each pass, a zone gives at most one replica.
        while taken.len() < count {
            let mut zones = BTreeSet::new();
            for node in &order {
                if taken.len() < count && !taken.contains(node) && zones.insert(zone(*node)) {
                    taken.push(*node);
                }
            }
        }
        taken
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn nodes(n: u32) -> Vec<NodeId> {
        (1..=n).map(NodeId).collect()
    }

    #[test]
    fn shards_are_spread_and_a_new_node_moves_only_what_it_gets() {
        let (five, six) = (Ring::new(&nodes(5), Rule::default()), Ring::new(&nodes(6), Rule::default()));
        let mut held: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut moved = 0;
        for shard in 0..256 {
            let (before, after) = (five.replicas(shard, 3), six.replicas(shard, 3));
            assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 3, "different nodes");
            before.iter().for_each(|node| *held.entry(*node).or_default() += 1);
            for node in after.iter().filter(|node| !before.contains(node)) {
                assert_eq!(*node, NodeId(6), "only the new node gets something");
                moved += 1;
            }
        }
        assert!(held.values().all(|n| (80..240).contains(n)), "{held:?}");
        assert!((64..200).contains(&moved), "a sixth of 768 replicas moves: {moved}");
    }

    #[test]
    fn replicas_are_spread_over_zones() {
        let rule = Rule::parse("1:a, 2:a, 3:b,4:b,5:c,6:c").unwrap();
        let ring = Ring::new(&nodes(6), rule.clone());
        for shard in 0..64 {
            let zones = |count| -> BTreeSet<String> {
                ring.replicas(shard, count).iter().map(|node| rule.zones[node].clone()).collect()
            };
            assert_eq!((zones(2).len(), zones(3).len(), zones(5).len()), (2, 3, 3));
            let five = ring.replicas(shard, 5);
            let of = |zone: &str| five.iter().filter(|node| rule.zones[node] == zone).count();
            assert!(["a", "b", "c"].into_iter().all(|zone| of(zone) <= 2), "{five:?}");
        }
        assert_eq!(ring.replicas(1, 9).len(), 6, "no node twice");
    }

    #[test]
    fn wrong_lists_of_zones_are_refused() {
        for (text, part) in [("1", "1"), ("1:a,x:b", "x:b"), ("0:a", "0:a"), ("1:a,1:b", "1:b"), ("2:", "2:")]
        {
            assert_eq!(Rule::parse(text), Err(InvalidRule { part: part.to_owned() }));
        }
        assert_eq!(Rule::parse(" "), Ok(Rule::default()));
    }
}

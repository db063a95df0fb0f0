//! The configuration of a Scalog Loglet in the chain: the first shards, the tree of aggregators, the orderers, and the ordering log.

use std::collections::BTreeSet;

use bytes::Bytes;

use atoll_core::{Decode, DecodeError, NodeId, StorageId};

/// Version of [`ScalogConfig`].
pub const CONFIG_FORMAT: u8 = 1;
/// The most servers of a shard.
pub const MAX_REPLICAS: usize = 9;
/// The most shards in a configuration. More can be added later.
pub const MAX_SHARDS: usize = 1024;

atoll_core::record! {
    /// A storage server: a node with a data directory. Another directory must not answer for it (scalog-S11).
    #[derive(Copy, PartialOrd, Ord)]
    pub struct Server {
        /// The node.
        pub node: NodeId,
        /// Its data directory.
        pub storage: StorageId,
    }
}

atoll_core::record! {
    /// A shard: a few servers with the same records.
    pub struct ShardSpec {
        /// Its number, which is never used again (scalog-S13).
        pub shard: u32,
        /// Its servers. Each is the primary of one segment and a backup of the others.
        pub servers: Vec<Server>,
    }
}

impl ShardSpec {
    /// Checks the shard alone.
    pub fn check(&self) -> Result<(), ShardError> {
        if !(1..=MAX_REPLICAS).contains(&self.servers.len()) {
            return Err(ShardError::Size(self.shard, self.servers.len()));
        }
        let nodes: BTreeSet<NodeId> = self.servers.iter().map(|s| s.node).collect();
        if nodes.len() != self.servers.len() || nodes.contains(&NodeId(0)) {
            return Err(ShardError::Twice(self.shard));
        }
        Ok(())
    }
}

atoll_core::record! {
    /// A node of the tree of aggregators.
    pub struct Aggregator {
        /// Its node.
        pub node: NodeId,
        /// Its parent in the list of aggregators, which stands before it. None: it reports to the orderers.
        pub parent: Option<u32>,
    }
}

atoll_core::record! {
    /// The ordering log. Whoever opens it knows what the kind means.
    pub struct OrderingSpec {
        /// The kind.
        pub kind: String,
        /// Its configuration.
        pub config: Bytes,
    }
}

atoll_core::record! {
    /// See the module documentation.
    pub struct ScalogConfig {
        /// [`CONFIG_FORMAT`].
        pub format: u8,
        /// The shards at the beginning.
        pub shards: Vec<ShardSpec>,
        /// The tree of aggregators. Empty: servers report to the orderers.
        pub aggregators: Vec<Aggregator>,
        /// The nodes that propose cuts. One suffices; the others are used when it does not answer.
        pub orderers: Vec<NodeId>,
        /// How often servers, aggregators and orderers send what is new, in microseconds.
        pub interval_us: u32,
        /// Shards that were added later, whether they still take records or not. The ordering log says when each begins and ends. They
        /// stand here so that the chain names all nodes that keep records.
        pub added: Vec<ShardSpec>,
        /// The number of shards and of servers of each, if enough nodes are up. The next Loglet has as many.
        pub wanted: (u32, u32),
        /// The ordering log.
        pub ordering: OrderingSpec,
    }
}

/// The aggregators of a configuration to which servers report, as places in its list, the lowest first. They are found once, because each
/// report goes to one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaves(Vec<usize>);

impl Leaves {
    /// Returns the aggregator to which the servers of a shard report. All servers of a shard report to the same one. None: they report to
    /// the orderers.
    pub fn of(&self, shard: u32) -> Option<usize> {
        self.0.get(shard as usize % self.0.len().max(1)).copied()
    }

    /// Returns whether servers report to an aggregator.
    pub fn contains(&self, place: usize) -> bool {
        self.0.binary_search(&place).is_ok()
    }
}

/// Why a shard, or a list of them, cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardError {
    /// Too few or too many servers.
    #[error("shard {0} has {1} servers; 1 to 9 are allowed")]
    Size(u32, usize),
    /// A node is twice in a shard, or is no node.
    #[error("shard {0} names a node twice, or node 0")]
    Twice(u32),
    /// Two shards have the same number.
    #[error("shard {0} exists, or existed; numbers are never used again")]
    Exists(u32),
    /// A node is in two shards that take records.
    #[error("node {0} is a server of shard {1}, which takes records")]
    Overlap(NodeId, u32),
    /// There is no such shard that takes records.
    #[error("there is no shard {0} that takes records")]
    Unknown(u32),
    /// No other shard would take records afterwards.
    #[error("shard {0} is the last one that takes records and is not about to end; add another one first")]
    Last(u32),
    /// A node had another data directory when it was a server before.
    #[error("node {0} has another data directory than when it was a server of shard {1}")]
    OtherDirectory(NodeId, u32),
    /// Too many shards, or none.
    #[error("there would be {0} shards; 1 to 1024 are allowed")]
    TooMany(usize),
}

/// Says which shard or node of a configuration cannot be.
fn unfit(why: ShardError) -> DecodeError {
    let (what, value, allowed) = match why {
        ShardError::Size(_, servers) => ("servers of a shard", servers as u64, "1 to 9"),
        ShardError::Twice(shard) => {
            ("shard that names a node twice, or node 0", shard.into(), "different nodes, from 1 on")
        }
        ShardError::Exists(shard) => ("number of two shards", shard.into(), "numbers of their own"),
        ShardError::Overlap(node, _) => ("node in two shards", node.0.into(), "each node in one shard"),
        ShardError::TooMany(shards) => ("shards", shards as u64, "1 to 1024"),
        // These are about a shard and what there is already.
        ShardError::Unknown(shard) | ShardError::Last(shard) | ShardError::OtherDirectory(_, shard) => {
            ("shard", shard.into(), "one that can be")
        }
    };
    DecodeError::Invalid { what, value, allowed }
}

impl ScalogConfig {
    /// Decodes and checks a configuration.
    pub fn parse(bytes: &Bytes) -> Result<Self, DecodeError> {
        let config = ScalogConfig::from_bytes(bytes.clone())?;
        let invalid = |what, value: u64, allowed| Err(DecodeError::Invalid { what, value, allowed });
        if config.format != CONFIG_FORMAT {
            return invalid("version of a scalog configuration", config.format.into(), "1");
        }
        config.check_shards().and_then(|()| config.check_added()).map_err(unfit)?;
        if config.orderers.is_empty() {
            return invalid("orderers", 0, "at least one");
        }
        if let Some(at) =
            config.aggregators.iter().enumerate().position(|(i, a)| a.parent.is_some_and(|p| p as usize >= i))
        {
            return invalid("parent of an aggregator", at as u64, "an aggregator that stands before it");
        }
        if config.interval_us == 0 {
            return invalid("interval", 0, "at least one microsecond");
        }
        Ok(config)
    }

    fn check_shards(&self) -> Result<(), ShardError> {
        let (mut numbers, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        if !(1..=MAX_SHARDS).contains(&self.shards.len()) {
            return Err(ShardError::TooMany(self.shards.len()));
        }
        for shard in &self.shards {
            shard.check()?;
            if !numbers.insert(shard.shard) {
                return Err(ShardError::Exists(shard.shard));
            }
            if let Some(server) = shard.servers.iter().find(|s| !nodes.insert(s.node)) {
                return Err(ShardError::Overlap(server.node, shard.shard));
            }
        }
        Ok(())
    }

    /// Checks the shards that were added. A node of one that has ended may be in another one.
    fn check_added(&self) -> Result<(), ShardError> {
        let all = self.shards.len() + self.added.len();
        if all > MAX_SHARDS {
            return Err(ShardError::TooMany(all));
        }
        let mut numbers: BTreeSet<u32> = self.shards.iter().map(|shard| shard.shard).collect();
        for shard in &self.added {
            shard.check()?;
            if !numbers.insert(shard.shard) {
                return Err(ShardError::Exists(shard.shard));
            }
        }
        Ok(())
    }

    /// Returns all shards that the chain names, in the order in which they came.
    pub fn all_shards(&self) -> impl Iterator<Item = &ShardSpec> {
        self.shards.iter().chain(&self.added)
    }

    /// Returns the configuration with another shard, whose number is new.
    ///
    /// # Errors
    /// The shard cannot be.
    pub fn with_shard(&self, spec: ShardSpec) -> Result<Self, ShardError> {
        for server in &spec.servers {
            let is_other = |s: &&Server| s.node == server.node && s.storage != server.storage;
            let before = self.all_shards().find(|shard| shard.servers.iter().any(|s| is_other(&s)));
            if let Some(before) = before {
                return Err(ShardError::OtherDirectory(server.node, before.shard));
            }
        }
        let mut with = self.clone();
        with.added.push(spec);
        with.check_added()?;
        Ok(with)
    }

    /// Returns the aggregators that are nobody's parent.
    pub fn leaves(&self) -> Leaves {
        let mut is_leaf = vec![true; self.aggregators.len()];
        for parent in self.aggregators.iter().filter_map(|aggregator| aggregator.parent) {
            if let Some(is_leaf) = is_leaf.get_mut(parent as usize) {
                *is_leaf = false;
            }
        }
        Leaves((0..is_leaf.len()).filter(|place| is_leaf[*place]).collect())
    }

    /// Builds a tree of aggregators in which each has at most `fan_in` children, for this many shards. The nodes take turns. Empty if the
    /// orderers alone can take all reports.
    pub fn tree(nodes: &[NodeId], shards: usize, fan_in: usize) -> Vec<Aggregator> {
        let (mut widths, mut width) = (Vec::new(), shards);
        while width > fan_in.max(2) && !nodes.is_empty() {
            width = width.div_ceil(fan_in.max(2));
            widths.push(width);
        }
        let (mut tree, mut above): (Vec<Aggregator>, Option<usize>) = (Vec::new(), None);
        for width in widths.into_iter().rev() {
            let first = tree.len();
            for i in 0..width {
                let parent = above.map(|above| (above + i / fan_in.max(2)) as u32);
                tree.push(Aggregator { node: nodes[tree.len() % nodes.len()], parent });
            }
            above = Some(first);
        }
        tree
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use atoll_core::Encode;

    pub fn shard(shard: u32, nodes: &[u32]) -> ShardSpec {
        let server = |n: &u32| Server { node: NodeId(*n), storage: StorageId(u128::from(*n)) };
        ShardSpec { shard, servers: nodes.iter().map(server).collect() }
    }

    pub fn config(shards: Vec<ShardSpec>) -> ScalogConfig {
        let ordering = OrderingSpec { kind: "log".to_owned(), config: Bytes::new() };
        let (aggregators, orderers, wanted) = (Vec::new(), vec![NodeId(1)], (1, 2));
        let added = Vec::new();
        let (format, interval_us) = (CONFIG_FORMAT, 100);
        ScalogConfig { format, shards, aggregators, orderers, interval_us, added, wanted, ordering }
    }

    #[test]
    fn configurations_that_cannot_be_are_refused() {
        let read = |c: ScalogConfig| ScalogConfig::parse(&c.to_bytes()).map_err(|e| e.to_string());
        let good = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        assert_eq!(read(good.clone()), Ok(good.clone()));
        for (shards, words) in [
            (vec![], "shards: 0 is not allowed (1 to 1024)"),
            (vec![shard(0, &[])], "servers of a shard: 0 is not allowed (1 to 9)"),
            (
                vec![shard(3, &[1, 1])],
                "shard that names a node twice, or node 0: 3 is not allowed (different nodes, from 1 on)",
            ),
            (
                vec![shard(7, &[1]), shard(7, &[2])],
                "number of two shards: 7 is not allowed (numbers of their own)",
            ),
            (
                vec![shard(0, &[1, 2]), shard(1, &[2, 3])],
                "node in two shards: 2 is not allowed (each node in one shard)",
            ),
        ] {
            assert_eq!(read(config(shards)), Err(words.to_owned()));
        }
        let twice = ScalogConfig { added: vec![shard(1, &[7])], ..good.clone() };
        assert_eq!(
            read(twice),
            Err("number of two shards: 1 is not allowed (numbers of their own)".to_owned())
        );
        let mut tree = good.clone();
        tree.aggregators = vec![Aggregator { node: NodeId(1), parent: Some(0) }];
        assert!(read(tree).unwrap_err().contains("stands before it"));
        assert!(read(ScalogConfig { orderers: vec![], ..good.clone() }).is_err());
        assert!(read(ScalogConfig { interval_us: 0, ..good.clone() }).is_err());
        assert!(read(ScalogConfig { format: 2, ..good }).is_err());
    }

    #[test]
    fn shards_are_added_to_a_configuration_under_numbers_of_their_own() {
        let first = config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])]);
        let more = first.with_shard(shard(2, &[1, 5])).unwrap();
        assert_eq!(ScalogConfig::parse(&more.to_bytes()), Ok(more.clone()), "shard 0 may have ended");
        assert_eq!(more.with_shard(shard(2, &[6])), Err(ShardError::Exists(2)));
        assert_eq!(more.with_shard(shard(3, &[6, 6])), Err(ShardError::Twice(3)));
        let mut other = shard(3, &[5]);
        other.servers[0].storage = StorageId(99);
        assert_eq!(more.with_shard(other), Err(ShardError::OtherDirectory(NodeId(5), 2)));
    }

    #[test]
    fn a_tree_has_the_fan_in_at_every_level() {
        let nodes: Vec<NodeId> = (1..=3).map(NodeId).collect();
        assert_eq!(ScalogConfig::tree(&nodes, 4, 4), []);
        let tree = ScalogConfig::tree(&nodes, 3500, 24);
        // 146 leaves under 7 under the orderers.
        assert_eq!(tree.len(), 146 + 7);
        for i in 0..tree.len() {
            let children = tree.iter().filter(|a| a.parent == Some(i as u32)).count();
            assert!(children <= 24, "{i} has {children}");
            assert_eq!(tree[i].parent.is_none(), i < 7);
        }
        let mut config = config(vec![shard(0, &[1])]);
        config.aggregators = tree;
        let (leaves, mut load) = (config.leaves(), std::collections::BTreeMap::new());
        for shard in 0..3500 {
            *load.entry(leaves.of(shard).unwrap()).or_insert(0) += 1;
        }
        assert!(load.len() == 146 && load.values().all(|n| *n <= 24), "{load:?}");
    }

    #[test]
    fn leaves_are_the_aggregators_without_children() {
        let mut config = config(vec![shard(0, &[1])]);
        assert_eq!(config.leaves().of(7), None);
        let at = |parent| Aggregator { node: NodeId(1), parent };
        config.aggregators = vec![at(None), at(Some(0)), at(None), at(Some(1)), at(Some(1))];
        let leaves = config.leaves();
        assert_eq!((0..4).map(|shard| leaves.of(shard).unwrap()).collect::<Vec<_>>(), [2, 3, 4, 2]);
        assert_eq!((0..6).filter(|place| leaves.contains(*place)).collect::<Vec<_>>(), [2, 3, 4]);
    }

    /// With a search of the whole tree for each aggregator and each shard, this would not end.
    #[test]
    fn the_leaves_of_a_large_tree_are_found_at_once() {
        let mut config = config(vec![shard(0, &[1])]);
        config.aggregators = ScalogConfig::tree(&[NodeId(1)], 1 << 20, 2);
        let leaves = config.leaves();
        let used: BTreeSet<usize> = (0..1 << 20).filter_map(|shard| leaves.of(shard)).collect();
        assert_eq!(used.len(), 1 << 19);
    }
}

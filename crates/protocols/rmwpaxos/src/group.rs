//! The group of acceptors that holds the registers, named by node *and* data directory (rmw-T9), and its epoch (§9a).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::{Encode, NodeId, StorageId};

/// Maximum number of acceptors in a group.
pub const MAX_MEMBERS: usize = 9;

atoll_core::record! {
    /// One acceptor: a node and the data directory that holds its promises and votes. A wiped disk is another member (rmw-T9).
    pub struct Member {
        /// The node.
        pub node: NodeId,
        /// Its data directory.
        pub storage: StorageId,
    }
}

atoll_core::record! {
    /// A group. Epoch `e + 1` is chosen in the root register of epoch `e`, so each epoch has exactly one group. The first group comes from
    /// the configuration of the nodes.
    pub struct GroupConfig {
        /// Counts the groups; the first one has epoch 1.
        pub epoch: u64,
        /// The acceptors, in the order of their nodes.
        pub members: Vec<Member>,
    }
}

/// Why a list of members does not form a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGroup {
    /// None at all, or more than [`MAX_MEMBERS`].
    #[error("a group has 1 to {MAX_MEMBERS} members, not {0}")]
    Size(usize),
    /// A node occurs twice, so it would vote twice.
    #[error("node {0} is in the group twice")]
    Twice(NodeId),
}

impl GroupConfig {
    /// Creates a group of these members, sorted by node.
    pub fn new(epoch: u64, mut members: Vec<Member>) -> Result<Self, InvalidGroup> {
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(InvalidGroup::Size(members.len()));
        }
        members.sort_by_key(|m| m.node);
        match members.windows(2).find(|w| w[0].node == w[1].node) {
            Some(w) => Err(InvalidGroup::Twice(w[0].node)),
            None => Ok(GroupConfig { epoch, members }),
        }
    }

    /// Returns the number of acceptors in a majority.
    pub fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// Returns whether this node with this data directory is a member.
    pub fn contains(&self, node: NodeId, storage: StorageId) -> bool {
        self.members.iter().any(|m| m.node == node && m.storage == storage)
    }

    /// Returns a hash of epoch and members (FNV-1a over the byte form), which every request carries. With it, two nodes that were
    /// configured with different first groups reject each other's requests instead of splitting the registers.
    pub fn mark(&self) -> u64 {
        self.to_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
    }
}

impl fmt::Display for GroupConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {} of", self.epoch)?;
        for (i, m) in self.members.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { " nodes " } else { ", " }, m.node)?;
        }
        Ok(())
    }
}

/// The newest serving group that a node's acceptor knows. The acceptor updates it, also during recovery; the code that starts the
/// proposers of that node reads it.
#[derive(Clone, Debug, Default)]
pub struct KnownGroup(Arc<Mutex<Option<GroupConfig>>>);

impl KnownGroup {
    /// Returns the group; None if the acceptor has not learned of one.
    pub fn get(&self) -> Option<GroupConfig> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, group: &GroupConfig) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(group.clone());
    }
}

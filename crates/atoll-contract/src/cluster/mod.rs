//! The cluster, as the procedures of a protocol see it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the members, for procedures that choose a group of them |
//! | `picture.rs` | what one node knows about the cluster at one moment, for [`crate::LogletProvider::reason_to_reconfigure`] |
//! | `reach.rs` | which members reach each other, as they report |
//! | `health.rs` | the health of a node's disk |

mod health;
mod picture;
pub mod reach;

use std::fmt;

use atoll_core::{BoxFuture, NodeId, Notify, StorageId};

pub use health::Health;
pub use picture::{Life, Picture, Sight, can_do_without_drained};
pub use reach::Reach;

/// A member in a [`Roster`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RosterRow {
    /// The id of the member.
    pub node: NodeId,
    /// The identity of its data directory; 0 until it has joined.
    pub storage: StorageId,
    /// It may hold registers.
    pub meta: bool,
    /// An operator is emptying the node: it must hold nothing.
    pub draining: bool,
    /// The node is believed to be up. Safety never depends on this belief.
    pub alive: bool,
    /// Its disk is believed to be closed, hanging or full, although its process may answer. Safety never depends on this belief, either.
    pub failing: bool,
}

impl RosterRow {
    /// Whether registers may be placed on this member. It says nothing about whether the member is up.
    pub fn may_hold_registers(&self) -> bool {
        self.meta && !self.draining && self.storage != StorageId(0)
    }

    /// Whether the member is believed to be up, with a disk that works.
    pub fn works(&self) -> bool {
        self.alive && !self.failing
    }
}

/// The members of the cluster, as one node knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The version of the table of members; 0 as long as the node knows only its configuration file.
    pub version: u64,
    /// The members, in the order of their ids.
    pub members: Vec<RosterRow>,
}

impl Roster {
    /// Returns the row of a node, or None if it is not a member.
    pub fn get(&self, node: NodeId) -> Option<&RosterRow> {
        self.members.iter().find(|row| row.node == node)
    }
}

/// What a node knows about its cluster. A protocol that keeps data on a group of members uses it to choose them.
pub trait Cluster: Send + Sync + fmt::Debug {
    /// Returns the founders that may hold registers, according to the configuration file, in the order of their ids.
    fn founders(&self) -> Vec<NodeId>;

    /// Returns the members, as this node knows them.
    fn roster(&self) -> Roster;

    /// Whether this node considers a node alive. It always considers itself alive.
    fn is_alive(&self, node: NodeId) -> bool;

    /// Returns what notifies when a member, or the belief about one, changes.
    fn changed(&self) -> Notify;

    /// Asks the known members for the table of members, and adopts the newest answer.
    fn ask_members(&self) -> BoxFuture<'_, ()>;

    /// Reads the table of members from its register. Returns false if that failed.
    fn reread_members(&self) -> BoxFuture<'_, bool>;
}

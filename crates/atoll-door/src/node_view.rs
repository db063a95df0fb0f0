//! The node and its cluster, as doors see them.

use std::time::Duration;

use atoll_core::{Incarnation, NodeId};

/// What a door may ask its node about itself and the other nodes. Every answer is what this node believes now, and costs little.
pub trait NodeView: Send + Sync {
    /// Returns the id of this node.
    fn node(&self) -> NodeId;

    /// Returns the ids in the table of members, in ascending order. Lacks this node until it has joined.
    fn members(&self) -> Vec<NodeId>;

    /// Returns all members except this node.
    fn peers(&self) -> Vec<NodeId>;

    /// Returns the nodes that are up and whose replica of the database is in service. Always includes this node.
    fn serving(&self) -> Vec<NodeId>;

    /// Returns the life that another node is in, according to its last heartbeat. None before the first one.
    fn life(&self, node: NodeId) -> Option<Incarnation>;

    /// Returns for how long the oldest unapplied entry has been waiting at the slowest of the other replicas of the database that are
    /// in service, according to their last heartbeats. About zero if they keep pace.
    fn longest_apply_delay(&self) -> Duration;

    /// Whether this node orders the appends to the log of the database.
    fn orders_database(&self) -> bool;

    /// Whether the disk of this node is nearly full. A door then refuses requests that make the data grow.
    fn is_short_of_space(&self) -> bool;

    /// Returns the address at which other nodes reach this one.
    fn peer_address(&self) -> String;
}

//! The role of this protocol on a node.

use atoll_core::RoleKind;

/// Holds replicas of shards, and leads shards.
pub const REPLICA: RoleKind = RoleKind(40);

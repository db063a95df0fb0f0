//! The role of the database on a node.

use atoll_core::RoleKind;

/// A replica, for its peers.
pub const REPLICA: RoleKind = RoleKind(8);

//! The server role of the database on a node.

use atoll_core::RoleKind;

/// The role through which peers reach a replica.
pub const REPLICA: RoleKind = RoleKind(8);

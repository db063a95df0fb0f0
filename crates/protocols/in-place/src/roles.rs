//! The role of this protocol on a node.

use atoll_core::RoleKind;

/// Holds the votes of a node for the keys of its groups.
pub const ACCEPTOR: RoleKind = RoleKind(50);

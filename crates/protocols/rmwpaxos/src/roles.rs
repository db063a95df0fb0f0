//! The role of this protocol on a node.

use atoll_core::RoleKind;

/// Acceptor.
pub const ACCEPTOR: RoleKind = RoleKind(3);

//! The role of this protocol on a node.

use atoll_core::RoleKind;

/// The store of the loglets.
pub const LOCAL_STORE: RoleKind = RoleKind(4);

//! The roles of this protocol on a node.

use atoll_core::RoleKind;

/// The clerk, which passes appends to the store.
pub const CLERK: RoleKind = RoleKind(20);
/// The store, which orders and holds the entries.
pub const STORE: RoleKind = RoleKind(21);
/// The mirror, which holds a second copy of sealed loglets.
pub const MIRROR: RoleKind = RoleKind(22);

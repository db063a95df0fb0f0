//! The server roles that every node has in addition to [`atoll_core::roles::MEMBER`].

use atoll_core::RoleKind;

/// The failure detector (`detector.rs`).
pub const DETECTOR: RoleKind = RoleKind(6);
/// Gossip about which nodes are up (`gossip.rs`).
pub const GOSSIP: RoleKind = RoleKind(7);
/// Keeps the active feature level (`levels.rs`).
pub const LEVELS: RoleKind = RoleKind(9);
/// Looks at a place of registers for another node (`places/role.rs`).
pub const PLACES: RoleKind = RoleKind(10);

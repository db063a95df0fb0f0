//! The roles of every node besides [`atoll_core::roles::MEMBER`].

use atoll_core::RoleKind;

/// The failure detector (`detector.rs`).
pub const DETECTOR: RoleKind = RoleKind(6);
/// Gossip about who is up.
pub const GOSSIP: RoleKind = RoleKind(7);
/// Feature levels: keeps the active one.
pub const LEVELS: RoleKind = RoleKind(9);

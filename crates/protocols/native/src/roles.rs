//! The roles of this protocol on a node.

use atoll_core::RoleKind;

/// LogServer.
pub const LOG_SERVER: RoleKind = RoleKind(1);
/// Sequencer.
pub const SEQUENCER: RoleKind = RoleKind(2);

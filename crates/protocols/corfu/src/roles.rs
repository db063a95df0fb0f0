//! The roles of this protocol on a node.

use atoll_core::RoleKind;

/// The storage unit, which holds write-once addresses.
pub const UNIT: RoleKind = RoleKind(30);
/// The sequencer, which gives out positions.
pub const SEQUENCER: RoleKind = RoleKind(31);

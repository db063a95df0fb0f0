//! The roles of this protocol on a node.

use atoll_core::RoleKind;

/// The storage server of a shard.
pub const SERVER: RoleKind = RoleKind(32);
/// The aggregator, which merges the reports of several servers.
pub const AGGREGATOR: RoleKind = RoleKind(33);
/// The orderer, which proposes cuts.
pub const ORDERER: RoleKind = RoleKind(34);

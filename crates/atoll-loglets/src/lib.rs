//! Loglets: logs with a fixed configuration that can be sealed, one folder per protocol.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `native/` | Delos' NativeLoglet: a sequencer and LogServers, majority quorums |
//! | `local/` | one node, its journal and nothing else |
//! | `store/` | what both keep on a disk: runs of entries, their places, the newest in memory |
//! | `dedupe.rs` | which operations were appended lately, and where |

pub mod dedupe;
pub mod local;
pub mod native;
pub mod store;

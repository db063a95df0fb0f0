//! Loglets: logs with a fixed configuration that can be sealed, one folder per protocol.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `native/` | Delos' NativeLoglet: a sequencer and LogServers, majority quorums |
//! | `local/` | one node, its journal and nothing else |
//! | `store/` | what both keep on a disk: runs of entries, their places, the newest in memory |
//! | `intake.rs`, `dedupe.rs` | what an orderer checks: no append overtakes another, no operation gets two places |
//! | `lane.rs` | the sending side of that order |
//! | `tails.rs` | what a handle knows of the tail, and who waits for it |
//! | `mutants.rs` | known bugs and coverage marks, for tests |

pub mod dedupe;
pub mod intake;
pub mod lane;
pub mod local;
pub mod mutants;
pub mod native;
pub mod store;
mod tails;

/// Bytes of entries that one step of a copy takes, if nothing else is said.
const STEP_BYTES: u32 = 512 * 1024;

//! Invariants that the code checks itself, also in release builds (bizur §8). The oracle, which sees all messages and all facts, checks the
//! others.

use atoll_core::invariant;

use crate::elect::{ElectId, Ver};

/// Checks bizur-Z2: the vote of a replica never falls.
pub(crate) fn vote_rises(before: ElectId, after: ElectId) {
    invariant!(after >= before, "the vote went back from {before} to {after}");
}

/// Checks bizur-Z4: the version of a bucket at a replica never falls.
pub(crate) fn bucket_rises(index: u32, before: Ver, after: Ver) {
    invariant!(after >= before, "bucket {index} went back from {before} to {after}");
}

/// Checks bizur-Z6: a leader writes a bucket only once it has recovered it, except for the recovery itself, and never uses a counter twice.
pub(crate) fn write_follows(index: u32, recovered: bool, before: u64, ctr: u64) {
    invariant!(recovered || ctr == 1, "bucket {index} is written with counter {ctr} before its recovery");
    invariant!(ctr > before, "bucket {index} is written with counter {ctr} after {before}");
}

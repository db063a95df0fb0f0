//! The invariants of the protocol (scalog.md §12), and where each is maintained.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | scalog-G1 the sequence numbers 0..base and the ordered records correspond one to one | `order.rs`, `cut`; checked here |
//! | scalog-G2 cuts never fall | `order.rs`, `cut` |
//! | scalog-G3 every server of a shard has all ordered records of it | the minimum in `reported.rs`, synced counts in `server/`; checked here (S14) |
//! | scalog-G4 acknowledged is below a cut | `server/ordered.rs`, `settle` |
//! | scalog-G6 a shard that has ended, or a sealed log, does not change | `order.rs`, `apply`, `cut` |
//! | scalog-G8 the tail is the sum of a committed cut | `loglet/tail.rs` |

use std::collections::BTreeMap;

use atoll_core::invariant;

use crate::order::Shard;

/// Checks that the next number grew as the number of ordered records did (G1): if it was that number before, it still is.
pub(crate) fn base_grew_with_cut(before: u64, base: u64, grown: u64) {
    invariant!(
        base == before.wrapping_add(grown),
        "the next number was {before} and is {base}, and {grown} more records are ordered (scalog-G1)"
    );
}

/// Checks that the next number is the number of ordered records (G1).
pub(crate) fn base_is_sum(base: u64, shards: &BTreeMap<u32, Shard>) {
    invariant!(
        base == shards.values().flat_map(|shard| &shard.counts).sum::<u64>(),
        "the next number is {base}, and other than that many records are ordered (scalog-G1)"
    );
}

/// Checks that a server that learns of a cut has what the cut covers, because the cut is below its own report (G3, S14).
pub(crate) fn cut_is_here(shard: u32, segment: usize, ordered: u64, synced: u64) {
    invariant!(
        ordered <= synced,
        "a cut covers {ordered} records of segment {segment} of shard {shard}; {synced} are here (scalog-G3)"
    );
}

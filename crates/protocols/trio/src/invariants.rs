//! The invariants of a trio loglet: those of the NativeLoglet (native §8), for one store and a second copy that is made after the seal.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | native-N1 one payload per offset, ever | the store assigns rising offsets, and the mirror copies from the store only; a retry gets its original offset (`deduplicator`) |
//! | native-N2 the seal bit never clears, the tail never falls | both are facts of the store; recovery replays them (`store/recovery.rs`) |
//! | native-N3 acknowledged offsets are below every sealed tail | the seal is journaled after everything that the store accepted before it (native-T4); checked here |
//! | native-N4 an open tail is durable | the tail counts synced entries only; answers wait for the sync that they reveal (X1) |
//! | native-N5 a copy ends where its loglet ends | the mirror takes nothing at or above the sealed tail; checked here |
//! | native-N8 real-time order | a single store orders everything |

use std::ops::Range;

use atoll_contract::Offset;
use atoll_core::invariant;

/// Checks that a new entry follows everything accepted before it (native-N1, native-N8), and precedes any seal (native-N3).
pub(super) fn extends(staged_tail: Offset, first: Offset, sealed: bool) {
    invariant!(first == staged_tail, "an append at {first}, behind {staged_tail} (native-N1)");
    invariant!(!sealed, "a sealed loglet takes an append at {first} (native-N3)");
}

/// Checks that a copy is below the end of its sealed loglet (native-N5).
pub(super) fn is_below_the_end(copy: &Range<Offset>, end: Offset) {
    invariant!(
        copy.end <= end,
        "a copy of [{}, {}) of a loglet that ends at {end} (native-N5)",
        copy.start,
        copy.end
    );
}

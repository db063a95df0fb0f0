//! The invariants of a LocalLoglet: those of the NativeLoglet (native §8), for one server without a sequencer.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | native-N1 one payload per offset, ever | the store itself assigns rising offsets; a retry gets its original offset (`deduplicator`) |
//! | native-N2 the seal bit never clears, the tail never falls | both are facts; recovery replays them (`store/recovery.rs`) |
//! | native-N3 acknowledged offsets are below every sealed tail | a seal waits until everything admitted before it is durable (native-T4) |
//! | native-N4 an open tail is durable | the tail counts synced entries only; answers wait for the sync that they reveal (X1) |
//! | native-N8 real-time order | a single store orders everything |

use atoll_contract::Offset;
use atoll_contract::loglet::offsets::ascend;
use atoll_core::invariant;

/// Checks that a new entry follows everything accepted before it (native-N1, native-N8), and precedes any seal (native-N3).
pub(super) fn extends(staged_tail: Offset, first: Offset, sealed: bool) {
    invariant!(first == staged_tail, "an append at {first}, behind {staged_tail} (native-N1)");
    invariant!(!sealed, "a sealed loglet takes an append at {first} (native-N3)");
}

/// Checks the order of the tails after an entry became durable (native-N4): everything that is synced is committed, and nothing else.
pub(super) fn tails(known_tail: Offset, local_tail: Offset, staged_tail: Offset) {
    ascend(&[("known tail", known_tail), ("local tail", local_tail), ("staged tail", staged_tail)]);
}

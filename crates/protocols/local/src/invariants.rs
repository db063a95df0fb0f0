//! What always holds of a LocalLoglet: the invariants of the NativeLoglet (native §8) for one server without a sequencer.
//!
//! | invariant | where it is kept |
//! | --- | --- |
//! | N1 one payload per offset, ever | offsets are given by the store itself, rising; a retry gets its first offset (`dedupe`) |
//! | N2 the seal bit never clears, the tail never falls | both are facts; recovery replays them (`store/recovery.rs`) |
//! | N3 acknowledged offsets lie below every sealed tail | a seal is answered after the entries admitted before it are durable (T4) |
//! | N4 an open tail is durable | the tail counts synced entries only; answers wait for the sync that they reveal (X1) |
//! | N8 real time | one place, one order |

use atoll_contract::Offset;
use atoll_core::invariant;

/// What is admitted follows what was (N1, N8), and comes before any seal (N3).
pub(super) fn extends(staged_tail: Offset, first: Offset, sealed: bool) {
    invariant!(first == staged_tail, "an append at {first}, behind {staged_tail} (N1)");
    invariant!(!sealed, "a sealed loglet takes an append at {first} (N3)");
}

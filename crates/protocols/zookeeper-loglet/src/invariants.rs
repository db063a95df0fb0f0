//! The invariants of a loglet in ZooKeeper.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | native-N1 one payload per offset, ever | a batch is created under its number together with the new tail, and never changed (`append.rs`) |
//! | native-N2 the seal never clears, the tail never falls | both are versions of znodes, which only rise (`layout.rs`) |
//! | native-N3 acknowledged offsets are below every sealed tail | the write of an append checks the seal (`append.rs`) |
//! | native-N4 an open tail is durable | the ensemble answers once a quorum has it |
//! | native-N8 real-time order | an append begins at the tail that its write checks |
//! | batches follow each other without a gap | the check below, wherever batches are read in their order |

use atoll_contract::Offset;
use atoll_core::invariant;

use crate::layout::Stored;

/// Checks that a batch begins where the one before it ends (native-N1).
pub(crate) fn follows(next: Offset, stored: &Stored) {
    invariant!(stored.first == next, "a batch at {}, behind {next} (native-N1)", stored.first);
}

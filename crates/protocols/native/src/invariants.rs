//! The invariants of native §8 that a single component can check. The product checks these, also in release builds.
//!
//! | | invariant | checked |
//! | --- | --- | --- |
//! | native-N1 | one payload per offset, anywhere, ever | here, when an entry arrives again; by oracles, over all disks |
//! | native-N2 | seal bits never clear, local tails never fall | by type, `store/loglet_store.rs`; by oracles, over restarts |
//! | native-N3 | acks below every sealed tail | by oracles (`tests/protocol/model.rs`) |
//! | native-N4 | open tails not above sealed ones | by oracles |
//! | native-N5 | the entries below a sealed tail on a majority | by oracles |
//! | native-N6 | no Stored by a sealed server | here |
//! | native-N7 | entries missing below the local tail are below a known tail | here, when an entry is accepted; by oracles (`testing/gaps.rs`) |
//! | native-N8 | a check covers earlier acks | by oracles |
//! | native-N9 | known tails not above the global tail | here, at the sequencer: no server knows a higher tail |

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::invariant;

/// Checks native-N1, if the first copy is in memory and has the same bounds.
pub(super) fn one_payload(at: Offset, here: &Bytes, again: &Bytes) {
    invariant!(here == again, "two payloads at offset {at} (native-N1)");
}

/// Checks native-N6: an entry that a server reports as stored was stored while the server was unsealed.
pub(super) fn stored_while_open(sealed: bool, at: Offset) {
    invariant!(!sealed, "a sealed server takes a Store at {at} (native-N6)");
}

/// Checks native-N7: the offsets that are skipped by accepting an entry at `at` are all committed.
pub(super) fn skips_only_committed(staged_tail: Offset, known_tail: Offset, at: Offset) {
    invariant!(
        at == staged_tail || known_tail >= at,
        "an entry at {at} behind {staged_tail}, with a known tail of {known_tail} (native-N7)"
    );
}

/// Checks native-N9: a server's known tail comes from the sequencer while the server is unsealed, so it is not above the sequencer's.
pub(super) fn not_ahead_of_its_source(server: Offset, sequencer: Offset) {
    invariant!(server <= sequencer, "a server knows {server}, the sequencer {sequencer} (native-N9)");
}

//! The invariants of native §8 that a single component can check; the product checks these, in release builds, too.
//!
//! | | invariant | checked |
//! | --- | --- | --- |
//! | native-N1 | one payload per offset, anywhere, ever | here, when an entry comes again; by outside oracles over all disks |
//! | native-N2 | seal bits never clear, local tails never fall | by type, `store/loglet_store.rs`; outside over restarts |
//! | native-N3 | acks below every sealed tail | outside (`tests/model.rs`) |
//! | native-N4 | open tails not above sealed ones | outside |
//! | native-N5 | a sealed tail's entries on a majority | outside |
//! | native-N6 | no Stored by a sealed server | here |
//! | native-N7 | what is missing below the local tail is below a known tail | here, when an entry is taken; outside (`gaps.rs`) |
//! | native-N8 | a check covers earlier acks | outside |
//! | native-N9 | known tails not above the global tail | here, at the sequencer: no server knows more than it |

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::invariant;

/// native-N1, where the first copy is in memory and has the same bounds.
pub(super) fn one_payload(at: Offset, here: &Bytes, again: &Bytes) {
    invariant!(here == again, "two payloads at offset {at} (native-N1)");
}

/// native-N6: an entry that a server reports as stored while unsealed was stored while unsealed.
pub(super) fn stored_while_open(sealed: bool, at: Offset) {
    invariant!(!sealed, "a sealed server takes a Store at {at} (native-N6)");
}

/// native-N7: the offsets skipped by taking an entry at `at` are all committed.
pub(super) fn skips_only_committed(staged_tail: Offset, known_tail: Offset, at: Offset) {
    invariant!(
        at == staged_tail || known_tail >= at,
        "an entry at {at} behind {staged_tail}, with a known tail of {known_tail} (native-N7)"
    );
}

/// native-N9: every server's known tail comes from the sequencer while the server is unsealed.
pub(super) fn not_ahead_of_its_source(server: Offset, sequencer: Offset) {
    invariant!(server <= sequencer, "a server knows {server}, the sequencer {sequencer} (native-N9)");
}

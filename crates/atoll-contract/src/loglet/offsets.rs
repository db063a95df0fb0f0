//! The offsets of a Loglet in their order, lowest first.
//!
//! ```text
//!  a Loglet         0          trim point                  known tail                     tail                     next offset
//!                   ├───────────────┼───────────────────────────┼───────────────────────────┼───────────────────────────┤
//!                       given up        known to be readable        readable, not known yet      not on a majority yet
//!
//!  one server       0          trim point                  local tail                  staged tail
//!                   ├───────────────┼───────────────────────────┼───────────────────────────┤
//!                       given up              synced here          on its way to the disk
//!
//!  a sealed Loglet  0          trim point                     stop               a server's local tail
//!                   ├───────────────┼───────────────────────────┼───────────────────────────┤
//!                       given up      all that was acknowledged        read by nobody
//! ```
//!
//! | chain of inequalities | where it always holds | who checks it |
//! | --- | --- | --- |
//! | known tail ≤ tail ≤ next offset | at the node that orders appends, which computes the tail from what servers report | `atoll-native`, `sequencer/sequenced_loglet.rs` |
//! | local tail ≤ staged tail | on each server | `atoll-loglet-store`, `store/loglet_store.rs` |
//! | known tail = local tail ≤ staged tail | in a Loglet with one server that assigns the offsets itself | `atoll-local`, `invariants.rs` |
//! | trim point ≤ known tail | at the client that trims. A server may learn of the trim first, and may lack what was trimmed | [`super::Loglet::prefix_trim`] |
//!
//! `docs/concepts.md` explains the words.

use atoll_core::invariant;

use crate::position::Offset;

/// Checks that these offsets do not fall, in the order in which they are given, also in release builds. Each has a name for the message.
pub fn ascend(offsets: &[(&'static str, Offset)]) {
    for pair in offsets.windows(2) {
        let ((below, low), (above, high)) = (pair[0], pair[1]);
        invariant!(low <= high, "the {below} is {low}, above the {above}, {high}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_offsets_ascend() {
        ascend(&[("trim point", Offset(3)), ("known tail", Offset(3)), ("tail", Offset(7))]);
        ascend(&[]);
    }

    #[test]
    #[should_panic(expected = "the known tail is 8, above the tail, 7")]
    fn a_known_tail_above_the_tail_is_found() {
        ascend(&[("known tail", Offset(8)), ("tail", Offset(7)), ("next offset", Offset(9))]);
    }
}

//! The invariants of the protocol (corfu §9), and where each is maintained.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | corfu-K1 an address is written once | `unit/space.rs`, `taken`; checked here |
//! | corfu-K2 the units of a chain that have a position are a prefix of it, and have the same content | writes and copies go from head to tail (`client/`); checked here |
//! | corfu-K6 a unit serves only its own epoch, which never falls, restarts included | `unit/mod.rs`, `admit`; checked here |

use atoll_core::invariant;

use crate::intervals::Intervals;

/// Checks that addresses were never written (corfu-K1).
pub(crate) fn is_unwritten(written: &Intervals, first: u64, count: u32) {
    let range = first..first + u64::from(count);
    invariant!(
        written.within(range).is_empty(),
        "{count} addresses from {first} on are written twice (corfu-K1)"
    );
}

/// Checks that the epoch of a unit rises (corfu-K6).
pub(crate) fn epoch_rises(from: u64, to: u64) {
    invariant!(to > from, "a unit goes from epoch {from} to {to} (corfu-K6)");
}

/// Fails: a later unit of a chain has another content than an earlier one (corfu-K2).
pub(crate) fn never_two_contents(at: u64) {
    invariant!(at == u64::MAX, "a chain has two contents at {at} (corfu-K2)");
}

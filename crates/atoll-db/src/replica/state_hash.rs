//! A hash of the whole state that costs a little with every write. Two replicas can compare it at any position that both have
//! passed (issue: a difference is found by itself).
//!
//! The sum, modulo 2^128, of one hash for each key and value: the order of writes does not matter, a write takes the old value's
//! hash away and adds the new one's, and a scan of the store gives the same.

use bytes::Bytes;
use twox_hash::{XxHash3_64, XxHash3_128};

use atoll_contract::LogPos;

/// Positions at which replicas remember their hash are multiples of this.
pub(crate) const SAMPLE_EVERY: u64 = 256;
/// How many of these hashes are remembered.
pub(crate) const SAMPLES: usize = 64;

/// The hash of a state at a position: of everything in entries below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashAt {
    /// The first entry that is not in it.
    pub below: LogPos,
    /// The hash.
    pub hash: u128,
}

/// See the module documentation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateHash(pub(crate) u128);

fn seed(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// What a key with its value adds to the sum.
pub(crate) fn of(key: &[u8], value: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(seed(key), value)
}

/// What a key had before the writes that are not committed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) key: Bytes,
    /// What it added to the sum.
    pub(crate) part: u128,
    /// Whether it was there.
    pub(crate) present: bool,
}

#[cfg(test)]
impl Before {
    pub(crate) fn of(key: Bytes, value: Option<&Bytes>) -> Self {
        Before { part: value.map_or(0, |value| of(&key, value)), present: value.is_some(), key }
    }
}

impl StateHash {
    /// Replaces the value of a key in the hash; returns what the old value had contributed.
    pub(crate) fn replace(&mut self, key: &[u8], old: Option<&Bytes>, new: Option<&Bytes>) -> u128 {
        let seed = seed(key);
        let part = |value: Option<&Bytes>| value.map_or(0, |v| XxHash3_128::oneshot_with_seed(seed, v));
        let gone = part(old);
        self.0 = self.0.wrapping_sub(gone).wrapping_add(part(new));
        gone
    }

    /// Includes what the engine itself keeps.
    pub(crate) fn with(self, engine: &[u8]) -> u128 {
        self.0 ^ XxHash3_128::oneshot(engine)
    }
}

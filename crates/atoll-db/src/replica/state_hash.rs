//! A hash of the whole state. Keeping it up to date costs little with every write. Two replicas can compare their hashes at any
//! position that both have passed.
//!
//! It is the sum, modulo 2^128, of one hash for each key and value. A write subtracts the hash of the old value and adds that of
//! the new one. The order of writes therefore does not matter, and a scan of the store yields the same sum.

use bytes::Bytes;
use twox_hash::{XxHash3_64, XxHash3_128};

use atoll_contract::LogPos;

/// Replicas keep their hash at positions that are multiples of this.
pub(crate) const SAMPLE_EVERY: u64 = 256;
/// The number of these hashes that are kept.
pub(crate) const SAMPLES: usize = 64;

/// The hash of the state that includes all entries below a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashAt {
    /// The first position that the state does not include.
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

/// Returns what a key with its value contributes to the sum.
pub(crate) fn of(key: &[u8], value: &[u8]) -> u128 {
    XxHash3_128::oneshot_with_seed(seed(key), value)
}

/// What a key contributed before the writes that are not committed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    pub(crate) key: Bytes,
    /// Its contribution to the sum.
    pub(crate) part: u128,
    /// Whether the key existed.
    pub(crate) present: bool,
}

#[cfg(test)]
impl Before {
    pub(crate) fn of(key: Bytes, value: Option<&Bytes>) -> Self {
        Before { part: value.map_or(0, |value| of(&key, value)), present: value.is_some(), key }
    }
}

impl StateHash {
    /// Replaces the value of a key in the hash. Returns what the old value had contributed.
    pub(crate) fn replace(&mut self, key: &[u8], old: Option<&Bytes>, new: Option<&Bytes>) -> u128 {
        let seed = seed(key);
        let part = |value: Option<&Bytes>| value.map_or(0, |v| XxHash3_128::oneshot_with_seed(seed, v));
        let gone = part(old);
        self.0 = self.0.wrapping_sub(gone).wrapping_add(part(new));
        gone
    }

    /// Returns the hash combined with the engine's own record.
    pub(crate) fn with(self, engine: &[u8]) -> u128 {
        self.0 ^ XxHash3_128::oneshot(engine)
    }
}

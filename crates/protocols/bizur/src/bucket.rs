//! The content of a bucket: its keys, and the outcomes of its last writes, by which a repeat is recognised (bizur-B10).
//!
//! The outcomes travel with the bucket, so every leader and every later instance knows them. Their number is bounded. Each has the clock of
//! the bucket at which it was recorded. A write states a floor: a clock of the bucket before its first attempt. If an outcome above the
//! floor was dropped, the write may have been it, and is refused.
//!
//! Limits are checked here, before anything is replicated.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::OpId;
use atoll_contract::keyspace::{Change, Guard, KeyVersion};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode, Reader};
use bytes::{Bytes, BytesMut};

use crate::mutants;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 32 * 1024;
/// The most bytes that the keys of a bucket take, with their values and versions. A whole bucket is written with each change, so it should
/// have a few kilobytes; this is only the bound.
pub const MAX_CONTENT_BYTES: usize = 48 * 1024;
/// How many outcomes a bucket remembers.
pub const REMEMBERED_WRITES: usize = 32;
/// Bytes of a key in addition to itself and its value.
const ITEM_BYTES: usize = 16;
/// Format of an encoded bucket.
const FORMAT: u8 = 1;
/// The longest encoded bucket.
pub const MAX_BUCKET_BYTES: usize = MAX_CONTENT_BYTES + REMEMBERED_WRITES * 40 + 64;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key changed, and got this version.
    Done(u64),
    /// The condition did not hold. Recorded only for repeats: an earlier attempt may still be under way, and must not take effect later.
    Failed,
}

/// A remembered outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    op: OpId,
    clock: u64,
    outcome: Outcome,
}

/// A write, as the leader of its bucket applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketWrite {
    /// Its name.
    pub op: OpId,
    /// A clock of the bucket before the first attempt.
    pub floor: u64,
    /// Whether an earlier attempt may still be under way.
    pub repeat: bool,
    /// The key.
    pub key: Bytes,
    /// The condition.
    pub guard: Guard,
    /// What it does.
    pub change: Change,
}

/// What a write came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The bucket has changed. The outcome holds once the bucket is written.
    Changed(Outcome),
    /// Nothing has changed: this was the outcome of an earlier attempt.
    Before(Outcome),
    /// Nothing has changed: the condition does not hold, or there is nothing to delete.
    Not,
    /// An earlier attempt may have been forgotten. Nothing has changed.
    Stale,
    /// There is no room in the bucket, or on its replicas. Nothing has changed.
    Full {
        /// Whether it is the bucket that is full.
        bucket: bool,
    },
}

/// The content of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Counts what was recorded. The versions of keys are values of it, so none is ever used again.
    clock: u64,
    /// The highest clock of an outcome that was dropped.
    forgotten: u64,
    /// A part of the format that is always false: an instance copies what it has never written (§6), whatever this says.
    pub needs_copy: bool,
    keys: BTreeMap<Bytes, (u64, Bytes)>,
    done: VecDeque<Remembered>,
    /// Bytes of the keys, see [`MAX_CONTENT_BYTES`].
    content_bytes: usize,
}

fn item_bytes(key: &Bytes, value: &Bytes) -> usize {
    key.len() + value.len() + ITEM_BYTES
}

impl Bucket {
    /// Returns the clock.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns how many bytes its keys take.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// Returns the version and the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<(u64, &Bytes)> {
        self.keys.get(key).map(|(version, value)| (*version, value))
    }

    /// Returns a key, as the bucket keeps it, with its version.
    pub(crate) fn entry(&self, key: &[u8]) -> Option<(&Bytes, u64)> {
        self.keys.get_key_value(key).map(|(key, (version, _))| (key, *version))
    }

    /// Returns its keys with their versions, in order.
    pub fn keys(&self) -> impl Iterator<Item = (&Bytes, u64)> {
        self.keys.iter().map(|(key, (version, _))| (key, *version))
    }

    /// Returns the names of the writes whose outcomes it remembers.
    pub fn remembered(&self) -> impl Iterator<Item = OpId> {
        self.done.iter().map(|known| known.op)
    }

    /// Applies a write. `room` is how many bytes the bucket may grow by, from its length `from`.
    pub fn apply(&mut self, write: &BucketWrite, from: usize, room: usize) -> Applied {
        if let Some(known) = self.done.iter().find(|known| known.op == write.op)
            && !mutant(mutants::BIZUR_NO_DEDUPE)
        {
            hit("bizur.bucket.repeat");
            return Applied::Before(known.outcome);
        }
        if write.floor < self.forgotten {
            hit("bizur.bucket.stale");
            return Applied::Stale;
        }
        let now = self.keys.get(&write.key);
        let holds = write.guard.holds(now.map(|(version, value)| (KeyVersion(*version), &value[..])));
        if !holds || (write.change == Change::Delete && now.is_none()) {
            if write.repeat && !mutant(mutants::BIZUR_NO_DEDUPE) {
                hit("bizur.bucket.refused_repeat");
                self.clock += 1;
                self.remember(write.op, Outcome::Failed);
                return Applied::Changed(Outcome::Failed);
            }
            return Applied::Not;
        }
        let old = now.map_or(0, |(_, value)| item_bytes(&write.key, value));
        let new = match &write.change {
            Change::Put(value) => item_bytes(&write.key, value),
            Change::Delete => 0,
        };
        let bytes = self.content_bytes - old + new;
        if new > old && bytes > MAX_CONTENT_BYTES {
            return Applied::Full { bucket: true };
        }
        if new > old && bytes > from.saturating_add(room) {
            return Applied::Full { bucket: false };
        }
        self.content_bytes = bytes;
        self.clock += 1;
        match &write.change {
            Change::Put(value) => {
                // The request pins its whole read buffer, so copy the bytes that are kept (X13).
                let held = (self.clock, Bytes::copy_from_slice(value));
                match self.keys.get_mut(&write.key) {
                    Some(old) => *old = held,
                    None => drop(self.keys.insert(Bytes::copy_from_slice(&write.key), held)),
                }
            }
            Change::Delete => {
                self.keys.remove(&write.key);
            }
        }
        let outcome = Outcome::Done(self.clock);
        self.remember(write.op, outcome);
        Applied::Changed(outcome)
    }

    fn remember(&mut self, op: OpId, outcome: Outcome) {
        self.done.push_back(Remembered { op, clock: self.clock, outcome });
        if self.done.len() > REMEMBERED_WRITES
            && let Some(dropped) = self.done.pop_front()
        {
            self.forgotten = dropped.clock;
        }
    }
}

impl Encode for Bucket {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.clock.encode(out);
        self.forgotten.encode(out);
        self.needs_copy.encode(out);
        (self.keys.len() as u32).encode(out);
        for (key, (version, value)) in &self.keys {
            version.encode(out);
            key.encode(out);
            value.encode(out);
        }
        (self.done.len() as u32).encode(out);
        for known in &self.done {
            known.op.encode(out);
            known.clock.encode(out);
            match known.outcome {
                Outcome::Failed => 0u64.encode(out),
                Outcome::Done(version) => version.encode(out),
            }
        }
    }
}

impl Decode for Bucket {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let invalid = |what, value, allowed| Err(DecodeError::Invalid { what, value, allowed });
        let format = u8::decode(from)?;
        if format != FORMAT {
            return invalid("format of a bucket", format.into(), "1");
        }
        let (clock, forgotten) = (u64::decode(from)?, u64::decode(from)?);
        let mut bucket = Bucket { clock, forgotten, needs_copy: bool::decode(from)?, ..Bucket::default() };
        if forgotten > clock {
            return invalid("forgotten clock of a bucket", forgotten, "at most its clock");
        }
        for _ in 0..u32::decode(from)? {
            let version = u64::decode(from)?;
            let (key, value) = (Bytes::decode(from)?, Bytes::decode(from)?);
            let ordered = bucket.keys.last_key_value().is_none_or(|(last, _)| *last < key);
            let fits = !key.is_empty() && key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES;
            if !ordered || !fits || version == 0 || version > clock {
                return invalid(
                    "key of a bucket",
                    version,
                    "keys in order, with versions of the bucket's clock",
                );
            }
            bucket.content_bytes += item_bytes(&key, &value);
            bucket.keys.insert(key, (version, value));
        }
        if bucket.content_bytes > MAX_CONTENT_BYTES {
            return invalid("bytes of a bucket", bucket.content_bytes as u64, "at most 49152");
        }
        let count = u32::decode(from)? as usize;
        if count > REMEMBERED_WRITES {
            return invalid("outcomes in a bucket", count as u64, "at most 32");
        }
        for _ in 0..count {
            let (op, at, version) = (OpId::decode(from)?, u64::decode(from)?, u64::decode(from)?);
            let last = bucket.done.back().map_or(forgotten, |known: &Remembered| known.clock);
            if at <= last || at > clock || version > clock {
                return invalid("outcome in a bucket", at, "rising clocks up to that of the bucket");
            }
            let outcome = if version == 0 { Outcome::Failed } else { Outcome::Done(version) };
            bucket.done.push_back(Remembered { op, clock: at, outcome });
        }
        Ok(bucket)
    }
}

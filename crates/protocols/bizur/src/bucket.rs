//! The content of a bucket: its keys, and the outcomes of its last writes, by which a repeat is recognised (bizur-B10).
//!
//! The outcomes travel with the bucket, so every leader and every later instance knows them. Their number is bounded. Each belongs to the
//! clock of the bucket at which it was recorded. A write states a floor: a clock of the bucket before its first attempt. If an outcome
//! above the floor was dropped, the write may have been it, and is refused.
//!
//! Limits are checked here, before anything is replicated.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::keyspace::{Change, Guard, KeyVersion};
use atoll_contract::{ClientId, OpId};
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
/// How many outcomes of repeats a bucket remembers beyond these.
pub const REMEMBERED_REPEATS: usize = 16;
/// Bytes of a key in addition to itself and its value.
const ITEM_BYTES: usize = 16;
/// Format of an encoded bucket. No release has written another one.
const FORMAT: u8 = 3;
/// The longest encoded outcome: its tag, and the client and the number of the write.
const OUTCOME_BYTES: usize = 17;
/// The length of an encoded outcome of a repeat: whether it failed, its client, its number and its clock.
const REPEAT_BYTES: usize = 25;
/// The longest encoded bucket.
pub const MAX_BUCKET_BYTES: usize =
    MAX_CONTENT_BYTES + REMEMBERED_WRITES * OUTCOME_BYTES + REMEMBERED_REPEATS * REPEAT_BYTES + 64;
/// Tags of an outcome: whether the condition did not hold, and whether the client is that of the outcome before. A bucket has outcomes of
/// few clients, and is written as a whole with each change, so its outcomes take a large part of what small values cost.
const FAILED: u8 = 1;
const SAME_CLIENT: u8 = 2;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The key changed, and got this version.
    Done(u64),
    /// The condition did not hold. Recorded only for repeats: an earlier attempt may still be under way, and must not take effect later.
    Failed,
}

/// A remembered outcome. Every tick of the clock of a bucket records one, so its place says at which clock that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remembered {
    op: OpId,
    failed: bool,
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
    keys: BTreeMap<Bytes, (u64, Bytes)>,
    /// The outcomes that were recorded last, one for each clock.
    done: VecDeque<Remembered>,
    /// The last repeats that were recorded, oldest first, each with its clock. The attempt before a repeat may be held up, at a client that
    /// takes its floor from a later answer: it finds here that it was done, however many writes have followed (bizur-B10).
    repeats: VecDeque<(Remembered, u64)>,
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

    /// Returns the highest clock of an outcome that was dropped.
    fn forgotten(&self) -> u64 {
        self.clock - self.done.len() as u64
    }

    /// Returns the outcome of a write, if it is remembered.
    fn outcome_of(&self, op: OpId) -> Option<Outcome> {
        let last =
            self.done.iter().enumerate().rev().map(|(at, known)| (known, self.forgotten() + 1 + at as u64));
        let repeats = self.repeats.iter().map(|(known, clock)| (known, *clock));
        let (known, clock) = last.chain(repeats).find(|(known, _)| known.op == op)?;
        Some(if known.failed { Outcome::Failed } else { Outcome::Done(clock) })
    }

    /// Returns how many bytes its keys take.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// Returns the version and the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<(u64, &Bytes)> {
        self.keys.get(key).map(|(version, value)| (*version, value))
    }

    /// Returns a key that the bucket has, as it keeps it.
    pub(crate) fn key(&self, key: &[u8]) -> Option<&Bytes> {
        self.keys.get_key_value(key).map(|(key, _)| key)
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
        if let Some(outcome) = self.outcome_of(write.op)
            && !mutant(mutants::BIZUR_NO_DEDUPE)
        {
            hit("bizur.bucket.repeat");
            return Applied::Before(outcome);
        }
        if write.floor < self.forgotten() {
            hit("bizur.bucket.stale");
            return Applied::Stale;
        }
        let now = self.keys.get(&write.key);
        let holds = write.guard.holds(now.map(|(version, value)| (KeyVersion(*version), &value[..])));
        if !holds || (write.change == Change::Delete && now.is_none()) {
            if write.repeat && !mutant(mutants::BIZUR_NO_DEDUPE) {
                hit("bizur.bucket.refused_repeat");
                self.record(write, true);
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
        self.record(write, false);
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
        Applied::Changed(Outcome::Done(self.clock))
    }

    /// Counts a write, and remembers its outcome.
    fn record(&mut self, write: &BucketWrite, failed: bool) {
        self.clock += 1;
        let known = Remembered { op: write.op, failed };
        if write.repeat && !mutant(mutants::BIZUR_FORGETS_REPEATS) {
            hit("bizur.bucket.remembers_repeat");
            self.repeats.push_back((known, self.clock));
            if self.repeats.len() > REMEMBERED_REPEATS {
                self.repeats.pop_front();
            }
        }
        self.done.push_back(known);
        if self.done.len() > REMEMBERED_WRITES {
            self.done.pop_front();
        }
    }
}

impl Encode for Bucket {
    fn encode(&self, out: &mut BytesMut) {
        let outcomes = self.done.len() * OUTCOME_BYTES + self.repeats.len() * REPEAT_BYTES;
        out.reserve(self.content_bytes + outcomes + 64);
        FORMAT.encode(out);
        self.clock.encode(out);
        (self.keys.len() as u32).encode(out);
        for (key, (version, value)) in &self.keys {
            version.encode(out);
            key.encode(out);
            value.encode(out);
        }
        (self.done.len() as u8).encode(out);
        let mut last = None;
        for Remembered { op, failed } in &self.done {
            let is_same = last.replace(op.client) == Some(op.client);
            ((u8::from(*failed) * FAILED) | (u8::from(is_same) * SAME_CLIENT)).encode(out);
            if !is_same {
                op.client.0.encode(out);
            }
            op.seq.encode(out);
        }
        (self.repeats.len() as u8).encode(out);
        for (Remembered { op, failed }, clock) in &self.repeats {
            (u8::from(*failed) * FAILED).encode(out);
            op.encode(out);
            clock.encode(out);
        }
    }
}

impl Decode for Bucket {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let invalid = |what, value, allowed| Err(DecodeError::Invalid { what, value, allowed });
        let format = u8::decode(from)?;
        if format != FORMAT {
            return invalid("format of a bucket", format.into(), "3");
        }
        let clock = u64::decode(from)?;
        let mut bucket = Bucket { clock, ..Bucket::default() };
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
        let count = u8::decode(from)?;
        if usize::from(count) > REMEMBERED_WRITES || u64::from(count) > clock {
            return invalid("outcomes in a bucket", count.into(), "at most 32, one for each clock");
        }
        for _ in 0..count {
            let tag = u8::decode(from)?;
            let last = bucket.done.back().map(|known: &Remembered| known.op.client);
            let client = match tag & SAME_CLIENT {
                0 => Some(ClientId(u64::decode(from)?)).filter(|client| last != Some(*client)),
                _ => last,
            };
            let Some(client) = client.filter(|_| tag & !(FAILED | SAME_CLIENT) == 0) else {
                return invalid(
                    "outcome in a bucket",
                    tag.into(),
                    "a known tag, with another client or that of the last one",
                );
            };
            let op = OpId { client, seq: u64::decode(from)? };
            bucket.done.push_back(Remembered { op, failed: tag & FAILED != 0 });
        }
        let count = u8::decode(from)?;
        if usize::from(count) > REMEMBERED_REPEATS {
            return invalid("repeats in a bucket", count.into(), "at most 16");
        }
        for _ in 0..count {
            let (tag, op, at) = (u8::decode(from)?, OpId::decode(from)?, u64::decode(from)?);
            let rises = bucket.repeats.back().is_none_or(|(_, last)| *last < at);
            if tag & !FAILED != 0 || at == 0 || at > clock || !rises {
                return invalid(
                    "repeat in a bucket",
                    at,
                    "a known tag, and rising clocks up to the bucket's",
                );
            }
            bucket.repeats.push_back((Remembered { op, failed: tag & FAILED != 0 }, at));
        }
        Ok(bucket)
    }
}

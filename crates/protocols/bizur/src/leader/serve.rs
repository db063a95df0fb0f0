//! The requests of clients (Algorithm 5), and what a leader does at the end of a turn.

use std::collections::VecDeque;
use std::ops::Bound;
use std::time::Duration;

use atoll_contract::keyspace::{Change, place_of};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Tick};
use bytes::Bytes;

use super::rounds::{Kind, Waiter, Written};
use super::{Leader, LedBucket, PAGES, Progress, Queued, Reader, Wanted, reply};
use crate::bucket::{Applied, BucketWrite, MAX_KEY_BYTES, MAX_VALUE_BYTES, Outcome, REMEMBERED_WRITES};
use crate::invariants;
use crate::message::{Answer, Question, WireGuard};
use crate::mutants;
use crate::shard::Shard;

/// The most keys in a page of a listing.
pub const MAX_PAGE_KEYS: usize = 1000;
/// The most bytes of keys in a page.
const MAX_PAGE_BYTES: usize = 256 * 1024;
/// The longest time for which a leader waits for a change of a key.
const LONGEST_WAIT_MS: u32 = 60_000;
/// The most writes of one bucket that are replicated together. A bucket that forgot outcomes of the batch itself would take later writes of
/// the batch for repeats of forgotten ones: no floor is higher than the clock before the batch, so they could never succeed.
const MAX_BATCH: usize = REMEMBERED_WRITES;
/// The most buckets that one round writes, and the bytes of keys and values from which on it takes no further one. Too large: the first
/// answer waits for what the disk takes for all of them.
const MAX_GROUP: usize = 64;
const MAX_GROUP_BYTES: usize = 64 * 1024;

/// Buckets that are written together.
#[derive(Default)]
struct Group {
    buckets: Vec<Written>,
    bytes: usize,
}

impl Leader {
    /// Takes a request. During an election, it waits for the outcome. The caller has checked that the server leads or stands.
    pub(crate) fn ask(
        &mut self,
        now: Tick,
        shard: &Shard,
        caller: Caller,
        question: Question,
        out: &mut Effects,
    ) {
        if self.readers.len() + self.queued + self.early.len() >= self.options.waiting {
            return reply(caller, Answer::Busy {}, out);
        }
        if self.term.is_none() {
            self.early.push_back((caller, question));
            return;
        }
        let arrived = self.next_round;
        let Some(index) = check(shard, &question) else { return reply(caller, Answer::Invalid {}, out) };
        match question {
            Question::Get { key } => {
                self.demand(index);
                self.readers.push_back(Reader { caller, arrived, wanted: Wanted::Get { index, key } });
            }
            Question::Wait { key, seen, for_ms } => {
                self.demand(index);
                let until = now.after(Duration::from_millis(u64::from(for_ms.min(LONGEST_WAIT_MS))));
                let key = Bytes::copy_from_slice(&key);
                let wanted = Wanted::Change { index, key, seen, until };
                self.readers.push_back(Reader { caller, arrived, wanted });
                if mutant(mutants::BIZUR_WATCH_UNPROVEN) {
                    self.settle(out);
                }
            }
            Question::List { prefix, after, limit } => {
                *self.counted.entry(PAGES).or_default() += 1;
                let limit = (limit as usize).clamp(1, MAX_PAGE_KEYS);
                let wanted = Wanted::List { prefix, after, limit };
                self.readers.push_back(Reader { caller, arrived, wanted });
            }
            Question::Write { op, floor, repeat, key, guard, value } => {
                self.demand(index);
                let (guard, change) = (guard.into(), value.map_or(Change::Delete, Change::Put));
                let write = BucketWrite { op, floor, repeat, key, guard, change };
                let Some(bucket) = self.buckets.get_mut(index as usize) else { return };
                bucket.queue.push_back(Queued { caller, arrived, write });
                self.queued += 1;
                let may_run = bucket.progress == Progress::Ready && bucket.flight.is_none();
                if may_run || mutant(mutants::BIZUR_B6) || mutant(mutants::BIZUR_B14) {
                    self.runnable.insert(index);
                }
            }
        }
    }

    fn demand(&mut self, index: u32) {
        if self.unknown.contains(&index) {
            self.demanded.insert(index);
        }
    }

    /// Ends a turn: writes buckets with waiting writes, recovers buckets, and confirms the term for waiting reads.
    pub(crate) fn flush(&mut self, now: Tick, shard: &Shard, room: usize, out: &mut Effects) {
        if self.term.is_none() {
            return;
        }
        self.write_runnable(now, shard, room, out);
        self.recover(now, shard, out);
        let waits = self.readers.iter().any(|reader| reader.arrived > self.confirmed);
        if self.confirming.is_none() && waits {
            let number = self.begin(now, shard, Kind::Confirm, out);
            self.confirming = Some(number);
        }
    }

    /// Starts recoveries: of the buckets that requests wait for, and of the others in the background, several in one message.
    fn recover(&mut self, now: Tick, shard: &Shard, out: &mut Effects) {
        loop {
            let demanded = !self.demanded.is_empty();
            if !demanded && (self.unknown.is_empty() || self.recovering >= self.options.recovery_rounds) {
                return;
            }
            let from = if demanded { &self.demanded } else { &self.unknown };
            let indices: Vec<u32> = from.iter().copied().take(self.options.recovery_batch).collect();
            hit(if demanded { "bizur.leader.recovers_first" } else { "bizur.leader.recovers_rest" });
            for index in &indices {
                self.demanded.remove(index);
                self.unknown.remove(index);
                if let Some(bucket) = self.buckets.get_mut(*index as usize)
                    && bucket.progress == Progress::Unknown
                {
                    bucket.progress = Progress::Recovering;
                }
            }
            self.recovering += 1;
            self.begin(now, shard, Kind::Recover { indices, best: Default::default() }, out);
        }
    }

    /// Applies the waiting writes of all buckets that have no write under way, and replicates the new contents. Buckets that are due in the
    /// same turn share a round: one message to each replica and one answer. What needs no room does not share one with what does, so that a
    /// full replica still takes it.
    fn write_runnable(&mut self, now: Tick, shard: &Shard, room: usize, out: &mut Effects) {
        let mut groups = [Group::default(), Group::default()];
        while let Some(index) = self.runnable.pop_first() {
            let Some((written, grows)) = self.apply_waiting(index, room, out) else { continue };
            let group = &mut groups[usize::from(grows)];
            group.bytes += written.content.content_bytes();
            group.buckets.push(written);
            if group.buckets.len() >= MAX_GROUP || group.bytes >= MAX_GROUP_BYTES {
                self.write_group(now, shard, std::mem::take(group).buckets, out);
            }
        }
        for group in groups.into_iter().filter(|group| !group.buckets.is_empty()) {
            self.write_group(now, shard, group.buckets, out);
        }
    }

    /// Applies the waiting writes of a bucket to a copy of it (bizur-B14). Returns the write that replicates the result, and whether the
    /// content grows. None if there is nothing to replicate.
    fn apply_waiting(&mut self, index: u32, room: usize, out: &mut Effects) -> Option<(Written, bool)> {
        let bucket = self.buckets.get_mut(index as usize)?;
        let idle = bucket.flight.is_none() || mutant(mutants::BIZUR_B14);
        let ready = bucket.progress == Progress::Ready || mutant(mutants::BIZUR_B6);
        if !idle || !ready {
            return None;
        }
        let taken = bucket.queue.len().min(MAX_BATCH);
        let batch: VecDeque<Queued> = bucket.queue.drain(..taken).collect();
        self.queued -= batch.len();
        if !bucket.queue.is_empty() {
            // The rest follows with the next write.
            hit("bizur.leader.long_queue");
        }
        let (written, proofs) = apply_batch(bucket, index, batch, room, out);
        let grows =
            written.as_ref().is_some_and(|w| w.content.content_bytes() > bucket.content.content_bytes());
        if written.is_some() {
            invariants::write_follows(index, ready, bucket.ctr, bucket.ctr + 1);
        } else if !bucket.queue.is_empty() {
            self.runnable.insert(index);
        }
        if proofs.is_empty() {
            return written.map(|written| (written, grows));
        }
        for (caller, arrived, answer) in proofs {
            if mutant(mutants::BIZUR_B7) {
                reply(caller, answer, out);
                continue;
            }
            self.readers.push_back(Reader { caller, arrived, wanted: Wanted::Proof { answer } });
        }
        self.settle(out);
        None
    }

    /// Answers the reads that an acknowledged round proves, and whose buckets are recovered.
    pub(super) fn settle(&mut self, out: &mut Effects) {
        let mut readers = std::mem::take(&mut self.readers);
        readers.retain(|reader| {
            let unproven =
                mutant(mutants::BIZUR_WATCH_UNPROVEN) && matches!(reader.wanted, Wanted::Change { .. });
            if reader.arrived > self.confirmed && !unproven {
                return true;
            }
            if self.may_park(reader) {
                self.watches.park(reader, out);
                return false;
            }
            let Some(answer) = self.answer(&reader.wanted) else { return true };
            reply(reader.caller, answer, out);
            false
        });
        self.readers = readers;
    }

    /// Returns whether this is a watch of a key that has not changed.
    fn may_park(&self, reader: &Reader) -> bool {
        let Wanted::Change { index, key, seen, .. } = &reader.wanted else { return false };
        let bucket = self.buckets.get(*index as usize).filter(|b| b.progress == Progress::Ready);
        bucket.is_some_and(|bucket| bucket.content.get(key).map_or(0, |(version, _)| version) == *seen)
    }

    /// Returns the answer to a read from the committed buckets, if they are recovered.
    fn answer(&self, wanted: &Wanted) -> Option<Answer> {
        match wanted {
            Wanted::Proof { answer } => Some(answer.clone()),
            Wanted::Get { index, key } | Wanted::Change { index, key, .. } => {
                let bucket = self.buckets.get(*index as usize).filter(|b| b.progress == Progress::Ready)?;
                Some(Answer::Held { held: bucket.content.get(key).map(|(v, value)| (v, value.clone())) })
            }
            Wanted::List { prefix, after, limit } => {
                (self.ready == self.buckets.len()).then(|| self.page(prefix, after.as_ref(), *limit))
            }
        }
    }

    /// Returns the next keys with a prefix. All buckets of the shard are recovered, and one round has confirmed them all.
    fn page(&self, prefix: &Bytes, after: Option<&Bytes>, limit: usize) -> Answer {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(prefix.clone()),
        };
        let (mut keys, mut bytes) = (Vec::new(), 0);
        for (key, index) in self.keys.range((start, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            if keys.len() == limit || bytes > MAX_PAGE_BYTES {
                return Answer::Page { keys, more: true };
            }
            let bucket = self.buckets.get(*index as usize);
            let Some((version, _)) = bucket.and_then(|bucket| bucket.content.get(key)) else { continue };
            bytes += key.len();
            keys.push((key.clone(), version));
        }
        Answer::Page { keys, more: false }
    }
}

/// Checks the limits of a request, and that its key belongs to the shard. Returns the bucket.
fn check(shard: &Shard, question: &Question) -> Option<u32> {
    let config = &shard.config;
    let (key, values) = match question {
        Question::Get { key } | Question::Wait { key, .. } => (key, [None, None]),
        Question::List { prefix, after, .. } => {
            let long = |key: &Bytes| key.len() > MAX_KEY_BYTES;
            return (!long(prefix) && !after.as_ref().is_some_and(long)).then_some(0);
        }
        Question::Write { key, guard, value, .. } => {
            let wanted = match guard {
                WireGuard::Value { value } => Some(value),
                _ => None,
            };
            (key, [wanted, value.as_ref()])
        }
    };
    let place = place_of(key, config.shards, config.buckets);
    let fits = !key.is_empty()
        && key.len() <= MAX_KEY_BYTES
        && values.into_iter().flatten().all(|value| value.len() <= MAX_VALUE_BYTES);
    (fits && place.shard == config.key.shard).then_some(place.bucket)
}

/// The answer to a client that only needs proof that the leader still leads, and when its request arrived.
type Proof = (Caller, u64, Answer);

/// Applies a batch to a copy of its bucket. Returns the write that makes the changes, if there are any, and the answers that need none.
fn apply_batch(
    bucket: &LedBucket,
    index: u32,
    batch: VecDeque<Queued>,
    room: usize,
    out: &mut Effects,
) -> (Option<Written>, Vec<Proof>) {
    let mut content = bucket.content.clone();
    let from = content.content_bytes();
    let (mut changed, mut keys) = (false, Vec::new());
    let mut results = Vec::with_capacity(batch.len());
    for Queued { caller, arrived, write } in batch {
        let applied = content.apply(&write, from, room);
        let answer = match &applied {
            Applied::Changed(Outcome::Done(version)) | Applied::Before(Outcome::Done(version)) => {
                Answer::Done { version: *version }
            }
            Applied::Before(Outcome::Failed) => Answer::ConditionFailed {},
            Applied::Not | Applied::Changed(Outcome::Failed) => {
                let held = content.get(&write.key).map(|(version, value)| (version, value.clone()));
                Answer::Not { held, clock: content.clock() }
            }
            // Nothing was done. A clock of the past is a correct floor, so this needs no proof; one that may be undone is not.
            Applied::Stale => {
                reply(caller, Answer::Stale { clock: bucket.content.clock() }, out);
                continue;
            }
            Applied::Full { bucket: is_bucket } => {
                hit("bizur.leader.full");
                reply(caller, if *is_bucket { Answer::BucketFull {} } else { Answer::ReplicasFull {} }, out);
                continue;
            }
        };
        let effective = matches!(applied, Applied::Changed(_));
        changed |= effective;
        if matches!(applied, Applied::Changed(Outcome::Done(_))) {
            keys.push(write.key);
        }
        results.push((caller, arrived, answer, effective));
    }
    if !changed {
        let proofs = results.into_iter().map(|(caller, arrived, answer, _)| (caller, arrived, answer));
        return (None, proofs.collect());
    }
    // What saw a change of this batch holds only once the batch is written.
    let waiters = results
        .into_iter()
        .map(|(caller, _, answer, effective)| Waiter { caller, answer, effective })
        .collect();
    (Some(Written { index, content, keys, waiters }), Vec::new())
}

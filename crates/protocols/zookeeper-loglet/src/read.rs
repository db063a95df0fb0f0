//! readNext: finds the batch that holds an offset, and reads it and those behind it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

use atoll_contract::{Entry, entry::ENTRY_HEADER_BYTES};
use atoll_contract::{LogletError, Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::hit;

use crate::ensemble::{Fault, Request};
use crate::layout::{BUCKET_BATCHES, BucketNode, Stored, TrimNode};
use crate::loglet::{Shared, Trouble, decode, node};

/// How many batches a read asks for at once, at most.
const AHEAD: u64 = 8;
/// How many places of batches a handle remembers.
const MAX_PLACES: usize = 4096;

/// The batches that a handle read or wrote last, and where others begin.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    batches: BTreeMap<Offset, Stored>,
    /// The batches above, the oldest first.
    order: VecDeque<Offset>,
    bytes: usize,
    /// The numbers of batches by the offsets at which they begin.
    places: BTreeMap<Offset, u64>,
}

impl Recent {
    /// Remembers a batch with this number, and forgets the oldest ones if there are too many.
    pub(crate) fn keep(&mut self, number: u64, stored: Stored, room: usize) {
        if self.places.len() >= MAX_PLACES {
            self.places.clear();
        }
        let first = stored.first;
        self.places.extend([(first, number), (stored.end(), number + 1)]);
        self.bytes += stored.batch.bytes().len();
        match self.batches.insert(first, stored) {
            Some(same) => self.bytes -= same.batch.bytes().len(),
            None => self.order.push_back(first),
        }
        while self.bytes > room
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= self.batches.remove(&oldest).map_or(0, |stored| stored.batch.bytes().len());
        }
    }

    /// Forgets all batches that begin below this offset.
    pub(crate) fn forget_below(&mut self, to: Offset) {
        while let Some(first) = self.batches.keys().next().copied().filter(|first| *first < to) {
            self.bytes -= self.batches.remove(&first).map_or(0, |stored| stored.batch.bytes().len());
        }
        self.order.retain(|first| *first >= to);
    }

    /// Returns the batch that holds this offset.
    fn holding(&self, at: Offset) -> Option<&Stored> {
        let (_, stored) = self.batches.range(..=at).next_back()?;
        (at < stored.end()).then_some(stored)
    }
}

/// The entries that a read has found so far.
struct Found {
    range: Range<Offset>,
    next: Offset,
    entries: Vec<Entry>,
    bytes: usize,
    max_bytes: usize,
}

impl Found {
    fn wants_more(&self) -> bool {
        self.next < self.range.end && (self.entries.is_empty() || self.bytes < self.max_bytes)
    }

    fn take(&mut self, stored: &Stored) {
        let skip = self.next.since(stored.first) as usize;
        for entry in stored.batch.entries().skip(skip) {
            if !self.wants_more() {
                return;
            }
            self.bytes += ENTRY_HEADER_BYTES + entry.payload.len();
            self.entries.push(entry);
            self.next = self.next.plus(1);
        }
    }
}

impl Shared {
    /// Reads entries.
    pub(crate) async fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> Result<ReadBatch, ReadError> {
        if range.is_empty() {
            return Err(ReadError::BeyondTail(range.start));
        }
        if from == ReadFrom::LocalOnly {
            // No entry is on this node's disk.
            return Err(ReadError::Unavailable(Unavailability::NoQuorum));
        }
        let mut found = Found { next: range.start, range, entries: Vec::new(), bytes: 0, max_bytes };
        self.take_recent(&mut found);
        let until = self.deadline();
        // What the handle has is enough for now.
        while found.entries.is_empty() {
            let trouble = match self.read_on(&mut found).await {
                Ok(()) => break,
                Err(Missing::Read(error)) => return Err(error),
                Err(Missing::Trouble(trouble)) => trouble,
            };
            if let Trouble::Damaged(why) = trouble {
                return Err(ReadError::Damaged(why));
            }
            self.again(until, trouble).await.map_err(|error| match error {
                LogletError::Gone => ReadError::Gone,
                LogletError::Unavailable(why) => ReadError::Unavailable(why),
            })?;
        }
        let remote = found.entries.len() as u64;
        Ok(ReadBatch { entries: found.entries, remote })
    }

    fn take_recent(&self, found: &mut Found) {
        let recent = lock(&self.recent);
        while found.wants_more()
            && let Some(stored) = recent.holding(found.next)
        {
            found.take(stored);
        }
    }

    /// Reads the batch that holds the next offset, and some behind it.
    async fn read_on(&self, found: &mut Found) -> Result<(), Missing> {
        let place = lock(&self.recent).places.get(&found.next).copied();
        let number = match place {
            Some(number) => number,
            None => self.find(found.next).await?,
        };
        let known = self.batches.load(Ordering::Relaxed).max(number + 1);
        // The first batch shows how long they are; the next read asks for more.
        let ahead = if place.is_some() { AHEAD.min(known - number) } else { 1 };
        let mut requests = vec![Request::Get(self.paths.trim.clone())];
        requests.extend((number..number + ahead).map(|n| Request::Get(self.paths.batch(n))));
        let mut answers = self.ask(requests).await.into_iter();
        self.check_trim(found.next, answers.next()).await?;
        for (number, answer) in (number..).zip(answers) {
            let Some(node) = node(Some(answer)).map_err(Missing::Trouble)? else { break };
            let stored = Stored::parse(node.data).map_err(|why| Missing::Trouble(Trouble::Damaged(why)))?;
            if found.next < stored.first || found.next >= stored.end() {
                break;
            }
            if found.wants_more() {
                found.take(&stored);
            }
            lock(&self.recent).keep(number, stored, self.options.cache_bytes);
        }
        if found.entries.is_empty() { Err(self.not_there(found.next).await) } else { Ok(()) }
    }

    /// Refuses an offset that was trimmed. Returns what the trim's znode says.
    async fn check_trim(
        &self,
        at: Offset,
        answer: Option<Result<crate::ensemble::Answer, Fault>>,
    ) -> Result<TrimNode, Missing> {
        let Some(node) = node(answer).map_err(Missing::Trouble)? else {
            // It was not created yet, or was deleted.
            return match self.look(true).await {
                Ok(_) => Err(Missing::Read(ReadError::BeyondTail(at))),
                Err(trouble) => Err(Missing::Trouble(trouble)),
            };
        };
        let trim: TrimNode = decode(&node).map_err(Missing::Trouble)?;
        if trim.deleted {
            return Err(Missing::Trouble(Trouble::Gone));
        }
        if at < trim.to { Err(Missing::Read(ReadError::Trimmed(trim.to))) } else { Ok(trim) }
    }

    /// Returns why there is no batch with this offset, although there seemed to be one.
    async fn not_there(&self, at: Offset) -> Missing {
        hit("zookeeper.read_again");
        match self.look(true).await {
            Ok(seen) if at >= seen.next => Missing::Read(ReadError::BeyondTail(at)),
            // The server of this session has caught up by now, or the batch was trimmed: the next attempt finds out.
            Ok(_) => {
                lock(&self.recent).places.clear();
                Missing::Trouble(Fault::Lost.into())
            }
            Err(trouble) => Missing::Trouble(trouble),
        }
    }

    /// Returns the number of the batch that holds an offset: first by the offsets at which buckets begin, then by those of the batches.
    async fn find(&self, at: Offset) -> Result<u64, Missing> {
        hit("zookeeper.find");
        let mut seen = self.look(false).await.map_err(Missing::Trouble)?;
        if at >= seen.next {
            seen = self.look(true).await.map_err(Missing::Trouble)?;
        }
        if at >= seen.next {
            return Err(Missing::Read(ReadError::BeyondTail(at)));
        }
        let trim = self.ask(vec![Request::Get(self.paths.trim.clone())]).await.pop();
        let trim = self.check_trim(at, trim).await?;
        let (mut low, mut high) = (trim.first_bucket, (seen.batches - 1) / BUCKET_BATCHES);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match self.get(self.paths.bucket(middle)).await.map_err(Missing::Trouble)? {
                Some(node) if decode::<BucketNode>(&node).map_err(Missing::Trouble)?.first > at => {
                    high = middle - 1
                }
                // A bucket that is missing was trimmed, so the offset is above it.
                _ => low = middle,
            }
        }
        let (mut low, mut high) = (low * BUCKET_BATCHES, seen.batches.min((low + 1) * BUCKET_BATCHES) - 1);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match self.get(self.paths.batch(middle)).await.map_err(Missing::Trouble)? {
                Some(node) => {
                    let stored =
                        Stored::parse(node.data).map_err(|why| Missing::Trouble(Trouble::Damaged(why)))?;
                    if stored.first > at {
                        high = middle - 1
                    } else {
                        low = middle
                    }
                    lock(&self.recent).keep(middle, stored, self.options.cache_bytes);
                }
                None => return Err(self.not_there(at).await),
            }
        }
        Ok(low)
    }
}

/// Why a step of a read found nothing.
enum Missing {
    /// The caller learns this.
    Read(ReadError),
    /// The step is tried again, unless it cannot succeed.
    Trouble(Trouble),
}

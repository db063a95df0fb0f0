//! readNext: a message at a time, from the memory of the node or from the service, which gives some of the next ones, too.

use std::ops::Range;
use std::sync::Arc;

use atoll_contract::{Entry, Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::testing::hit;

use crate::known::Trouble;
use crate::layout::{Damaged, Entries, Message};
use crate::loglet::Shared;
use crate::service::{Fault, Stored, Subject};

/// What a read found at an offset.
enum Found {
    Entries(Vec<Entry>),
    Trimmed(Offset),
    Beyond,
}

impl Shared {
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
        let until = self.op_until();
        loop {
            let trouble = match self.try_read(&range, max_bytes).await {
                Ok(Found::Entries(entries)) => {
                    let remote = entries.len() as u64;
                    return Ok(ReadBatch { entries, remote });
                }
                Ok(Found::Trimmed(to)) => return Err(ReadError::Trimmed(to)),
                Ok(Found::Beyond) => return Err(ReadError::BeyondTail(range.start)),
                Err(trouble) => trouble,
            };
            self.again(until, trouble).await.map_err(|trouble| match trouble {
                Trouble::Gone => ReadError::Gone,
                Trouble::Damaged(damaged) => ReadError::Damaged(damaged.to_string()),
                Trouble::Service(Fault::Altered(why)) => {
                    ReadError::Damaged(format!("the stream was altered: {why}"))
                }
                other => ReadError::Unavailable(other.unavailability()),
            })?;
        }
    }

    async fn try_read(&self, range: &Range<Offset>, max_bytes: usize) -> Result<Found, Trouble> {
        self.begin().await?;
        let (mut trim, mut next) = self.known(|known| (known.trim, known.next))?;
        if range.start >= trim && range.start >= next {
            self.follow().await?;
            (trim, next) = self.known(|known| (known.trim, known.next))?;
        }
        if range.start < trim {
            return Ok(Found::Trimmed(trim));
        }
        if range.start >= next {
            return Ok(Found::Beyond);
        }
        if let Some(message) = self.fetch(range.start).await? {
            return Ok(Found::Entries(cut(message.entries(), range, max_bytes)));
        }
        // It was purged, behind a trim that this handle may not know yet.
        self.check_tail().await?;
        let trim = self.known(|known| known.trim)?;
        if range.start < trim {
            return Ok(Found::Trimmed(trim));
        }
        match self.fetch(range.start).await? {
            Some(message) => Ok(Found::Entries(cut(message.entries(), range, max_bytes))),
            None => Err(Damaged("it is missing").into()),
        }
    }

    /// Reads the message with an offset, and those behind it. None if it is not there, although the server knows later ones.
    async fn fetch(&self, offset: Offset) -> Result<Option<Arc<Message>>, Trouble> {
        let Some(seq) = self.find(offset).await? else { return Ok(None) };
        if let Some(kept) = self.cache.get(self.id, seq) {
            return Ok(Some(kept));
        }
        let messages = self.next(seq).await?;
        let Some(first) = messages.first() else { return Err(Fault::NoAnswer.into()) };
        let found = if first.seq == seq { Some(Arc::new(self.decode(first)?)) } else { None };
        for stored in &messages {
            self.see(stored)?;
        }
        Ok(found)
    }

    /// Learns where a message of entries is, and keeps it. Returns its first offset and its end, if it has any entries.
    fn see(&self, stored: &Stored) -> Result<Option<(Offset, Offset)>, Trouble> {
        if stored.on == Subject::Mark {
            return Ok(None);
        }
        let message = self.decode(stored)?;
        let span = message.entries().filter(|entries| entries.count() > 0).map(|e| (e.first, e.end()));
        if let Some(entries) = message.entries() {
            self.known(|known| known.saw_span(stored.seq, entries))?;
        }
        self.keep(stored.seq, message);
        Ok(span)
    }

    /// Finds the message with an offset, which is below the tail and not trimmed, by bisection. None if there is none.
    pub(crate) async fn find(&self, offset: Offset) -> Result<Option<u64>, Trouble> {
        if let Some(seq) = self.known(|known| known.sequence_of(offset))? {
            return Ok(Some(seq));
        }
        hit("service.find");
        // The message is at `low` or above, and below `high`. Purged sequences count as below.
        let (mut low, mut high) = (1, self.known(|known| known.last_entries)? + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.first_entries(middle).await? {
                Some((seq, first, end)) if (first..end).contains(&offset) => return Ok(Some(seq)),
                Some((seq, first, _)) if first <= offset => low = seq + 1,
                Some(_) => high = middle,
                // The newest message of entries is always there, so the server lags behind.
                None => return Err(Fault::NoAnswer.into()),
            }
        }
        Ok(None)
    }

    /// Returns the first message with entries from a sequence on: its sequence, its first offset and its end.
    async fn first_entries(&self, mut from: u64) -> Result<Option<(u64, Offset, Offset)>, Trouble> {
        loop {
            let messages = self.next(from).await?;
            let mut found = None;
            for stored in &messages {
                if let Some((first, end)) = self.see(stored)? {
                    found.get_or_insert((stored.seq, first, end));
                }
            }
            match messages.last() {
                _ if found.is_some() => return Ok(found),
                Some(last) => from = last.seq + 1,
                None => return Ok(None),
            }
        }
    }
}

/// Returns the entries of a message in a range: about so many bytes, and at least one.
fn cut(entries: Option<&Entries>, range: &Range<Offset>, max_bytes: usize) -> Vec<Entry> {
    let (mut out, mut bytes) = (Vec::new(), 0);
    let Some(entries) = entries else { return out };
    let offsets = (0..).map(|n| entries.first.plus(n));
    for (at, entry) in offsets.zip(entries.batch.iter().flat_map(|batch| batch.entries())) {
        if at >= range.end || (bytes >= max_bytes && !out.is_empty()) {
            break;
        }
        if at >= range.start {
            bytes += entry.payload.len();
            out.push(entry);
        }
    }
    out
}

//! readNext: an object at a time, from the memory of the node or from the store.

use std::ops::Range;

use atoll_contract::{Entry, Offset, ReadBatch, ReadError, ReadFrom, Unavailability};

use crate::known::At;
use crate::loglet::{Shared, unavailable};
use crate::object::{Damaged, Entries};
use crate::shelf::{Fault, Look, Row};

/// The most objects that are fetched at the same time. A store answers one reader after tens of milliseconds, and many at once.
const READ_AHEAD: u64 = 16;

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
            return Err(ReadError::Unavailable(Unavailability::NoQuorum));
        }
        let until = self.op_until();
        loop {
            let fault = match self.try_read(&range, max_bytes).await {
                Ok(Found::Entries(entries)) => {
                    let remote = entries.len() as u64;
                    return Ok(ReadBatch { entries, remote });
                }
                Ok(Found::Trimmed(to)) => return Err(ReadError::Trimmed(to)),
                Ok(Found::Beyond) => return Err(ReadError::BeyondTail(range.start)),
                Err(fault) => fault,
            };
            self.again(until, fault).await.map_err(|fault| match fault {
                Fault::Gone => ReadError::Gone,
                Fault::Damaged(damaged) => ReadError::Damaged(damaged.to_string()),
                other => ReadError::Unavailable(unavailable(&other)),
            })?;
        }
    }

    async fn try_read(&self, range: &Range<Offset>, max_bytes: usize) -> Result<Found, Fault> {
        self.check_store().await?;
        let (trim, _) = self.known().trims();
        if range.start < trim {
            return Ok(Found::Trimmed(trim));
        }
        let (base, next) = self.known().ends();
        if range.start < base.first {
            // The trim that the block was deleted behind is there, too.
            self.learn_trims().await?;
            let (trim, _) = self.known().trims();
            return Ok(Found::Trimmed(trim.max(base.first)));
        }
        if range.start >= next.first {
            self.follow().await?;
            if range.start >= self.known().next().first {
                return Ok(Found::Beyond);
            }
        }
        let known = self.known().index_of(range.start);
        let index = match known {
            Some(index) => index,
            None => self.find(range.start).await?,
        };
        if range.end > range.start.plus(1) && !self.shelf.has(index) {
            self.shelf.fetch(self.ahead(index)).await?;
        }
        let Look::Entries(entries) = self.shelf.look(index).await? else {
            return Err(Damaged("an object is missing").into());
        };
        if range.start < entries.first || range.start >= entries.end() {
            return Err(Damaged("it does not have the offsets that its neighbours leave to it").into());
        }
        self.known().saw(index, entries.first, entries.count);
        Ok(Found::Entries(cut(&entries, range, max_bytes)))
    }

    /// Returns the indexes of an object and of those that a reader of many entries will want next.
    fn ahead(&self, index: u64) -> Range<u64> {
        let block_end = self.shelf.block_start(self.shelf.block(index) + 1);
        let count = self.shelf.fit(self.config.batch_bytes).clamp(1, READ_AHEAD);
        index..block_end.min(self.known().next().index).min(index + count).max(index + 1)
    }

    /// Finds the object with an offset by bisection, between the base and the end of what is known.
    async fn find(&self, offset: Offset) -> Result<u64, Fault> {
        let (At { index: mut low, .. }, At { index: mut high, .. }) = self.known().ends();
        // The object is at `low` or behind, and before `high`.
        while high.saturating_sub(low) > 1 {
            // The object before the middle ends where the one in the middle begins.
            let middle = low + (high - low) / 2;
            let end = self.shelf.value(Row::Log, middle - 1).await?;
            match end.ok_or(Damaged("an object is missing"))? {
                end if end <= offset => low = middle,
                _ => high = middle,
            }
        }
        Ok(low)
    }
}

/// Returns the entries of an object in a range: about so many bytes, and at least one.
fn cut(entries: &Entries, range: &Range<Offset>, max_bytes: usize) -> Vec<Entry> {
    let (mut out, mut bytes, mut at) = (Vec::new(), 0, entries.first);
    for batch in &entries.batches {
        let end = at.plus(batch.len() as u64);
        if end <= range.start {
            at = end;
            continue;
        }
        for entry in batch.entries() {
            if at >= range.end || (bytes >= max_bytes && !out.is_empty()) {
                return out;
            }
            if at >= range.start {
                bytes += entry.payload.len();
                out.push(entry);
            }
            at = at.plus(1);
        }
    }
    out
}

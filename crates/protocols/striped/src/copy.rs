//! Copies for reconfigModify: what one stripe of the copy takes from the Loglet that is copied.

use std::fmt;
use std::ops::Range;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, Offset, Placement, ReadBatch, ReadError, ReadFrom, Tail,
    Unavailability,
};
use atoll_core::{BoxFuture, Ticket};

use crate::layout::Layout;

/// A range of a Loglet, reduced to the entries that belong to one stripe of its copy. It can only be read.
pub(crate) struct Source<'a> {
    of: &'a dyn Loglet,
    range: Range<Offset>,
    layout: Layout,
    stripe: usize,
}

impl<'a> Source<'a> {
    pub fn new(of: &'a dyn Loglet, range: Range<Offset>, layout: Layout, stripe: usize) -> Self {
        Source { of, range, layout, stripe }
    }

    /// Returns how many entries the stripe has.
    pub fn len(&self) -> Offset {
        self.layout.below(self.stripe, Offset(self.range.end.since(self.range.start)))
    }

    /// Returns where an entry of the stripe is in the Loglet that is copied.
    fn at(&self, inner: Offset) -> Offset {
        self.range.start.plus(self.layout.whole(self.stripe, inner).0)
    }

    async fn read_some(&self, range: Range<Offset>, max_bytes: usize) -> Result<ReadBatch, ReadError> {
        let end = range.end.min(self.len());
        if range.start >= end {
            return Err(ReadError::BeyondTail(range.start));
        }
        let last = self.at(Offset(end.0 - 1));
        // The entries of the other stripes come along.
        let bytes = max_bytes.saturating_mul(self.layout.stripes());
        let read = self.of.read(self.at(range.start)..last.plus(1), bytes, ReadFrom::Anywhere).await?;
        let mut entries: Vec<_> = read.entries.into_iter().step_by(self.layout.stripes()).collect();
        // All bytes may have been in this stripe. Later reads return the rest.
        let mut left = max_bytes;
        let fits = entries.iter().take_while(|entry| {
            let fits = entry.payload.len() <= left;
            left = left.saturating_sub(entry.payload.len());
            fits
        });
        let count = fits.count().max(1);
        entries.truncate(count);
        let remote = read.remote.min(entries.len() as u64);
        Ok(ReadBatch { entries, remote })
    }
}

impl fmt::Debug for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stripe {} of {:?}", self.stripe, self.of)
    }
}

fn only_read() -> LogletError {
    LogletError::Unavailable(Unavailability::Stopping)
}

impl Loglet for Source<'_> {
    fn append(&self, _batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        Ticket::ready(Err(AppendError::NotAppended(Unavailability::Stopping)))
    }

    fn keeps_order(&self) -> bool {
        self.of.keeps_order()
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(std::future::ready(Ok(Tail { at: self.len(), sealed: None })))
    }

    fn wait_tail(&self, _above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.check_tail()
    }

    fn known_tail(&self) -> Offset {
        self.len()
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        _from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(self.read_some(range, max_bytes))
    }

    fn prefix_trim(&self, _to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(std::future::ready(Err(only_read())))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(std::future::ready(Err(only_read())))
    }
}

//! Some entries in memory, as the source of a copy.

use std::ops::Range;

use atoll_contract::{
    AppendError, Batch, Entry, Loglet, LogletError, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    SealedConfig, Tail,
};
use atoll_core::{BoxFuture, Ticket};

/// Consecutive entries, as a sealed Loglet that begins at offset 0.
#[derive(Debug)]
pub(super) struct Piece(pub(super) Vec<Entry>);

impl Piece {
    fn tail(&self) -> Tail {
        Tail { at: Offset(self.0.len() as u64), sealed: Some(SealedConfig::new()) }
    }
}

impl Loglet for Piece {
    fn append(&self, _: Batch) -> Ticket<Result<Placement, AppendError>> {
        Ticket::ready(Err(AppendError::Sealed))
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(std::future::ready(Ok(self.tail())))
    }

    fn wait_tail(&self, _: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        self.check_tail()
    }

    fn known_tail(&self) -> Offset {
        self.tail().at
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        _: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        let place = |at: Offset| usize::try_from(at.0).unwrap_or(usize::MAX).min(self.0.len());
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        for entry in &self.0[place(range.start)..place(range.end)] {
            if !entries.is_empty() && bytes + entry.payload.len() > max_bytes {
                break;
            }
            bytes += entry.payload.len();
            entries.push(entry.clone());
        }
        let found = match entries.is_empty() {
            true => Err(ReadError::BeyondTail(range.start)),
            false => Ok(ReadBatch { entries, remote: 0 }),
        };
        Box::pin(std::future::ready(found))
    }

    fn prefix_trim(&self, _: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

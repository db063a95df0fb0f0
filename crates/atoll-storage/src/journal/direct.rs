//! Writes a small batch while no thread waits for it: [`Journal::begin_batch`] starts a direct write, and the batch is durable when that
//! write has ended. Until then the journal takes nothing else, so there is still one batch at a time (contracts X2).
//!
//! On disk, such a batch looks like any other, and a power cut during the write leaves what it leaves of a cached write: any part of
//! the sectors of blocks that hold no acknowledged bytes (X3). So recovery needs no rule for it.
//!
//! Direct and cached writes go to the same file, but never to the same block, and a batch begins only when everything before it is synced.
//! So there is nothing dirty in the page cache while a direct write is under way, and the kernel drops what it holds of the written blocks
//! before and after the write. Readers therefore find the new bytes, which they look for only when the batch is durable.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{JournalBatch, Loc, Lsn};

use super::format::{BATCH_HEADER_BYTES, padded, record_bytes};
use super::{Chunk, Journal, JournalError, Way, segment_path};
use crate::disk::{DIRECT_BLOCK_BYTES, DIRECT_BYTES, DirectFile, DiskError, DiskOp, DiskPath};

/// The direct file of the active segment.
#[derive(Default)]
pub(super) enum Direct {
    #[default]
    Untried,
    Refused,
    Open(Box<dyn DirectFile>),
}

impl Direct {
    fn file(&mut self) -> Result<&mut dyn DirectFile, DiskError> {
        match self {
            Direct::Open(file) => Ok(&mut **file),
            Direct::Untried | Direct::Refused => Err(DiskError::Io {
                op: DiskOp::Write,
                path: DiskPath::root().to_string(),
                reason: "the segment is not open for direct writes".to_owned(),
            }),
        }
    }

    pub(super) fn begin(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.file()?.begin(offset, from)
    }
}

impl Journal {
    /// Returns a descriptor that becomes readable when a batch of [`Journal::begin_batch`] ends. None if the disk has no direct writes.
    pub fn signal(&self) -> Option<OwnedFd> {
        self.disk.direct_signal()
    }

    /// Starts to write a batch that is durable as soon as [`Journal::poll_batch`] or [`Journal::wait_batch`] says so, and returns the
    /// location of each record, in order. Until then, the journal accepts no other call that writes. Returns None, and has done nothing,
    /// if the batch must be written by [`Journal::write`]: it is empty, longer than [`DIRECT_BYTES`], or does not fit into the active
    /// segment, something else is not synced, or the disk has no direct writes.
    ///
    /// # Errors
    /// An error closes the journal permanently, and whether the batch was written is unknown.
    pub fn begin_batch(&mut self, batch: &JournalBatch) -> Result<Option<Vec<(Lsn, Loc)>>, JournalError> {
        self.check_open()?;
        let body_bytes: usize = batch.records.iter().map(|(_, record)| record_bytes(record)).sum();
        let block = self.active.block_bytes;
        let fits = !batch.records.is_empty()
            && (block as usize).is_multiple_of(DIRECT_BLOCK_BYTES)
            && padded(BATCH_HEADER_BYTES + body_bytes, block) <= DIRECT_BYTES
            && self.has_room_for(batch)
            && !self.active.dirty;
        if !fits || !self.opens_direct() {
            return Ok(None);
        }
        hit("journal.direct");
        self.check_numbers(batch);
        let chunk = Chunk { ahead: 0, records: 0..batch.records.len(), body_bytes };
        let mut places = Vec::with_capacity(batch.records.len());
        let begun = self.write_chunk(batch, &chunk, &mut places, Way::Direct);
        begun.map_err(|error| self.fail(&error))?;
        self.under_way = true;
        self.stats.batches += 1;
        Ok(Some(places))
    }

    /// Whether a batch of [`Journal::begin_batch`] is under way.
    pub fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// Returns whether the batch of [`Journal::begin_batch`] is durable now. It must be under way.
    ///
    /// # Errors
    /// The write failed, which closes the journal permanently: see [`Journal::sync`].
    pub fn poll_batch(&mut self) -> Result<bool, JournalError> {
        let ended = match self.active.direct.file() {
            Ok(file) => file.poll(),
            Err(error) => Some(Err(error)),
        };
        self.ended_if(ended)
    }

    /// Waits for about `patience` at most, and returns whether the batch of [`Journal::begin_batch`] is durable then. It must be under way.
    ///
    /// # Errors
    /// As for [`Journal::poll_batch`].
    pub fn wait_batch_at_most(&mut self, patience: Duration) -> Result<bool, JournalError> {
        let ended = match self.active.direct.file() {
            Ok(file) => file.wait_at_most(patience),
            Err(error) => Some(Err(error)),
        };
        self.ended_if(ended)
    }

    /// Waits until the batch of [`Journal::begin_batch`] is durable. It must be under way.
    ///
    /// # Errors
    /// As for [`Journal::poll_batch`].
    pub fn wait_batch(&mut self) -> Result<(), JournalError> {
        let result = self.active.direct.file().and_then(|file| file.wait());
        self.ended(result)
    }

    fn ended_if(&mut self, ended: Option<Result<(), DiskError>>) -> Result<bool, JournalError> {
        match ended {
            None => Ok(false),
            Some(result) => self.ended(result).map(|()| true),
        }
    }

    fn ended(&mut self, result: Result<(), DiskError>) -> Result<(), JournalError> {
        self.under_way = false;
        result.map_err(|error| self.fail(&error))?;
        self.all_synced()
    }

    /// Opens the active segment for direct writes, at the first attempt.
    fn opens_direct(&mut self) -> bool {
        if matches!(self.active.direct, Direct::Untried) {
            let path = segment_path(self.active.segment.generation);
            self.active.direct = self.disk.open_direct(&path).map_or(Direct::Refused, Direct::Open);
        }
        matches!(self.active.direct, Direct::Open(_))
    }
}

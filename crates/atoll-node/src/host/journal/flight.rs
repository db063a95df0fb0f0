//! A batch that the journal is writing, and what is known of it when it is durable.

use std::time::Instant;

use atoll_core::{JournalBatch, Loc, Lsn};

/// A batch that the disk writes while no thread waits for it. The node thread begins it and continues. When the disk reports the end, the
/// node thread lands the batch: only then it is durable, and answers may leave (contracts X1).
///
/// Nobody else uses the journal in between (contracts X2). The writer is not locked during that time, so whoever locks it must land the
/// batch first. The journal thread does so when it is woken for other work, and that work follows.
pub(super) struct Flight {
    written: Vec<(Lsn, Loc)>,
    bytes: usize,
    records: usize,
    began: Instant,
    /// When the disk had the batch.
    begun: Instant,
}

impl Flight {
    /// The batch that was started with `written`, at some time after `began`.
    pub(super) fn new(batch: &JournalBatch, written: Vec<(Lsn, Loc)>, began: Instant) -> Self {
        let (bytes, records) = (batch_bytes(batch), batch.records.len());
        Flight { written, bytes, records, began, begun: Instant::now() }
    }

    /// The batch is durable now.
    pub(super) fn landed(self) -> Synced {
        let Flight { written, bytes, records, began, begun } = self;
        Synced { written, bytes, weight: bytes, records, began, between: begun, ended: Instant::now() }
    }
}

/// A batch that is durable.
pub(super) struct Synced {
    pub(super) written: Vec<(Lsn, Loc)>,
    /// See [`batch_bytes`].
    pub(super) bytes: usize,
    /// The bytes of its records, and of the blocks of its cells.
    pub(super) weight: usize,
    pub(super) records: usize,
    pub(super) began: Instant,
    /// When it was written, or the write was started.
    pub(super) between: Instant,
    pub(super) ended: Instant,
}

/// The heads and payloads of a batch, and the keys and values of its cells, in bytes.
pub(super) fn batch_bytes(batch: &JournalBatch) -> usize {
    let records = batch.records.iter().map(|(_, r)| r.head.len() + r.payload.len());
    let cells = batch.cells.iter().map(|c| c.key.len() + c.value.as_ref().map_or(0, |value| value.len()));
    records.sum::<usize>() + cells.sum::<usize>()
}

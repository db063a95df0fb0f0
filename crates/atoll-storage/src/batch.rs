//! Writes a batch of a node: its records to the journal, its cells to their files. Both hosts use it, so the simulator tests it.

use atoll_core::{JournalBatch, Loc, Lsn};

use crate::cells::{CellError, CellStore};
use crate::journal::{Journal, JournalError};

/// Why a batch was not written or not synced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The journal refused or failed it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store of cells refused or failed it.
    #[error(transparent)]
    Cells(#[from] CellError),
}

impl BatchError {
    /// Returns whether the disk was full. Nothing was written, and the same batch may be written later.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self,
            BatchError::Journal(JournalError::NoSpace { .. }) | BatchError::Cells(CellError::NoSpace { .. })
        )
    }
}

/// Writes a batch, and returns the location of each of its records. Nothing of it is durable before [`sync_batch`].
///
/// # Errors
/// If [`BatchError::is_no_space`] returns true, nothing was written. After any other error, the node must not write again: the records may
/// have been written, and the cells not.
pub fn write_batch(
    journal: &mut Journal,
    cells: &mut CellStore,
    batch: &JournalBatch,
) -> Result<Vec<(Lsn, Loc)>, BatchError> {
    // Whatever can find the disk full comes first, because a batch that is written half cannot be written again.
    let reserved = cells.reserve(&batch.cells)?;
    let written = if batch.records.is_empty() { Vec::new() } else { journal.write(batch)? };
    cells.write_reserved(reserved)?;
    Ok(written)
}

/// Makes the last batch durable: its records and its cells.
///
/// # Errors
/// After an error, nothing more becomes durable until a restart runs recovery, and any part of the batch may be durable.
pub fn sync_batch(journal: &mut Journal, cells: &mut CellStore) -> Result<(), BatchError> {
    journal.sync()?;
    Ok(cells.sync()?)
}

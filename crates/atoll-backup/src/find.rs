//! Finds where a row of numbered objects ends, by reads alone: it has no gaps, so the first free number is found by doubling steps and
//! bisection.

use crate::error::BackupError;
use crate::folder::Folder;

/// A row of objects, or of pairs of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row {
    Runs,
    /// Snapshots that are there or were given up.
    Snapshots,
    /// Snapshots that were given up.
    Gone,
    Pieces {
        snapshot: u64,
        attempt: u64,
    },
    Attempts {
        snapshot: u64,
    },
}

impl Folder {
    async fn is_in(&self, row: Row, number: u64) -> Result<bool, BackupError> {
        match row {
            Row::Runs => self.has(&self.run(number)).await,
            Row::Snapshots => Ok(self.has(&self.head(number)).await? || self.has(&self.gone(number)).await?),
            Row::Gone => self.has(&self.gone(number)).await,
            Row::Pieces { snapshot, attempt } => self.has(&self.piece(snapshot, attempt, number)).await,
            Row::Attempts { snapshot } => self.has(&self.attempt(snapshot, number)).await,
        }
    }

    /// Returns the first number from `from` on that is not in the row. All numbers between `from` and the end of the row are in it.
    pub(crate) async fn first_free(&self, row: Row, from: u64) -> Result<u64, BackupError> {
        let (mut low, mut step) = (from, 1);
        // All below `low` are in the row.
        let mut high = loop {
            let probe = low + step - 1;
            if !self.is_in(row, probe).await? {
                break probe;
            }
            low = probe + 1;
            step *= 2;
        };
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_in(row, middle).await? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

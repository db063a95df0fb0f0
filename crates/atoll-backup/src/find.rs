//! Finds where a row of numbered objects ends, by reads alone: it has no gaps, so the first free number is found by doubling steps and
//! bisection. Between, it is enough to look, as one would in a list, which may lag behind; only a read ends the search.

use crate::error::BackupError;
use crate::folder::Folder;

/// A row of objects, or of pairs of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How a number is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// What was put a moment ago may not be seen.
    Look,
    Read,
}

impl Folder {
    async fn is_in(&self, row: Row, number: u64, by: By) -> Result<bool, BackupError> {
        let first = match row {
            Row::Runs => self.run(number),
            Row::Snapshots => self.head(number),
            Row::Gone => self.gone(number),
            Row::Pieces { snapshot, attempt } => self.piece(snapshot, attempt, number),
            Row::Attempts { snapshot } => self.attempt(snapshot, number),
        };
        let second = (row == Row::Snapshots).then(|| self.gone(number));
        for name in std::iter::once(first).chain(second) {
            let is_there = match by {
                By::Look => self.look(&name).await?,
                By::Read => self.has(&name).await?,
            };
            if is_there {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the first number from `from` on that is not in the row. All numbers between `from` and the end of the row are in it.
    pub(crate) async fn first_free(&self, row: Row, from: u64) -> Result<u64, BackupError> {
        let mut low = from;
        while self.is_in(row, low, By::Read).await? {
            low = self.seems_free(row, low + 1).await?;
        }
        Ok(low)
    }

    /// Returns the first number from `from` on that looks do not see in the row.
    async fn seems_free(&self, row: Row, from: u64) -> Result<u64, BackupError> {
        let (mut low, mut step) = (from, 1);
        // All below `low` are in the row.
        let mut high = loop {
            let probe = low + step - 1;
            if !self.is_in(row, probe, By::Look).await? {
                break probe;
            }
            low = probe + 1;
            step *= 2;
        };
        while low < high {
            let middle = low + (high - low) / 2;
            if self.is_in(row, middle, By::Look).await? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

//! Deletes what is too old. The mark of a snapshot that is given up comes before the first deletion, and its head goes last, so another
//! node finds out what is left to delete.

use crate::error::BackupError;
use crate::find::Row;
use crate::folder::Folder;
use crate::format::{self, Gone, Head, Place, SnapshotHead};

/// So many objects are deleted with one request of ours.
const AT_ONCE: u64 = 256;
/// So many snapshots are given up in one round. Later rounds give up the rest.
const PER_ROUND: usize = 4;

/// Gives up the snapshots, and the runs behind them, that are not needed to restore any moment of the last `keep_ms`. Returns how many
/// snapshots that were.
///
/// # Errors
/// The store gives no result. The next round continues.
pub async fn retain(folder: &Folder, backup: u128, keep_ms: u64, now_ms: u64) -> Result<u64, BackupError> {
    let mut first = folder.first_free(Row::Gone, 0).await?;
    if let Some(last) = first.checked_sub(1) {
        clear(folder, backup, last).await?;
    }
    for given_up in 0..PER_ROUND as u64 {
        let (Some(old), Some(next)) =
            (head(folder, backup, first).await?, head(folder, backup, first + 1).await?)
        else {
            return Ok(given_up);
        };
        if next.meta.made_ms.saturating_add(keep_ms) > now_ms {
            return Ok(given_up);
        }
        let place = Place { backup, number: first };
        let mark = format::encode(place, &Gone { head: old.meta }, &[]).ok_or(BackupError::Empty)?;
        folder.replace(&folder.gone(first), &mark).await?;
        clear(folder, backup, first).await?;
        first += 1;
    }
    Ok(PER_ROUND as u64)
}

async fn head(
    folder: &Folder,
    backup: u128,
    snapshot: u64,
) -> Result<Option<Head<SnapshotHead>>, BackupError> {
    folder.get_head(&folder.head(snapshot), Place { backup, number: snapshot }).await
}

/// Deletes what belongs to a snapshot that is given up, if anything is left of it.
async fn clear(folder: &Folder, backup: u128, snapshot: u64) -> Result<(), BackupError> {
    let Some(old) = head(folder, backup, snapshot).await? else { return Ok(()) };
    let name = folder.head(snapshot + 1);
    let next = head(folder, backup, snapshot + 1).await?.ok_or(BackupError::Missing(name))?;
    let attempts = folder.first_free(Row::Attempts { snapshot }, 0).await?;
    for attempt in 0..attempts {
        let pieces = folder.first_free(Row::Pieces { snapshot, attempt }, 0).await?;
        // From the end on, so that what is left is a row without gaps.
        delete(folder, pieces, |piece| folder.piece(snapshot, attempt, piece)).await?;
    }
    delete(folder, attempts, |attempt| folder.attempt(snapshot, attempt)).await?;
    let runs = next.meta.run.saturating_sub(old.meta.run);
    delete(folder, runs, |run| folder.run(old.meta.run + run)).await?;
    Ok(folder.delete(vec![folder.head(snapshot)]).await?)
}

/// Deletes the objects with these names, of which there are so many, from the end on.
async fn delete(folder: &Folder, count: u64, name: impl Fn(u64) -> String) -> Result<(), BackupError> {
    let mut left = count;
    while left > 0 {
        let from = left.saturating_sub(AT_ONCE);
        folder.delete((from..left).map(&name).collect()).await?;
        left = from;
    }
    Ok(())
}

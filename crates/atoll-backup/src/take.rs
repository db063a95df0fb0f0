//! Ships snapshots of the state.

use atoll_contract::LogPos;
use bytes::{BufMut, BytesMut};

use crate::error::BackupError;
use crate::folder::{Created, Folder};
use crate::format::{self, Attempt, Part, Place};
use crate::source::{Source, SourceError};

/// About as many bytes are in one object of a snapshot.
const OBJECT_BYTES: usize = 4 * 1024 * 1024;
/// So many attempts at one snapshot may have failed before.
const MOST_ATTEMPTS: u64 = 1 << 16;

/// A snapshot whose pieces are shipped, and which is not in the backup yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub(crate) number: u64,
    pub(crate) attempt: u64,
    /// All entries below are in it.
    pub below: LogPos,
    pub(crate) time_ms: u64,
    pub(crate) hash: u128,
    pub(crate) pieces: u64,
    /// How many keys it has.
    pub keys: u64,
    /// How many bytes it has in the store.
    pub bytes: u64,
}

/// Ships the pieces of the source's state, as the snapshot with this number.
///
/// # Errors
/// The store or the source gives no result. The pieces that are shipped stay until the snapshot with this number is given up.
pub async fn take(
    folder: &Folder,
    backup: u128,
    number: u64,
    source: &dyn Source,
    writer: u64,
) -> Result<Taken, BackupError> {
    let mut state = source.snapshot()?;
    let attempt = begin(folder, backup, number, writer).await?;
    let (at, time_ms) = (state.at(), state.time_ms());
    let mut taken =
        Taken { number, attempt, below: at.below, time_ms, hash: at.hash, pieces: 0, keys: 0, bytes: 0 };
    let mut body = BytesMut::new();
    loop {
        let piece = state.next().await?;
        taken.keys += piece.keys;
        body.put_u32_le(piece.bytes.len() as u32);
        body.put_slice(&piece.bytes);
        if body.len() < OBJECT_BYTES && !piece.last {
            continue;
        }
        let place = Place { backup, number: taken.pieces };
        let too_long = || SourceError::Later("a piece of the state is too long".to_owned());
        let full = body.split();
        let made = folder.compute(move || format::encode(place, &Part { snapshot: number, attempt }, &full));
        let object = made.await.flatten().ok_or_else(too_long)?;
        folder.replace(&folder.piece(number, attempt, taken.pieces), &object).await?;
        taken.pieces += 1;
        taken.bytes += object.len() as u64;
        if piece.last {
            return Ok(taken);
        }
    }
}

/// Takes the number of an attempt, so that retention finds the pieces even if this node dies.
async fn begin(folder: &Folder, backup: u128, snapshot: u64, writer: u64) -> Result<u64, BackupError> {
    for attempt in 0..MOST_ATTEMPTS {
        let place = Place { backup, number: attempt };
        let bytes = format::encode(place, &Attempt { snapshot, writer }, &[]).ok_or(BackupError::Empty)?;
        if let Created::Ours = folder.create(&folder.attempt(snapshot, attempt), &bytes).await? {
            return Ok(attempt);
        }
    }
    Err(BackupError::Overtaken)
}

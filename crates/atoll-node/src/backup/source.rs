//! The replica of this node, as the source of a backup, and its entries as a backup has them.

use std::ops::Range;
use std::sync::Arc;

use atoll_backup::{Entry, Source, SourceError, StateAt, StatePiece, StateSnapshot};
use atoll_contract::{LogPos, ReadFrom};
use atoll_core::{BoxFuture, LevelRange};
use atoll_db::Database;
use atoll_db::backup::{LoggedEntry, Operated, Snapshot};
use atoll_log::VirtualLog;
use atoll_log::virtual_log::LogReadError;
use bytes::Bytes;

/// The numbers of what operators do to entries.
const EXCISED: u8 = 1;
const REPLACED: u8 = 2;

pub(super) struct ReplicaSource {
    pub(super) database: Database,
    pub(super) log: Arc<VirtualLog>,
    pub(super) reads: LevelRange,
}

/// Returns an entry as a backup has it.
fn shipped(entry: LoggedEntry) -> Entry {
    let operated = match entry.operated {
        Operated::No => 0,
        Operated::Excised => EXCISED,
        Operated::Replaced => REPLACED,
    };
    Entry { op: entry.op, time_ms: entry.time_ms, operated, payload: entry.payload }
}

/// Returns an entry of a backup as the replicas apply it. None if a later program has written it.
pub(crate) fn restored(entry: Entry) -> Option<LoggedEntry> {
    let operated = match entry.operated {
        0 => Operated::No,
        EXCISED => Operated::Excised,
        REPLACED => Operated::Replaced,
        _ => return None,
    };
    Some(LoggedEntry { op: entry.op, payload: entry.payload, operated, time_ms: entry.time_ms })
}

impl Source for ReplicaSource {
    fn at(&self) -> Option<StateAt> {
        self.database.vouched().map(|at| StateAt { below: at.below, hash: at.hash })
    }

    fn read(&self, range: Range<LogPos>, max_bytes: usize) -> BoxFuture<'_, Result<Vec<Entry>, SourceError>> {
        Box::pin(async move {
            let stopping = || SourceError::Later("this node is stopping".to_owned());
            let read = self.log.read(range.clone(), max_bytes, ReadFrom::Anywhere).await;
            let read = read.map_err(|_| stopping())?.map_err(|error| match error {
                LogReadError::Trimmed(to) => SourceError::Trimmed(to),
                other => SourceError::Later(other.to_string()),
            })?;
            let all = LoggedEntry::all(read, self.reads);
            Ok(all.into_iter().map(shipped).collect())
        })
    }

    fn snapshot(&self) -> Result<Box<dyn StateSnapshot>, SourceError> {
        match self.database.snapshot() {
            Ok(Some(snapshot)) => Ok(Box::new(State { snapshot, after: Bytes::new() })),
            Ok(None) => Err(SourceError::Later("this replica cannot vouch for its state".to_owned())),
            Err(error) => Err(SourceError::Later(error.to_string())),
        }
    }
}

struct State {
    snapshot: Snapshot,
    after: Bytes,
}

impl StateSnapshot for State {
    fn at(&self) -> StateAt {
        StateAt { below: self.snapshot.below(), hash: self.snapshot.hash() }
    }

    fn time_ms(&self) -> u64 {
        self.snapshot.time_ms()
    }

    fn next(&mut self) -> BoxFuture<'_, Result<StatePiece, SourceError>> {
        Box::pin(async move {
            let gone = |_| SourceError::Later("the thread that reads the store has ended".to_owned());
            let read = self.snapshot.read(self.after.clone()).await.map_err(gone)?;
            let piece = read.map_err(|error| SourceError::Later(error.to_string()))?;
            self.after = piece.after;
            Ok(StatePiece { bytes: piece.chunk, keys: piece.keys, last: piece.last })
        })
    }
}

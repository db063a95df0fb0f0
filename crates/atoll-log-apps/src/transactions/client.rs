//! Runs transactions on a snapshot of a replica, and appends their intentions.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use atoll_contract::{ClientId, OpId};
use atoll_core::Encode;
use atoll_core::testing::hit;

use super::record::{MAX_INTENT_BYTES, MAX_KEY_BYTES, Read, TxnRecord};
use super::state::{Decision, TxnState};
use crate::entry;
use crate::history::Index;
use crate::player::{PlayError, Player};
use crate::sessions::Stamp;
use crate::shared_log::LogError;

/// Why a transaction failed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxnError {
    /// It did not happen: a limit is exceeded. The text names it.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// It did not happen: the log or the replica failed.
    #[error("not done: {0}")]
    NotDone(PlayError),
    /// It did not happen: something that it has read was written meanwhile. Run it again.
    #[error("a conflict at index {0}")]
    Conflict(Index),
    /// It did not happen: its snapshot is below the lowest one that is kept. Run it again.
    #[error("the snapshot is older than {0}, the lowest one that is kept")]
    TooOld(Index),
    /// It did not happen: its procedure refused.
    #[error("the procedure refused: {0}")]
    Procedure(String),
    /// It may have committed or may still commit. [`Database::decision`] finds out later.
    #[error("unknown outcome of transaction {0:?}")]
    Unknown(OpId),
}

impl TxnError {
    /// Returns whether the transaction certainly did not happen and may succeed if it is run again.
    pub fn may_retry(&self) -> bool {
        matches!(self, TxnError::Conflict(_) | TxnError::TooOld(_))
    }
}

impl From<PlayError> for TxnError {
    fn from(error: PlayError) -> Self {
        TxnError::NotDone(error)
    }
}

impl From<LogError> for TxnError {
    fn from(error: LogError) -> Self {
        TxnError::NotDone(error.into())
    }
}

/// A replica of the transactional state.
pub type TxnReplica = Player<TxnState>;

/// Runs transactions at one replica. Dropping one before its commit returns leaves either all of it or nothing.
#[derive(Debug)]
pub struct Database {
    replica: Arc<TxnReplica>,
    client: ClientId,
    seq: AtomicU64,
    append_attempts: usize,
}

/// One transaction. It sees the state at its snapshot and its own writes.
#[derive(Debug)]
pub struct Transaction<'a> {
    database: &'a Database,
    snapshot: Index,
    reads: BTreeMap<Bytes, Index>,
    ranges: Vec<(Bytes, Bytes)>,
    writes: BTreeMap<Bytes, Option<Bytes>>,
}

impl Database {
    /// Returns a database over this replica. `client` is an incarnation: no other client, before or after, has the same. An append of
    /// unknown outcome is repeated up to `append_attempts` times in all.
    pub fn new(replica: Arc<TxnReplica>, client: ClientId, append_attempts: usize) -> Self {
        Database { replica, client, seq: AtomicU64::new(0), append_attempts: append_attempts.max(1) }
    }

    fn next(&self, began: Index) -> Stamp {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        Stamp { op: OpId { client: self.client, seq }, began }
    }

    /// Begins a transaction on the newest state: everything that was acknowledged before the call. If it only reads, it is linearizable.
    pub async fn begin(&self) -> Result<Transaction<'_>, TxnError> {
        self.replica.play().await?;
        Ok(self.begin_here())
    }

    /// Begins a transaction on what the replica has applied. Serializable, but reads may be old.
    pub fn begin_here(&self) -> Transaction<'_> {
        Transaction {
            database: self,
            snapshot: self.replica.applied(),
            reads: BTreeMap::new(),
            ranges: Vec::new(),
            writes: BTreeMap::new(),
        }
    }

    /// Lets every replica carry out a procedure at the position where it lands in the log. It cannot conflict, so it is the way out for a
    /// transaction that has aborted too often. Returns the index at which it committed.
    pub async fn call(&self, procedure: &str, arguments: Bytes) -> Result<Index, TxnError> {
        let stamp = self.next(self.replica.applied());
        let record = TxnRecord::Call { stamp: stamp.clone(), procedure: procedure.to_owned(), arguments };
        self.decide(&stamp, &record).await
    }

    /// Runs a transaction, and again after conflicts. After `attempts` conflicts, the procedure takes its place, so that it does not
    /// starve: replicas carry it out inside of the log. Returns the index at which it committed.
    pub async fn run(
        &self,
        attempts: usize,
        body: impl Fn(&mut Transaction<'_>) -> Result<(), TxnError>,
        procedure: &str,
        arguments: Bytes,
    ) -> Result<Index, TxnError> {
        for _ in 0..attempts {
            let mut transaction = self.begin().await?;
            let done = match body(&mut transaction) {
                Ok(()) => transaction.commit().await,
                Err(error) => Err(error),
            };
            match done {
                Err(error) if error.may_retry() => hit("log_apps.txn.again"),
                done => return done,
            }
        }
        self.call(procedure, arguments).await
    }

    async fn decide(&self, stamp: &Stamp, record: &TxnRecord) -> Result<Index, TxnError> {
        if record.to_bytes().len() > MAX_INTENT_BYTES {
            return Err(TxnError::Refused("an intention exceeds 512 KiB"));
        }
        let appended = self.replica.append_named(entry::record(record), self.append_attempts).await?;
        let place = appended.ok_or(TxnError::Unknown(stamp.op))?;
        let played = self.replica.play_to(place.position + 1).await;
        played.map_err(|_| TxnError::Unknown(stamp.op))?;
        self.result(stamp.op)
    }

    fn result(&self, op: OpId) -> Result<Index, TxnError> {
        match self.replica.view(|state, _| state.decision(op)) {
            Some(Decision::Committed { index }) => Ok(index),
            Some(Decision::Conflict { index }) => Err(TxnError::Conflict(index)),
            Some(Decision::TooOld { floor }) => Err(TxnError::TooOld(floor)),
            Some(Decision::Refused { words }) => Err(TxnError::Procedure(words)),
            None => Err(TxnError::Unknown(op)),
        }
    }

    /// Plays to the tail and returns what became of a transaction. `Unknown` if it is not in the log yet, or was forgotten.
    pub async fn decision(&self, op: OpId) -> Result<Index, TxnError> {
        self.replica.play().await?;
        self.result(op)
    }
}

impl Transaction<'_> {
    /// Returns whether it has written anything so far.
    pub fn writes(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Returns the index of the state that it sees.
    pub fn snapshot(&self) -> Index {
        self.snapshot
    }

    fn look<T>(&self, look: impl FnOnce(super::state::Snapshot<'_>) -> T) -> Result<T, TxnError> {
        self.database.replica.view(|state, _| match state.floor() {
            floor if floor > self.snapshot => Err(TxnError::TooOld(floor)),
            _ => Ok(look(state.at(self.snapshot))),
        })
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>, TxnError> {
        if let Some(own) = self.writes.get(key) {
            return Ok(own.clone());
        }
        let (value, version) = self.look(|state| (state.get(key), state.version(key)))?;
        self.reads.insert(Bytes::copy_from_slice(key), version);
        Ok(value)
    }

    /// Returns the first `count` keys in `[from, to)` with their values, in order. The whole range counts as read.
    pub fn range(&mut self, from: &[u8], to: &[u8], count: usize) -> Result<Vec<(Bytes, Bytes)>, TxnError> {
        let own: Vec<(Bytes, Option<Bytes>)> = match from < to {
            true => self
                .writes
                .range::<[u8], _>((Bound::Included(from), Bound::Excluded(to)))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect(),
            false => Vec::new(),
        };
        // Its own deletions may hide as many keys.
        let found = self.look(|state| state.range(from, to, count.saturating_add(own.len())))?;
        self.ranges.push((Bytes::copy_from_slice(from), Bytes::copy_from_slice(to)));
        let mut all: BTreeMap<Bytes, Option<Bytes>> = found.into_iter().map(|(k, v)| (k, Some(v))).collect();
        all.extend(own);
        Ok(all.into_iter().filter_map(|(k, v)| Some((k, v?))).take(count).collect())
    }

    /// Writes a key, or deletes it.
    pub fn put(&mut self, key: Bytes, value: Option<Bytes>) -> Result<(), TxnError> {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(TxnError::Refused("a key has 1 to 4096 bytes"));
        }
        self.writes.insert(key, value);
        Ok(())
    }

    /// Commits. Returns the index at which it took effect: durable, and equal on every replica. A transaction that wrote nothing needs no
    /// intention, because everything that it has read is from one index.
    pub async fn commit(self) -> Result<Index, TxnError> {
        if self.writes.is_empty() {
            return Ok(self.snapshot);
        }
        let keys = self.reads.into_iter().map(|(key, version)| Read::Key { key, version });
        let ranges = self.ranges.into_iter().map(|(from, to)| Read::Range { from, to });
        // No copy of the intention lies below its snapshot.
        let stamp = self.database.next(self.snapshot);
        let record = TxnRecord::Intent {
            stamp: stamp.clone(),
            snapshot: self.snapshot,
            reads: keys.chain(ranges).collect(),
            writes: self.writes.into_iter().collect(),
        };
        self.database.decide(&stamp, &record).await
    }
}

//! The state of a replica, to be copied while the replica keeps applying entries.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::{Level, Ticket};

use crate::engine::{Database, Threads};
use crate::replica::{HashAt, StateRecord};
use crate::store::{StoreError, StoreSnapshot};
use crate::transfer::{in_thread, read_chunk};

/// A committed state. The store keeps it for as long as this is there.
#[derive(Clone)]
pub struct Snapshot {
    base: Arc<dyn StoreSnapshot>,
    level: Level,
    below: LogPos,
    time_ms: u64,
    hash: u128,
    /// Whether reads have threads of their own.
    threads: bool,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshot of the state below {}", self.below)
    }
}

/// Some keys and values, in the order of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The [encoded](crate::transfer::Chunk) keys and values.
    pub chunk: Bytes,
    /// How many there are.
    pub keys: u64,
    /// The last key, after which the next piece begins.
    pub after: Bytes,
    /// Whether no piece follows.
    pub last: bool,
}

impl Snapshot {
    /// Returns the position below which all entries are in the state.
    pub fn below(&self) -> LogPos {
        self.below
    }

    /// Returns the time of the last of them, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Returns the hash of the state, without the engine's own record.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Reads the keys after one, on a thread of its own if the replica has any. Begin with the empty key.
    pub fn read(&self, after: Bytes) -> Ticket<Result<Piece, StoreError>> {
        let (base, level) = (self.base.clone(), self.level);
        let read = move || {
            let (chunk, last) = read_chunk(&*base, &after)?;
            let after = chunk.0.last().map_or(after, |(key, _)| key.clone());
            Ok(Piece { keys: chunk.0.len() as u64, chunk: chunk.encode(level), after, last })
        };
        if self.threads { in_thread("backup", read) } else { Ticket::ready(read()) }
    }
}

impl Database {
    /// Returns the position below which this replica has applied all entries, and the hash of its state there, without the engine's own
    /// record. None while it cannot vouch for its state.
    pub fn vouched(&self) -> Option<HashAt> {
        let core = &self.core;
        let out = core.is_withheld() || core.check.is_under_way() || core.halted().is_some();
        core.check.now().filter(|_| !out)
    }

    /// Returns the committed state. None while this replica cannot vouch for it.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, StoreError> {
        // Taken before the check, so that a state that is found wrong in between is not given.
        let base = self.core.published().layers.base.clone();
        if self.vouched().is_none() {
            return Ok(None);
        }
        let StateRecord { next, time_ms, hash, .. } = StateRecord::read(&*base)?;
        let level = self.core.levels.active();
        let threads = self.threads == Threads::Own;
        Ok(Some(Snapshot { base, level, below: next, time_ms, hash, threads }))
    }

    /// Makes this replica commit what it has applied, soon.
    pub fn commit(&self) {
        self.feed(|feed| feed.commit());
    }

    /// From now on, this replica trims no entry at or above this position; None: no such limit.
    pub fn keep_from(&self, position: Option<LogPos>) {
        self.core.keep_from(position);
    }
}

//! The client of CORFU-Store (TOCS'13 §3): multi-put and multi-get.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Decode};

use super::map::{Outcome, StoreMap};
use super::record::{MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES, StoreRecord};
use crate::entry::{self, AppEntry};
use crate::gather;
use crate::history::Index;
use crate::mirror::LagGauge;
use crate::mutants;
use crate::player::{PlayError, Player};
use crate::sessions::Stamp;
use crate::shared_log::{LogError, Place, Slot};

/// Why an operation of the store failed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It did not happen: a limit is exceeded. The text names it.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// It did not happen: a mirror is too far behind, and writers wait for it.
    #[error("a mirror is {0} positions behind")]
    MirrorBehind(u64),
    /// It did not happen: the log or the map service failed.
    #[error("not done: {0}")]
    NotDone(PlayError),
    /// The write may have happened or may still happen. [`Store::outcome`] finds out later.
    #[error("unknown outcome of operation {0:?}")]
    Unknown(OpId),
    /// It did not happen, and never will: compaction has collected a value before its commit came. The writer was too slow; start again.
    #[error("the value at position {0} was collected before it was committed")]
    Collected(u64),
    /// The index is below the lowest one that is kept, or above what the map has applied.
    #[error("index {index} cannot be read; the lowest is {floor}, the highest {applied}")]
    NotKept {
        /// The index asked for.
        index: Index,
        /// The lowest one that is kept.
        floor: Index,
        /// The highest one.
        applied: Index,
    },
    /// The map service is not as far as it was asked to be (apps-A5).
    #[error("the map has applied {applied}, not {wanted}")]
    Behind {
        /// Its index.
        applied: Index,
        /// The index asked for.
        wanted: Index,
    },
    /// The entry at a position does not hold the value that the map names. Something is damaged.
    #[error("position {0} does not hold the value that the map names")]
    Damaged(u64),
}

impl From<PlayError> for StoreError {
    fn from(error: PlayError) -> Self {
        StoreError::NotDone(error)
    }
}

impl From<LogError> for StoreError {
    fn from(error: LogError) -> Self {
        StoreError::NotDone(error.into())
    }
}

/// A replica of the map service.
pub type MapReplica = Player<StoreMap>;

impl Player<StoreMap> {
    /// Returns the positions of the values of keys, all at one index, which is at least `at_least` (apps-A4, apps-A5). Refuses to
    /// answer below it.
    pub fn lookup(&self, keys: &[Bytes], at_least: Index) -> Result<(Index, Vec<Option<u64>>), StoreError> {
        self.view(|map, applied| {
            if applied < at_least && !mutant(mutants::APPS_A5) {
                return Err(StoreError::Behind { applied, wanted: at_least });
            }
            Ok((applied, keys.iter().map(|key| map.position(key, applied)).collect()))
        })
    }

    /// Returns the positions of the values of keys at a past index.
    pub fn lookup_at(&self, keys: &[Bytes], index: Index) -> Result<Vec<Option<u64>>, StoreError> {
        self.view(|map, applied| {
            let floor = map.floor();
            if index < floor || index > applied {
                return Err(StoreError::NotKept { index, floor, applied });
            }
            Ok(keys.iter().map(|key| map.position(key, index)).collect())
        })
    }
}

/// Limits of one client.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// How often an append whose outcome is unknown is repeated. The outcome of a commit is unknown only if all attempts are.
    pub append_attempts: usize,
    /// How often a multi-get asks again because compaction moved a value meanwhile.
    pub read_attempts: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { append_attempts: 3, read_attempts: 64 }
    }
}

/// A client of the store. Dropping an operation at any point leaves either all of it or nothing.
#[derive(Debug)]
pub struct Store {
    map: Arc<MapReplica>,
    client: ClientId,
    seq: AtomicU64,
    options: StoreOptions,
    mirror: Option<Arc<LagGauge>>,
}

impl Store {
    /// Returns a client that asks this map replica. `client` is an incarnation: no other client, before or after, has the same.
    pub fn new(map: Arc<MapReplica>, client: ClientId, options: StoreOptions) -> Self {
        Store { map, client, seq: AtomicU64::new(0), options, mirror: None }
    }

    /// Lets writes be refused while a mirror is behind by more than its bound.
    #[must_use]
    pub fn bounded_by(mut self, mirror: Arc<LagGauge>) -> Self {
        self.mirror = Some(mirror);
        self
    }

    fn next(&self) -> Stamp {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        Stamp { op: OpId { client: self.client, seq }, began: self.map.applied() }
    }

    /// Writes all keys at once, or none; a key without a value is deleted. Returns the index from which reads see it. On return it is
    /// durable, and this client's map has applied it. k values take k + 1 appends.
    pub async fn multi_put(&self, writes: Vec<(Bytes, Option<Bytes>)>) -> Result<Index, StoreError> {
        check_keys(writes.iter().map(|(key, _)| key))?;
        if writes.iter().flat_map(|(_, value)| value).any(|value| value.len() > MAX_VALUE_BYTES) {
            return Err(StoreError::Refused("a value exceeds 512 KiB"));
        }
        if let Some(behind) = self.mirror.as_ref().and_then(|mirror| mirror.over()) {
            return Err(StoreError::MirrorBehind(behind));
        }
        let stamp = self.next();
        let appends = writes.iter().map(|(key, value)| -> BoxFuture<'_, _> {
            let record = value.as_ref().map(|value| StoreRecord::Value {
                op: stamp.op,
                key: key.clone(),
                value: value.clone(),
            });
            Box::pin(async move {
                match record {
                    Some(record) => self.append_value(entry::record(&record)).await.map(Some),
                    None => Ok(None),
                }
            })
        });
        let positions = gather::all(appends.collect()).await;
        let mut named = Vec::with_capacity(writes.len());
        for ((key, _), position) in writes.into_iter().zip(positions) {
            named.push((key, position?));
        }
        if mutant(mutants::APPS_M1) {
            let mut done = Ok(0);
            for one in named {
                let stamp = self.next();
                let commit = StoreRecord::Commit { stamp: stamp.clone(), writes: vec![one] };
                done = Ok(self.decide(&stamp, commit).await?);
            }
            return done;
        }
        let commit = StoreRecord::Commit { stamp: stamp.clone(), writes: named };
        self.decide(&stamp, commit).await
    }

    /// Gives every key the value that it had at an index. Returns the index from which reads see it. The history is kept.
    pub async fn roll_back(&self, to: Index) -> Result<Index, StoreError> {
        let stamp = self.next();
        self.decide(&stamp, StoreRecord::Rollback { stamp: stamp.clone(), to }).await
    }

    /// Appends a value. A copy that may also be there is garbage.
    async fn append_value(&self, data: Bytes) -> Result<u64, StoreError> {
        let mut failed = LogError::Unknown(None);
        for _ in 0..self.options.append_attempts.max(1) {
            match self.map.log().append(data.clone()).await {
                Ok(position) => return Ok(position),
                Err(error @ LogError::Unknown(_)) => failed = error,
                Err(error) => return Err(error.into()),
            }
        }
        // Without a commit, the values change nothing.
        Err(failed.into())
    }

    /// Appends the record that decides an operation, and waits until the map has applied it. Repeats it under the same name while the
    /// outcome is unknown: it takes effect once (apps-A3).
    async fn decide(&self, stamp: &Stamp, record: StoreRecord) -> Result<Index, StoreError> {
        let appended = self.map.append_named(entry::record(&record), self.options.append_attempts).await?;
        let Place { position, .. } = appended.ok_or(StoreError::Unknown(stamp.op))?;
        if mutant(mutants::APPS_A1) {
            self.map.meddle(|map, at| map.commit_as_received(at.max(position), &record));
        }
        // It is in the log; only its outcome is missing.
        self.map.play_to(position + 1).await.map_err(|_| StoreError::Unknown(stamp.op))?;
        self.result(stamp.op).unwrap_or(Err(StoreError::Unknown(stamp.op)))
    }

    fn result(&self, op: OpId) -> Option<Result<Index, StoreError>> {
        self.map.view(|map, applied| {
            Some(match map.outcome(op)? {
                Outcome::Applied { index } => Ok(index),
                Outcome::Collected { position } => Err(StoreError::Collected(position)),
                Outcome::Malformed { position } => Err(StoreError::Damaged(position)),
                Outcome::NotKept { floor } => Err(StoreError::NotKept { index: floor, floor, applied }),
            })
        })
    }

    /// Plays to the tail and returns what became of an operation of unknown outcome. `Unknown` if it is not in the log yet, or
    /// was forgotten.
    pub async fn outcome(&self, op: OpId) -> Result<Index, StoreError> {
        self.map.play().await?;
        self.result(op).unwrap_or(Err(StoreError::Unknown(op)))
    }

    /// Returns the values of all keys at one index, and the index. Linearizable: it sees everything that was acknowledged before the call.
    pub async fn multi_get(&self, keys: &[Bytes]) -> Result<(Index, Vec<Option<Bytes>>), StoreError> {
        check_keys(keys.iter())?;
        let tail = self.map.log().tail().await?;
        self.get_from(keys, tail).await
    }

    /// Returns the values of all keys at one index at or above `at_least`, without asking the log for its tail. With the index of the own
    /// last write, a client reads its own writes.
    pub async fn get_from(
        &self,
        keys: &[Bytes],
        at_least: Index,
    ) -> Result<(Index, Vec<Option<Bytes>>), StoreError> {
        check_keys(keys.iter())?;
        for _ in 0..self.options.read_attempts.max(1) {
            if !mutant(mutants::APPS_A5) {
                self.reach(at_least).await?;
            }
            let (index, positions) = match mutant(mutants::APPS_A4) {
                true => self.lookup_one_by_one(keys, at_least).await?,
                false => self.map.lookup(keys, at_least)?,
            };
            if let Some(values) = self.read_values(keys, &positions).await? {
                return Ok((index, values));
            }
            hit("log_apps.store.moved");
            // Compaction has moved or dropped what this index saw. What it appended for that is below the tail.
            self.map.play().await?;
        }
        Err(StoreError::Refused("values moved faster than they could be read"))
    }

    /// Plays to an index that a caller names. Refuses one above the tail: what is there is not decided, and must not be filled.
    async fn reach(&self, index: Index) -> Result<(), StoreError> {
        if self.map.applied() >= index {
            return Ok(());
        }
        if self.map.log().tail().await? < index {
            return Err(StoreError::Behind { applied: self.map.applied(), wanted: index });
        }
        Ok(self.map.play_to(index).await?)
    }

    async fn lookup_one_by_one(
        &self,
        keys: &[Bytes],
        at_least: Index,
    ) -> Result<(Index, Vec<Option<u64>>), StoreError> {
        let (mut index, mut positions) = (at_least, Vec::new());
        for key in keys {
            self.map.play().await?;
            let (at, found) = self.map.lookup(std::slice::from_ref(key), at_least)?;
            index = at;
            positions.extend(found);
        }
        Ok((index, positions))
    }

    /// Returns the values of keys at a past index, between the floor of the map and what it has applied: a snapshot.
    pub async fn get_at(&self, keys: &[Bytes], index: Index) -> Result<Vec<Option<Bytes>>, StoreError> {
        check_keys(keys.iter())?;
        self.reach(index).await?;
        for _ in 0..self.options.read_attempts.max(1) {
            let positions = self.map.lookup_at(keys, index)?;
            if let Some(values) = self.read_values(keys, &positions).await? {
                return Ok(values);
            }
            self.map.play().await?;
        }
        Err(StoreError::Refused("values moved faster than they could be read"))
    }

    /// Reads values at their positions. None if one of them was trimmed.
    async fn read_values(
        &self,
        keys: &[Bytes],
        positions: &[Option<u64>],
    ) -> Result<Option<Vec<Option<Bytes>>>, StoreError> {
        let reads = positions.iter().map(|position| -> BoxFuture<'_, _> {
            Box::pin(async move {
                match position {
                    Some(position) => self.map.log().read(*position).await.map(Some),
                    None => Ok(None),
                }
            })
        });
        let slots = gather::all(reads.collect()).await;
        let mut values = Vec::with_capacity(keys.len());
        for ((key, position), slot) in keys.iter().zip(positions).zip(slots) {
            match (position, slot?) {
                (Some(position), Some(Slot::Data(data))) => {
                    values.push(Some(value_in(data, key).ok_or(StoreError::Damaged(*position))?));
                }
                (Some(_), Some(Slot::Trimmed)) => return Ok(None),
                (Some(position), _) => return Err(StoreError::Damaged(*position)),
                (None, _) => values.push(None),
            }
        }
        Ok(Some(values))
    }
}

/// Returns the value that an entry holds for a key.
pub(crate) fn value_in(data: Bytes, key: &[u8]) -> Option<Bytes> {
    match AppEntry::open(data).ok()? {
        AppEntry::Record { body } => StoreRecord::from_bytes(body).ok()?.value_of(key),
        AppEntry::Part { .. } => None,
    }
}

/// Refuses keys that are too long or too many, and keys that are named twice.
pub(crate) fn check_keys<'a>(keys: impl Iterator<Item = &'a Bytes>) -> Result<(), StoreError> {
    let mut seen = BTreeMap::new();
    for key in keys {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(StoreError::Refused("a key has 1 to 4096 bytes"));
        }
        if seen.insert(key.clone(), ()).is_some() {
            return Err(StoreError::Refused("a key is named twice"));
        }
    }
    match seen.len() {
        0 => Err(StoreError::Refused("no key is named")),
        n if n > MAX_KEYS => Err(StoreError::Refused("more than 100 keys are named")),
        _ => Ok(()),
    }
}

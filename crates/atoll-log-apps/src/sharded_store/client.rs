//! The client of Scalog-Store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use atoll_contract::{ClientId, OpId};
use atoll_core::Decode;
use atoll_core::testing::{hit, mutant};

use super::map::PlaceMap;
use super::record::PutRecord;
use crate::entry::{self, AppEntry};
use crate::history::Index;
use crate::mutants;
use crate::player::Player;
use crate::sessions::Stamp;
use crate::shared_log::{Place, Slot};
use crate::store::{MAX_VALUE_BYTES, StoreError, StoreOptions, check_keys};

/// A replica of the map.
pub type PlaceReplica = Player<PlaceMap>;

impl Player<PlaceMap> {
    /// Returns where the value of a key is, at the index of this replica. Refuses to answer below an index (apps-A5).
    pub fn place(&self, key: &[u8], at_least: Index) -> Result<(Index, Option<Place>), StoreError> {
        self.view(|map, applied| {
            if applied < at_least && !mutant(mutants::APPS_A5) {
                return Err(StoreError::Behind { applied, wanted: at_least });
            }
            Ok((applied, map.place(key)))
        })
    }
}

/// A client of the store. Limits of keys and values are those of [`crate::store`].
#[derive(Debug)]
pub struct ShardedStore {
    map: Arc<PlaceReplica>,
    client: ClientId,
    seq: AtomicU64,
    options: StoreOptions,
}

impl ShardedStore {
    /// Returns a client that asks this replica of the map. `client` is an incarnation: no other client, before or after, has the same.
    pub fn new(map: Arc<PlaceReplica>, client: ClientId, options: StoreOptions) -> Self {
        ShardedStore { map, client, seq: AtomicU64::new(0), options }
    }

    /// Gives a key a value, or deletes it, by one append. Returns where it took effect; reads see it from the next position on. On return
    /// it is durable, and this client's map has applied it. `StoreError::Unknown` if it may have happened or may still happen.
    pub async fn put(&self, key: Bytes, value: Option<Bytes>) -> Result<Place, StoreError> {
        check_keys(std::iter::once(&key))?;
        if value.as_ref().is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
            return Err(StoreError::Refused("a value exceeds 512 KiB"));
        }
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let op = OpId { client: self.client, seq };
        let stamp = Stamp { op, began: self.map.applied() };
        let record = PutRecord::Put { stamp, key, value };
        let appended = self.map.append_named(entry::record(&record), self.options.append_attempts).await?;
        let place = appended.ok_or(StoreError::Unknown(op))?;
        if mutant(mutants::APPS_A1) {
            self.map.meddle(|map, _| map.apply_record(place, record));
        }
        // It is in the log. Only a map that has played so far knows whether this copy took effect, or an earlier one, or none.
        self.map.play_to(place.position + 1).await.map_err(|_| StoreError::Unknown(op))?;
        self.map.view(|map, _| map.outcome(op)).ok_or(StoreError::Unknown(op))
    }

    /// Returns the value of a key, and the index at which it has it. Linearizable: it sees everything that was acknowledged before it.
    pub async fn get(&self, key: &Bytes) -> Result<(Index, Option<Bytes>), StoreError> {
        check_keys(std::iter::once(key))?;
        let tail = self.map.log().tail().await?;
        for _ in 0..self.options.read_attempts.max(1) {
            if !mutant(mutants::APPS_A5) {
                self.map.play_to(tail).await?;
            }
            let (index, place) = self.map.place(key, tail)?;
            let Some(place) = place else { return Ok((index, None)) };
            match self.map.log().read_place(place).await? {
                Slot::Data(data) => {
                    let value = value_in(data, key).ok_or(StoreError::Damaged(place.position))?;
                    return Ok((index, Some(value)));
                }
                Slot::Trimmed => {}
                Slot::Junk | Slot::Unwritten => return Err(StoreError::Damaged(place.position)),
            }
            hit("log_apps.sharded_store.moved");
            // The value was moved or replaced meanwhile. The record that did so is below the tail.
            self.map.play().await?;
        }
        Err(StoreError::Refused("values moved faster than they could be read"))
    }
}

/// Returns the value that an entry gives a key.
pub(super) fn value_in(data: Bytes, key: &[u8]) -> Option<Bytes> {
    match AppEntry::open(data).ok()? {
        AppEntry::Record { body } => PutRecord::from_bytes(body).ok()?.value_of(key),
        AppEntry::Part { .. } => None,
    }
}

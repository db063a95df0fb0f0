//! The map of Scalog-Store: the sequence number and the shard of each key's value. A state machine that plays the log.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use atoll_contract::OpId;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode, Reader};

use super::record::PutRecord;
use crate::mutants;
use crate::player::Machine;
use crate::sessions::{Known, Sessions, Stamp};
use crate::shared_log::Place;

/// The limits that are part of the state: all replicas have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceLimits {
    /// How many clients are remembered, so that their retries take effect once.
    pub max_clients: u32,
    /// How many operations of each client are remembered. It may have as many in flight.
    pub max_ops: u32,
}

impl Default for PlaceLimits {
    fn default() -> Self {
        PlaceLimits { max_clients: 10_000, max_ops: 64 }
    }
}

/// The state of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaceMap {
    places: BTreeMap<Bytes, Place>,
    /// The keys by the positions of their values.
    live: BTreeMap<u64, Bytes>,
    sessions: Sessions<Place>,
}

impl PlaceMap {
    /// Returns an empty map.
    pub fn new(limits: PlaceLimits) -> Self {
        let sessions = Sessions::new(limits.max_clients, limits.max_ops);
        PlaceMap { places: BTreeMap::new(), live: BTreeMap::new(), sessions }
    }

    /// Returns where the newest value of a key is. None if the key has none.
    pub fn place(&self, key: &[u8]) -> Option<Place> {
        self.places.get(key).copied()
    }

    /// Returns where the put took effect that has this name. None if it did not, or was forgotten.
    pub fn outcome(&self, op: OpId) -> Option<Place> {
        self.sessions.outcome(op)
    }

    /// Returns the position of the first live value. `u64::MAX` if there is none.
    pub fn first_live(&self) -> u64 {
        self.live.keys().next().copied().unwrap_or(u64::MAX)
    }

    /// Returns the first live values below a position, at most `count`: where they are, and their keys.
    pub fn live_below(&self, below: u64, count: usize) -> Vec<(Place, Bytes)> {
        let first = self.live.range(..below).take(count);
        first.filter_map(|(_, key)| Some((self.place(key)?, key.clone()))).collect()
    }

    fn set(&mut self, key: Bytes, place: Option<Place>) {
        let before = match place {
            Some(place) => {
                self.live.insert(place.position, key.clone());
                self.places.insert(key, place)
            }
            None => self.places.remove(&key),
        };
        if let Some(before) = before {
            self.live.remove(&before.position);
        }
    }

    fn put(&mut self, place: Place, stamp: &Stamp, key: Bytes, has_value: bool) {
        match self.sessions.check(stamp) {
            Known::Fresh => {
                self.set(key, has_value.then_some(place));
                self.sessions.record(stamp.op, place.position + 1, place);
            }
            Known::Done(_) | Known::Forgotten => hit("log_apps.sharded_store.again"),
        }
    }

    /// Applies the record at a place. Places come in the order of the log, so the newest value of a key has the largest position.
    pub(crate) fn apply_record(&mut self, place: Place, record: PutRecord) {
        let place = if mutant(mutants::APPS_G1) { Place { shard: 0, ..place } } else { place };
        match record {
            PutRecord::Put { stamp, key, value } => self.put(place, &stamp, key, value.is_some()),
            PutRecord::Move { key, old, .. } => {
                let is_there = self.place(&key).is_some_and(|now| now.position == old);
                if is_there || mutant(mutants::APPS_A6) {
                    self.set(key, Some(place));
                }
            }
        }
    }
}

impl Machine for PlaceMap {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        self.apply_at(Place { position, shard: 0 }, body)
    }

    fn apply_at(&mut self, place: Place, body: Bytes) -> Result<(), DecodeError> {
        self.apply_record(place, PutRecord::from_bytes(body)?);
        Ok(())
    }

    fn save(&self) -> Bytes {
        self.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        *self = PlaceMap::from_bytes(state)?;
        Ok(())
    }
}

impl Encode for PlaceMap {
    fn encode(&self, out: &mut BytesMut) {
        self.places.encode(out);
        self.sessions.encode(out);
    }
}

impl Decode for PlaceMap {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let places: BTreeMap<Bytes, Place> = Decode::decode(from)?;
        let live = places.iter().map(|(key, place)| (place.position, key.clone())).collect();
        Ok(PlaceMap { places, live, sessions: Decode::decode(from)? })
    }
}

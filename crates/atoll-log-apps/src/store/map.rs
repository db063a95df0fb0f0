//! The map service (TOCS'13 §3): which position holds the value of each key. A state machine that plays the log.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use atoll_contract::OpId;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode, Reader};

use super::record::StoreRecord;
use crate::history::{History, Index};
use crate::mutants;
use crate::player::Machine;
use crate::sessions::{Known, Sessions, Stamp};

atoll_core::choice! {
    /// What became of a commit or a rollback.
    pub enum Outcome {
        /// It took effect; the index is the one above its position.
        1 = Applied { index: u64 },
        /// It had no effect: the value at this position was collected before the commit came.
        2 = Collected { position: u64 },
        /// It had no effect: it names a position that is not below its own.
        3 = Malformed { position: u64 },
        /// It had no effect: the index to go back to is not kept any more, or is not reached yet.
        4 = NotKept { floor: u64 },
    }
}

/// The limits that are part of the state: all replicas have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// How many clients are remembered, so that their retries take effect once.
    pub max_clients: u32,
    /// How many operations of each client are remembered. It may have as many in flight.
    pub max_ops: u32,
    /// How many changes are kept for snapshots and rollbacks.
    pub max_changes: u64,
}

impl Default for MapLimits {
    fn default() -> Self {
        MapLimits { max_clients: 10_000, max_ops: 64, max_changes: 1_000_000 }
    }
}

/// The state of the map service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreMap {
    history: History<u64>,
    sessions: Sessions<Outcome>,
    /// Positions below it that no allowed index sees are garbage.
    collected: u64,
    /// The positions that an allowed index may see, with their keys. Some may be seen no longer; the compactor drops them.
    live: BTreeMap<u64, Bytes>,
}

impl StoreMap {
    /// Returns an empty map.
    pub fn new(limits: MapLimits) -> Self {
        StoreMap {
            history: History::new(limits.max_changes),
            sessions: Sessions::new(limits.max_clients, limits.max_ops),
            collected: 0,
            live: BTreeMap::new(),
        }
    }

    /// Returns the position of the value of a key at an index, which is at or above [`StoreMap::floor`].
    pub fn position(&self, key: &[u8], at: Index) -> Option<u64> {
        self.history.get(key, at).copied()
    }

    /// Returns the lowest index that can be read.
    pub fn floor(&self) -> Index {
        self.history.floor()
    }

    /// Returns the keys that have values at an index, with their positions, in order.
    pub fn keys(&self, from: &[u8], to: &[u8], at: Index) -> Vec<(Bytes, u64)> {
        self.history.range(from, to, at).map(|(key, position)| (key.clone(), *position)).collect()
    }

    /// Returns what became of an operation. None if it did not take effect, or was forgotten.
    pub fn outcome(&self, op: OpId) -> Option<Outcome> {
        self.sessions.outcome(op)
    }

    /// Returns the position below which everything that no allowed index sees is garbage.
    pub fn collected(&self) -> u64 {
        self.collected
    }

    /// Returns whether some allowed index may see the value at a position.
    pub fn is_live(&self, position: u64) -> bool {
        self.live.contains_key(&position)
    }

    /// Returns the first live positions below a bound, at most `count`, with their keys.
    pub fn live_below(&self, below: u64, count: usize) -> Vec<(u64, Bytes)> {
        self.live.range(..below).take(count).map(|(at, key)| (*at, key.clone())).collect()
    }

    fn commit(&mut self, position: u64, stamp: &Stamp, writes: Vec<(Bytes, Option<u64>)>) {
        let outcome = match self.sessions.check(stamp) {
            Known::Fresh => self.write(position, writes),
            Known::Done(_) | Known::Forgotten => {
                hit("log_apps.store.again");
                return;
            }
        };
        self.sessions.record(stamp.op, position + 1, outcome);
    }

    fn write(&mut self, position: u64, writes: Vec<(Bytes, Option<u64>)>) -> Outcome {
        for at in writes.iter().filter_map(|(_, at)| *at) {
            if at >= position {
                return Outcome::Malformed { position: at };
            }
            // What was collected may be trimmed (apps-A2).
            if at < self.collected && !self.is_live(at) && !mutant(mutants::APPS_A2) {
                hit("log_apps.store.collected");
                return Outcome::Collected { position: at };
            }
        }
        let index = position + 1;
        for (key, at) in writes {
            if let Some(at) = at {
                self.live.insert(at, key.clone());
            }
            self.history.put(key, index, at);
        }
        Outcome::Applied { index }
    }

    fn roll_back(&mut self, position: u64, stamp: &Stamp, to: Index) {
        if self.sessions.check(stamp) != Known::Fresh {
            return;
        }
        let index = position + 1;
        let outcome = if to < self.floor() || to > position {
            Outcome::NotKept { floor: self.floor() }
        } else {
            // Read all before the floor may rise.
            let back: Vec<(Bytes, Option<u64>)> = self
                .history
                .changed_above(to)
                .into_iter()
                .map(|key| {
                    let then = self.history.get(&key, to).copied();
                    (key, then)
                })
                .collect();
            back.into_iter().for_each(|(key, then)| self.history.put(key, index, then));
            Outcome::Applied { index }
        };
        self.sessions.record(stamp.op, index, outcome);
    }

    /// Lets the copy at `position` take the place of `old`: in all versions, so that no allowed index sees `old` any more.
    fn move_value(&mut self, position: u64, key: &Bytes, old: u64) {
        let is_moved = if mutant(mutants::APPS_A6) {
            self.history.put(key.clone(), position + 1, Some(position));
            true
        } else {
            self.history.replace(key, &old, &position) > 0
        };
        if is_moved {
            self.live.remove(&old);
            self.live.insert(position, key.clone());
        }
    }

    fn collect(&mut self, position: u64, below: u64, keep: Index) {
        self.history.forget(keep.min(position));
        self.collected = self.collected.max(below.min(position));
        self.live = self.history.values().map(|(key, at)| (*at, key.clone())).collect();
    }

    /// Applies the record at a position.
    pub(crate) fn apply_record(&mut self, position: u64, record: StoreRecord) {
        match record {
            StoreRecord::Value { .. } => {}
            StoreRecord::Commit { stamp, writes } => self.commit(position, &stamp, writes),
            StoreRecord::Rollback { stamp, to } => self.roll_back(position, &stamp, to),
            StoreRecord::Move { key, old, .. } => self.move_value(position, &key, old),
            StoreRecord::Collect { below, keep } => self.collect(position, below, keep),
        }
    }

    /// Applies a commit at once, before its turn (apps-A1). For the mutant.
    pub(crate) fn commit_as_received(&mut self, at: u64, record: &StoreRecord) {
        if let StoreRecord::Commit { stamp, writes } = record {
            self.commit(at, stamp, writes.clone());
        }
    }
}

impl Machine for StoreMap {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        self.apply_record(position, StoreRecord::from_bytes(body)?);
        Ok(())
    }

    fn save(&self) -> Bytes {
        self.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        *self = StoreMap::from_bytes(state)?;
        Ok(())
    }
}

impl Encode for StoreMap {
    fn encode(&self, out: &mut BytesMut) {
        self.history.encode(out);
        self.sessions.encode(out);
        self.collected.encode(out);
        self.live.encode(out);
    }
}

impl Decode for StoreMap {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(StoreMap {
            history: Decode::decode(from)?,
            sessions: Decode::decode(from)?,
            collected: Decode::decode(from)?,
            live: Decode::decode(from)?,
        })
    }
}

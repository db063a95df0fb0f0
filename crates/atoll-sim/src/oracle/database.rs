//! Checks the database as its clients and the doors of its nodes see it. Every command is applied once, at one place, with the same result
//! on all replicas. Answers and linearizable reads agree with that order, and the order with real time. Hashes at equal positions are
//! equal.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_db::{HashAt, LogPos};

use crate::oracle::Answered;

/// The place of a command in the order of all commands.
pub type Place = (LogPos, u32);

/// A write as a replica applied it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its id, drawn by its client. No two writes have the same.
    pub id: u64,
    /// The cell.
    pub key: u64,
    /// The time of its entry, in milliseconds since the Unix epoch. Equal on all replicas.
    pub time_ms: u64,
}

/// Returns the latest time that the log may show now, in milliseconds since the Unix epoch.
pub type Bound = Arc<dyn Fn() -> u64 + Send + Sync>;

#[derive(Default)]
struct DatabaseOracleState {
    applied: BTreeMap<Place, Write>,
    places: BTreeMap<u64, Place>,
    by_key: BTreeMap<u64, BTreeMap<Place, u64>>,
    acknowledged: BTreeMap<u64, Place>,
    denied: BTreeMap<u64, String>,
    highest: Option<Place>,
    hashes: BTreeMap<LogPos, u128>,
    compared: u64,
    operations: u64,
    failures: Vec<String>,
    bound: Option<Bound>,
}

/// See the module documentation. Clones share their state.
#[derive(Clone, Default)]
pub struct DatabaseOracle(Arc<Mutex<DatabaseOracleState>>);

impl std::fmt::Debug for DatabaseOracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an oracle with {} writes", self.lock().applied.len())
    }
}

impl DatabaseOracleState {
    fn fail(&mut self, what: String) {
        self.failures.push(format!("DATABASE: {what}"));
    }

    fn apply(&mut self, place: Place, write: Write) {
        match self.applied.get(&place) {
            Some(first) if *first != write => {
                return self.fail(format!("two writes at {place:?}: {first:?} and {write:?}"));
            }
            Some(_) => return,
            None => {}
        }
        if let Some(first) = self.places.insert(write.id, place) {
            self.fail(format!("{write:?} was applied at {first:?} and at {place:?}"));
        }
        if let Some(why) = self.denied.get(&write.id) {
            let why = why.clone();
            self.fail(format!("{write:?} was applied at {place:?} and was said not to happen: {why}"));
        }
        let before = self.applied.range(..place).next_back().map(|(_, w)| w.time_ms);
        if before.is_some_and(|t| t > write.time_ms) {
            self.fail(format!("time goes back at {place:?}: from {before:?} to {}", write.time_ms));
        }
        if let Some(most) = self.bound.as_ref().map(|bound| bound()).filter(|most| write.time_ms > *most) {
            self.fail(format!(
                "the log is ahead of the time at {place:?}: {} ms, at most {most} ms",
                write.time_ms
            ));
        }
        self.applied.insert(place, write);
        self.by_key.entry(write.key).or_default().insert(place, write.id);
    }
}

impl DatabaseOracle {
    fn lock(&self) -> MutexGuard<'_, DatabaseOracleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a bound on the log's time. From now on, every write is checked against it.
    pub fn bound_time(&self, bound: Bound) {
        self.lock().bound = Some(bound);
    }

    /// Checks and notes an event that a replica emitted for a write.
    pub fn applied(&self, place: Place, write: Write) {
        self.lock().apply(place, write);
    }

    /// Returns the highest acknowledged place. Operations that start from now on must come after it.
    pub fn now(&self) -> Option<Place> {
        self.lock().highest
    }

    /// Checks the acknowledgement of a write that was proposed when `since` was the highest acknowledged place.
    pub fn acknowledged(&self, id: u64, place: Place, since: Option<Place>) {
        let mut state = self.lock();
        state.operations += 1;
        if since.is_some_and(|s| place <= s) {
            state.fail(format!("write {id} is at {place:?}, proposed after {since:?} was acknowledged"));
        }
        if state.places.get(&id) != Some(&place) {
            let applied = state.places.get(&id).copied();
            state.fail(format!("write {id} was answered at {place:?}, applied at {applied:?}"));
        }
        state.acknowledged.insert(id, place);
        state.highest = state.highest.max(Some(place));
    }

    /// Checks and notes an answer that a write did not happen.
    pub fn denied(&self, id: u64, why: String) {
        let mut state = self.lock();
        state.operations += 1;
        if let Some(place) = state.places.get(&id).copied() {
            state.fail(format!("write {id} is at {place:?}, and was said not to happen: {why}"));
        }
        state.denied.insert(id, why);
    }

    /// Checks a read of a cell after a barrier that began when `since` was the highest acknowledged place.
    pub fn read(&self, key: u64, value: Option<u64>, below: LogPos, since: Option<Place>) {
        let mut state = self.lock();
        state.operations += 1;
        if since.is_some_and(|(at, _)| at >= below) {
            state
                .fail(format!("a read showed what is below {below}, begun after {since:?} was acknowledged"));
        }
        let cell = state.by_key.get(&key);
        let expected = cell.and_then(|c| c.range(..(below, 0)).next_back()).map(|(_, id)| *id);
        if expected != value {
            state.fail(format!("cell {key} was {value:?} below {below}, where it was {expected:?}"));
        }
    }

    /// Returns the cells with all entries below a position, by what replicas have applied. Nobody has asked a backup.
    pub fn cells_below(&self, below: LogPos) -> BTreeMap<u64, u64> {
        self.cells(|place, _| place.0 < below)
    }

    /// The same, with those of the entries below a position that are not later than a time of the log.
    pub fn cells_at(&self, time_ms: u64, below: LogPos) -> BTreeMap<u64, u64> {
        self.cells(|place, write| write.time_ms <= time_ms && place.0 < below)
    }

    fn cells(&self, has: impl Fn(&Place, &Write) -> bool) -> BTreeMap<u64, u64> {
        let state = self.lock();
        let applied = state.applied.iter().filter(|(place, write)| has(place, write));
        applied.map(|(_, write)| (write.key, write.id)).collect()
    }

    /// Compares the hashes of a replica with those of the others.
    pub fn hashes(&self, who: &str, hashes: &[HashAt]) {
        let mut state = self.lock();
        for HashAt { below, hash } in hashes {
            match state.hashes.insert(*below, *hash) {
                Some(first) if first != *hash => {
                    state.fail(format!("{who}: hash {hash:032x} below {below}, another had {first:032x}"));
                }
                Some(_) => state.compared += 1,
                None => {}
            }
        }
    }

    /// Returns the number of answers.
    pub fn answered(&self) -> Answered {
        let state = self.lock();
        let writes = state.acknowledged.len() as u64;
        Answered { writes, reads: state.operations - writes }
    }

    /// Returns how many hashes were compared.
    pub fn compared(&self) -> u64 {
        self.lock().compared
    }

    /// Returns how many writes were acknowledged.
    pub fn writes(&self) -> usize {
        self.lock().acknowledged.len()
    }

    /// Returns the time of the last write in the log, in milliseconds since the Unix epoch.
    pub fn time_ms(&self) -> u64 {
        self.lock().applied.last_key_value().map_or(0, |(_, write)| write.time_ms)
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().failures)
    }
}

//! The oracle of the store. It shares with the product only the codec of records: it replays what was written, keeps the whole state at
//! every index, and judges what clients saw by it. It knows nothing of positions, moves or checkpoints: to it, keys have values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use atoll_contract::OpId;
use atoll_core::Decode;
use atoll_log_apps::entry::AppEntry;
use atoll_log_apps::store::{StoreError, StoreRecord};
use bytes::Bytes;

pub type State = BTreeMap<Bytes, Bytes>;
pub type Writes = Vec<(Bytes, Option<Bytes>)>;

/// One operation of a client. Times count the steps of the whole run.
#[derive(Clone, Debug)]
pub enum Seen {
    Put { writes: Writes, result: Result<u64, StoreError> },
    Back { to: u64, result: Result<u64, StoreError> },
    Get { keys: Vec<Bytes>, result: Result<(u64, Vec<Option<Bytes>>), StoreError> },
    GetAt { index: u64, keys: Vec<Bytes>, result: Result<Vec<Option<Bytes>>, StoreError> },
}

#[derive(Clone, Debug)]
pub struct Op {
    pub begin: u64,
    pub end: u64,
    pub seen: Seen,
}

/// What clients have tried and seen.
#[derive(Clone, Debug, Default)]
pub struct Book(Arc<Mutex<Pages>>);

#[derive(Debug, Default)]
struct Pages {
    clock: u64,
    ops: Vec<Op>,
    /// Every multi-put that was ever begun.
    tried: Vec<Writes>,
}

impl Book {
    pub fn now(&self) -> u64 {
        let mut pages = self.0.lock().unwrap();
        pages.clock += 1;
        pages.clock
    }

    pub fn tries(&self, writes: &Writes) {
        self.0.lock().unwrap().tried.push(writes.clone());
    }

    pub fn saw(&self, begin: u64, seen: Seen) {
        let end = self.now();
        self.0.lock().unwrap().ops.push(Op { begin, end, seen });
    }

    pub fn ops(&self) -> Vec<Op> {
        self.0.lock().unwrap().ops.clone()
    }

    pub fn tried(&self) -> Vec<Writes> {
        self.0.lock().unwrap().tried.clone()
    }
}

/// The state at every index, from what was ever written.
#[derive(Debug, Default)]
pub struct Model {
    pub states: Vec<State>,
    /// Which multi-put committed at which index, by its writes.
    pub committed: BTreeMap<u64, Writes>,
    pub wrong: Vec<String>,
}

fn record(data: &Bytes) -> Option<StoreRecord> {
    match AppEntry::open(data.clone()).unwrap() {
        AppEntry::Record { body } => Some(StoreRecord::from_bytes(body).unwrap()),
        AppEntry::Part { .. } => None,
    }
}

pub fn replay(ever: &BTreeMap<u64, Bytes>, book: &Book) -> Model {
    let tried = book.tried();
    let mut model = Model { states: vec![State::new()], ..Model::default() };
    let (mut done, mut below, mut floor) = (BTreeSet::<OpId>::new(), 0, 0);
    let tail = ever.keys().next_back().map_or(0, |at| at + 1);
    for position in 0..tail {
        let mut state = model.states.last().unwrap().clone();
        match ever.get(&position).and_then(record) {
            // The first copy of a commit counts, unless one of its values was collected before.
            Some(StoreRecord::Commit { stamp, writes })
                if done.insert(stamp.op) && writes.iter().all(|(_, at)| at.is_none_or(|at| at >= below)) =>
            {
                let value = |at: u64| match record(&ever[&at]) {
                    Some(StoreRecord::Value { value, .. }) => value,
                    other => panic!("a commit names {other:?}"),
                };
                let writes: Writes = writes.into_iter().map(|(key, at)| (key, at.map(value))).collect();
                if !tried.contains(&writes) {
                    model
                        .wrong
                        .push(format!("AP1 a part of a multi-put is visible at {position}: {writes:?}"));
                }
                for (key, value) in writes.clone() {
                    match value {
                        Some(value) => state.insert(key, value),
                        None => state.remove(&key),
                    };
                }
                model.committed.insert(position + 1, writes);
            }
            Some(StoreRecord::Rollback { stamp, to })
                if done.insert(stamp.op) && to >= floor && to <= position =>
            {
                state = model.states[to as usize].clone();
            }
            Some(StoreRecord::Collect { below: b, keep }) => {
                below = below.max(b.min(position));
                floor = floor.max(keep.min(position));
            }
            _ => {}
        }
        model.states.push(state);
    }
    model
}

impl Model {
    fn values(&self, index: u64, keys: &[Bytes]) -> Option<Vec<Option<Bytes>>> {
        let state = self.states.get(index as usize)?;
        Some(keys.iter().map(|key| state.get(key).cloned()).collect())
    }

    /// Judges what clients saw. Every operation takes effect at its index, so the indices must agree with the states and with real time.
    pub fn judge(mut self, book: &Book) -> Vec<String> {
        let mut wrong = std::mem::take(&mut self.wrong);
        // Indices of operations that had an effect on somebody: (begin, end, index, is it a write).
        let mut points = Vec::new();
        for op in book.ops() {
            match &op.seen {
                Seen::Put { writes, result } => {
                    let at: Vec<u64> =
                        self.committed.iter().filter(|(_, w)| *w == writes).map(|(i, _)| *i).collect();
                    match result {
                        Ok(index) if at != [*index] => {
                            wrong.push(format!(
                                "AP2 a multi-put is at {at:?}, but was acknowledged at {index}"
                            ));
                        }
                        Ok(index) => points.push((op.begin, op.end, *index, true)),
                        Err(StoreError::Unknown(_)) if at.len() <= 1 => {}
                        Err(error) if !at.is_empty() => {
                            wrong.push(format!("AP2 a multi-put is at {at:?}, although: {error}"));
                        }
                        Err(_) => {}
                    }
                }
                Seen::Back { to, result: Ok(index) } => {
                    if self.states[*index as usize] != self.states[*to as usize] {
                        wrong.push(format!("AP4 a rollback to {to} is not at {index}"));
                    }
                    points.push((op.begin, op.end, *index, true));
                }
                Seen::Get { keys, result: Ok((index, values)) } => {
                    if self.values(*index, keys).as_ref() != Some(values) {
                        wrong.push(format!("AP1 a multi-get at {index} of {keys:?} returned {values:?}"));
                    }
                    points.push((op.begin, op.end, *index, false));
                }
                Seen::GetAt { index, keys, result: Ok(values) } => {
                    if self.values(*index, keys).as_ref() != Some(values) {
                        wrong.push(format!("AP4 a snapshot at {index} of {keys:?} returned {values:?}"));
                    }
                }
                Seen::Get { result: Err(error), .. } | Seen::GetAt { result: Err(error), .. } => {
                    let is_fine = matches!(error, StoreError::NotDone(_) | StoreError::NotKept { .. });
                    if !is_fine {
                        wrong.push(format!("AP4 a read failed: {error}"));
                    }
                }
                Seen::Back { .. } => {}
            }
        }
        for (_, end, index, _) in &points {
            for (begin, _, later, is_write) in &points {
                let is_old = later < index || (later == index && *is_write);
                if begin > end && is_old {
                    wrong.push(format!("AP2 an operation at {later} began after one at {index} had ended"));
                }
            }
        }
        wrong
    }
}

//! A state in memory, so that an application can be tested without an engine.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use super::state::{InMemory, Mark, Page, ShowState, StoreError, WriteState};
use super::{AppId, Direction, KeyRange, View};
use crate::position::LogPos;

/// A plain map that can be rolled back. Two are equal if they have the same rows.
#[derive(Clone, Debug, Default)]
pub struct MapState {
    rows: BTreeMap<Bytes, Bytes>,
    /// The keys that were written, with their values before.
    undo: Vec<(Bytes, Option<Bytes>)>,
}

impl PartialEq for MapState {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl Eq for MapState {}

impl MapState {
    /// Returns the rows, by their keys in the store.
    pub fn rows(&self) -> &BTreeMap<Bytes, Bytes> {
        &self.rows
    }

    /// Returns an application's view of the present state, with these entries and this time.
    pub fn view(&self, app: AppId, below: LogPos, time_ms: u64) -> View {
        let state = MapState { rows: self.rows.clone(), undo: Vec::new() };
        View::new(Arc::new(Shown { state, below, time_ms }), app)
    }

    fn first(&self, range: &KeyRange, direction: Direction, limit: usize) -> Page {
        if range.is_empty() {
            return Page::default();
        }
        let end = range.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = self.rows.range((Bound::Included(range.start.clone()), end));
        let rows = rows.map(|(key, value)| (key.clone(), value.clone()));
        let items: Vec<_> = match direction {
            Direction::Forward => rows.take(limit).collect(),
            Direction::Backward => rows.rev().take(limit).collect(),
        };
        let rest = items.last().filter(|_| items.len() == limit).map(|(last, _)| match direction {
            Direction::Forward => range.clone().above(last),
            Direction::Backward => range.clone().below(last),
        });
        Page { items, rest: rest.filter(|rest| !rest.is_empty()) }
    }
}

impl WriteState for MapState {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        self.rows.get(key).cloned()
    }

    fn write(&mut self, key: &[u8], value: Option<Bytes>) {
        let key = Bytes::copy_from_slice(key);
        let before = match value {
            Some(value) => self.rows.insert(key.clone(), value),
            None => self.rows.remove(&key),
        };
        self.undo.push((key, before));
    }

    fn page(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Page {
        self.first(range, direction, limit)
    }

    fn mark(&self) -> Mark {
        Mark { writes: self.undo.len(), hash: 0 }
    }

    fn rollback(&mut self, to: &Mark) {
        for (key, before) in self.undo.drain(to.writes..).rev() {
            match before {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
    }
}

/// A state that is shown, with its position.
#[derive(Debug)]
struct Shown {
    state: MapState,
    below: LogPos,
    time_ms: u64,
}

impl ShowState for Shown {
    fn below(&self) -> LogPos {
        self.below
    }

    fn time_ms(&self) -> u64 {
        self.time_ms
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn get_in_memory(&self, key: &[u8]) -> InMemory {
        InMemory::Known(self.state.rows.get(key).cloned())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.state.rows.get(key).cloned())
    }

    fn page(&self, range: &KeyRange, direction: Direction, limit: usize) -> Result<Page, StoreError> {
        Ok(self.state.first(range, direction, limit))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Savepoint, Tx, full_key};
    use super::*;

    const APP: AppId = AppId(7);

    fn keys(view: &View, range: &KeyRange, direction: Direction) -> Vec<Bytes> {
        view.scan(range, direction).map(|row| row.expect("a map can be read").0).collect()
    }

    #[test]
    fn a_command_sees_its_writes_and_takes_them_back() {
        let (mut state, mut events) = (MapState::default(), Vec::new());
        let mut tx = Tx::new(APP, &mut state, &mut events);
        tx.put(b"a", &b"1"[..]);
        tx.emit("kept");
        let here: Savepoint = tx.savepoint();
        tx.put(b"a", &b"2"[..]);
        tx.put(b"b", &b"2"[..]);
        tx.delete(b"a");
        tx.emit("dropped");
        assert_eq!((tx.get(b"a"), tx.get(b"b")), (None, Some(Bytes::from_static(b"2"))));
        tx.rollback(&here);
        assert_eq!((tx.get(b"a"), tx.get(b"b")), (Some(Bytes::from_static(b"1")), None));
        assert_eq!(events, ["kept"]);
        assert_eq!(state.rows().keys().collect::<Vec<_>>(), [&full_key(APP, b"a")]);
    }

    /// More rows than a scan fetches at a time, between rows of other applications.
    #[test]
    fn scans_show_the_rows_of_their_application_only() {
        let mut state = MapState::default();
        for app in [AppId(6), APP, AppId(8)] {
            for n in 0..300u16 {
                state.write(&full_key(app, &n.to_be_bytes()), Some(Bytes::new()));
            }
        }
        let view = state.view(APP, LogPos(1), 0);
        let all: Vec<Bytes> = (0..300u16).map(|n| Bytes::copy_from_slice(&n.to_be_bytes())).collect();
        assert_eq!(keys(&view, &KeyRange::all(), Direction::Forward), all);
        assert!(keys(&view, &KeyRange::all(), Direction::Backward).iter().eq(all.iter().rev()));
        let some = KeyRange::new(all[3].clone(), all[200].clone());
        assert_eq!(keys(&view, &some, Direction::Forward), all[3..200]);
        let mut events: Vec<()> = Vec::new();
        let mut tx = Tx::new(APP, &mut state, &mut events);
        assert_eq!(tx.range(&some, Direction::Backward, 150).len(), 150);
        assert_eq!(tx.range(&KeyRange::all(), Direction::Forward, 1000).len(), 300);
    }
}

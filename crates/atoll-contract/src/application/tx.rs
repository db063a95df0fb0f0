//! The interface of a command to the state: it reads and writes keys of its application and emits events.

use bytes::Bytes;

use super::state::{Mark, WriteState};
use super::view::{PAGE_ENTRIES, with_full_key};
use super::{AppId, Direction, KeyRange};

/// The state while a command is applied. Reads see the writes of this command and of all earlier ones.
///
/// If a read of the store fails, it returns None or no entries. The replica then rolls back the whole entry, whatever the command
/// did, and stops before it.
#[derive(Debug)]
pub struct Tx<'a, E> {
    app: AppId,
    state: &'a mut dyn WriteState,
    events: &'a mut Vec<E>,
}

/// A savepoint within a command; see [`Tx::savepoint`].
#[derive(Debug)]
pub struct Savepoint {
    mark: Mark,
    events: usize,
}

impl<'a, E> Tx<'a, E> {
    /// Creates the interface for one command of an application. It appends the command's events to `events`.
    pub fn new(app: AppId, state: &'a mut dyn WriteState, events: &'a mut Vec<E>) -> Self {
        Tx { app, state, events }
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        with_full_key(self.app, key, |key| self.state.get(key))
    }

    /// Writes a key.
    pub fn put(&mut self, key: &[u8], value: impl Into<Bytes>) {
        let value = value.into();
        with_full_key(self.app, key, |key| self.state.write(key, Some(value)));
    }

    /// Deletes a key. Has no effect if the key does not exist.
    pub fn delete(&mut self, key: &[u8]) {
        with_full_key(self.app, key, |key| self.state.write(key, None));
    }

    /// Returns the first entries of a range in the given direction, at most `limit`. To continue, call this for the rest of the
    /// range ([`KeyRange::above`], [`KeyRange::below`]). Give the range an explicit end if many keys follow it.
    pub fn range(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Vec<(Bytes, Bytes)> {
        let mut got = Vec::new();
        let mut rest = Some(range.within(self.app.0));
        while let Some(range) = rest
            && got.len() < limit
        {
            let page = self.state.page(&range, direction, PAGE_ENTRIES.min(limit - got.len()));
            got.extend(page.items.into_iter().map(|(key, value)| (key.slice(1..), value)));
            rest = page.rest;
        }
        got.truncate(limit);
        got
    }

    /// Emits an event to the doors of every replica. The event is dropped if the command is rejected.
    pub fn emit(&mut self, event: E) {
        self.events.push(event);
    }

    /// Sets a savepoint. For commands with several parts, some of which may fail without failing the whole command.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint { mark: self.state.mark(), events: self.events.len() }
    }

    /// Rolls back all writes and events since a savepoint of this command. Later savepoints become invalid.
    pub fn rollback(&mut self, to: &Savepoint) {
        self.state.rollback(&to.mark);
        self.events.truncate(to.events);
    }
}

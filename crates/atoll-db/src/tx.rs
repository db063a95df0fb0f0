//! The interface of a command to the state: it reads and writes keys of its application and emits events.

use bytes::Bytes;

use crate::application::AppId;
use crate::key_range::{Direction, KeyRange};
use crate::replica::{Mark, Working};
use crate::view::{PAGE_ENTRIES, with_full_key};

/// The state while a command is applied. Reads see the writes of this command and of all earlier ones.
///
/// If a read of the store fails, it returns None or no entries. The replica then rolls back the whole entry, whatever the command
/// did, and stops before it.
#[derive(Debug)]
pub struct Tx<'a, E> {
    pub(crate) app: AppId,
    pub(crate) working: &'a mut Working,
    pub(crate) events: &'a mut Vec<E>,
}

/// A savepoint within a command; see [`Tx::savepoint`].
#[derive(Debug)]
pub struct Savepoint {
    mark: Mark,
    events: usize,
}

impl<E> Tx<'_, E> {
    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        with_full_key(self.app, key, |key| self.working.get(key))
    }

    /// Writes a key.
    pub fn put(&mut self, key: &[u8], value: impl Into<Bytes>) {
        let value = value.into();
        with_full_key(self.app, key, |key| self.working.write(key, Some(value)));
    }

    /// Deletes a key. Has no effect if the key does not exist.
    pub fn delete(&mut self, key: &[u8]) {
        with_full_key(self.app, key, |key| self.working.write(key, None));
    }

    /// Returns the first entries of a range in the given direction, at most `limit`. To continue, call this for the rest of the
    /// range ([`KeyRange::above`], [`KeyRange::below`]). Give the range an explicit end if many keys follow it.
    pub fn range(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Vec<(Bytes, Bytes)> {
        let mut got = Vec::new();
        let mut rest = Some(range.within(self.app.0));
        while let Some(range) = rest
            && got.len() < limit
        {
            let page = self.working.page(&range, direction, PAGE_ENTRIES.min(limit - got.len()));
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
        Savepoint { mark: self.working.mark(), events: self.events.len() }
    }

    /// Rolls back all writes and events since a savepoint of this command. Later savepoints become invalid.
    pub fn rollback(&mut self, to: &Savepoint) {
        self.working.rollback(&to.mark);
        self.events.truncate(to.events);
    }
}

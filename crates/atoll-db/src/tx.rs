//! What a command may do to the state: read and write keys of its application, and emit events.

use bytes::Bytes;

use crate::application::AppId;
use crate::key_range::{Direction, KeyRange};
use crate::replica::{Mark, Working};
use crate::view::{PAGE_ENTRIES, full_key, with_full_key};

/// The state under a command. Reads see the writes of this command and of all before it.
///
/// If the store fails, reads return None or nothing, and whatever the command does with that is rolled back: the replica stops
/// before the entry.
#[derive(Debug)]
pub struct Tx<'a, E> {
    pub(crate) app: AppId,
    pub(crate) working: &'a mut Working,
    pub(crate) events: &'a mut Vec<E>,
}

/// A moment within a command, to go back to. See [`Tx::checkpoint`].
#[derive(Debug)]
pub struct Checkpoint {
    mark: Mark,
    events: usize,
}

impl<E> Tx<'_, E> {
    /// The value of a key.
    pub fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        with_full_key(self.app, key, |key| self.working.get(key))
    }

    /// Writes a key.
    pub fn put(&mut self, key: &[u8], value: impl Into<Bytes>) {
        self.working.write(full_key(self.app, key), Some(value.into()));
    }

    /// Deletes a key; nothing if there is none.
    pub fn delete(&mut self, key: &[u8]) {
        self.working.write(full_key(self.app, key), None);
    }

    /// The first entries of a range in a direction, in that order: at most `limit`. To go on, ask for what is left
    /// ([`KeyRange::above`], [`KeyRange::below`]). Give ranges an end of your own where many keys follow.
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

    /// Emits an event to the doors of every replica; it is dropped if the command is rejected.
    pub fn emit(&mut self, event: E) {
        self.events.push(event);
    }

    /// A checkpoint at this moment. For commands of several parts, some of which may fail without failing the whole.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { mark: self.working.mark(), events: self.events.len() }
    }

    /// Rolls back all writes and events since a checkpoint of this command. Later checkpoints are void.
    pub fn rollback(&mut self, to: &Checkpoint) {
        self.working.rollback(&to.mark);
        self.events.truncate(to.events);
    }
}

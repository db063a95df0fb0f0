//! The state that commands are applied to, and how writes are taken back.

use bytes::Bytes;

use super::state_hash::{Before, StateHash};
use crate::key_range::{Direction, KeyRange};
use crate::layers::{Layers, Page};
use crate::store::{Prior, StoreError};

/// Values that were read from the store under the command at work and are kept in mind, at most: most writes follow a read of
/// the same key, and need its old value for the hash.
const SEEN_AT_MOST: usize = 8;

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Working {
    pub(crate) layers: Layers,
    /// The version that writes get: above the published one.
    pub(crate) version: u64,
    pub(crate) hash: StateHash,
    undo: Vec<(Bytes, Prior)>,
    /// What keys had below the layer that takes the writes; of a key that is there more than once, the first one counts.
    befores: Vec<Before>,
    seen: Vec<(Bytes, Option<Bytes>)>,
    /// The first failure of the store since the last [`Working::take_failure`].
    failed: Option<StoreError>,
}

/// A moment to go back to.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    undo: usize,
    hash: StateHash,
}

impl Working {
    pub(crate) fn new(layers: Layers, version: u64, hash: StateHash) -> Self {
        Working {
            layers,
            version,
            hash,
            undo: Vec::new(),
            befores: Vec::new(),
            seen: Vec::new(),
            failed: None,
        }
    }

    pub(crate) fn get(&mut self, key: Bytes) -> Option<Bytes> {
        if let Some(value) = self.layers.get_overlay(&key, self.version) {
            return value;
        }
        if let Some((_, value)) = self.seen.iter().find(|(seen, _)| *seen == key) {
            return value.clone();
        }
        match self.layers.base.get(&key) {
            Ok(value) => {
                if self.seen.len() < SEEN_AT_MOST {
                    self.seen.push((key, value.clone()));
                }
                value
            }
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    pub(crate) fn page(&mut self, range: &KeyRange, direction: Direction, limit: usize) -> Page {
        match self.layers.page(range, direction, self.version, limit) {
            Ok(page) => page,
            Err(error) => {
                self.failed.get_or_insert(error);
                Page { items: Vec::new(), rest: None }
            }
        }
    }

    pub(crate) fn write(&mut self, key: Bytes, value: Option<Bytes>) {
        let old = self.get(key.clone());
        let part = self.hash.replace(&key, old.as_ref(), value.as_ref());
        let prior = self.layers.active.put(key.clone(), value, self.version);
        if matches!(prior, Prior::None) {
            self.befores.push(Before { key: key.clone(), part, present: old.is_some() });
        }
        self.undo.push((key, prior));
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { undo: self.undo.len(), hash: self.hash }
    }

    /// Takes back the writes since; true if there were any.
    pub(crate) fn rollback(&mut self, to: &Mark) -> bool {
        let any = self.undo.len() > to.undo;
        while self.undo.len() > to.undo
            && let Some((key, prior)) = self.undo.pop()
        {
            if matches!(prior, Prior::None) {
                self.befores.pop();
            }
            self.layers.active.undo(&key, prior, self.version);
        }
        self.hash = to.hash;
        any
    }

    /// The command is done: what was read from the store under it is forgotten.
    pub(crate) fn end_command(&mut self) {
        self.seen.clear();
    }

    /// The entry is done: what it wrote stays.
    pub(crate) fn keep(&mut self) {
        self.undo.clear();
    }

    /// The layer that takes the writes is another one from here on.
    pub(crate) fn take_befores(&mut self) -> Vec<Before> {
        std::mem::take(&mut self.befores)
    }

    pub(crate) fn take_failure(&mut self) -> Option<StoreError> {
        self.failed.take()
    }
}

//! The state that commands are applied to, and how writes are taken back.

use bytes::Bytes;

use crate::key_range::{Direction, KeyRange};
use crate::layers::{Layers, Page};
use crate::store::{Prior, StoreError};

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Working {
    pub(crate) layers: Layers,
    /// The version that writes get: above the published one.
    pub(crate) version: u64,
    undo: Vec<(Bytes, Prior)>,
    /// The first failure of the store since the last [`Working::take_failure`].
    failed: Option<StoreError>,
}

/// A moment to go back to.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    undo: usize,
}

impl Working {
    pub(crate) fn new(layers: Layers, version: u64) -> Self {
        Working { layers, version, undo: Vec::new(), failed: None }
    }

    pub(crate) fn get(&mut self, key: Bytes) -> Option<Bytes> {
        match self.layers.get(&key, self.version) {
            Ok(value) => value,
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
        let prior = self.layers.active.put(key.clone(), value, self.version);
        self.undo.push((key, prior));
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { undo: self.undo.len() }
    }

    /// Takes back the writes since; true if there were any.
    pub(crate) fn rollback(&mut self, to: &Mark) -> bool {
        let any = self.undo.len() > to.undo;
        while self.undo.len() > to.undo
            && let Some((key, prior)) = self.undo.pop()
        {
            self.layers.active.undo(&key, prior, self.version);
        }
        any
    }

    /// The entry is done: what it wrote stays.
    pub(crate) fn keep(&mut self) {
        self.undo.clear();
    }

    pub(crate) fn take_failure(&mut self) -> Option<StoreError> {
        self.failed.take()
    }
}

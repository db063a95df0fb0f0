//! A map that supports only lookups of single keys. It cannot be iterated, because the order would differ between runs.

#![allow(clippy::disallowed_types)] // Its order is seen by nobody: there is no way to.

use std::collections::HashMap;

use bytes::Bytes;

/// See the module documentation. Clients choose keys, so the hash is the keyed one of the standard library.
#[derive(Debug)]
pub(crate) struct Points<V>(HashMap<Bytes, V>);

impl<V> Default for Points<V> {
    fn default() -> Self {
        Points(HashMap::new())
    }
}

impl<V> Points<V> {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        self.0.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        self.0.get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: Bytes, value: V) {
        self.0.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

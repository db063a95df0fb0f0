//! A store without an engine, for tests of commands.

use std::collections::BTreeMap;

use atoll_db::KeyRange;
use bytes::Bytes;

use crate::event::Event;
use crate::tree::key;
use crate::tree::state::{Counters, Keys};

/// The store of a replica as a map in memory. The caller must undo the writes of a refused command.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    /// All keys and values.
    pub keys: BTreeMap<Vec<u8>, Bytes>,
    /// The events that were emitted since the caller last took them.
    pub events: Vec<Event>,
}

impl Map {
    /// Returns the counters. Panics before the first command.
    pub fn counters(&self) -> Counters {
        Counters::of_bytes(&self.keys[key::COUNTERS])
    }
}

impl Keys for Map {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        self.keys.get(key).cloned()
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.keys.insert(key.to_vec(), value.into());
    }

    fn delete(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    fn first(&mut self, range: &KeyRange, limit: usize) -> Vec<(Bytes, Bytes)> {
        let all = self.keys.range(range.start.to_vec()..).take_while(|(key, _)| range.contains(key));
        all.take(limit).map(|(key, value)| (Bytes::copy_from_slice(key), value.clone())).collect()
    }

    fn emit(&mut self, event: Event) {
        self.events.push(event);
    }
}

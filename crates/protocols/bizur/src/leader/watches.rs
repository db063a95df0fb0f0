//! The watches of keys that had not changed when the leader had confirmed its term. A watch is answered when a change is committed, when
//! its time is over, and when the leader steps down. The client then reads the key, so it misses nothing if no answer comes.

use std::collections::BTreeMap;

use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, NodeId, Tick};
use bytes::Bytes;

use super::{Reader, Wanted, not_leader, reply};
use crate::bucket::Bucket;
use crate::message::Answer;

/// The most watches of a shard.
const MAX_WATCHES: usize = 4096;

#[derive(Debug)]
struct Watch {
    caller: Caller,
    index: u32,
    key: Bytes,
    seen: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Watches {
    /// In the order in which their time is over.
    by_end: BTreeMap<(Tick, u64), Watch>,
    /// The watches of each bucket.
    by_bucket: BTreeMap<u32, Vec<(Tick, u64)>>,
    next: u64,
}

impl Watches {
    /// Takes a watch of a key that has not changed. Without room for it, the client looks again later.
    pub(super) fn park(&mut self, reader: &Reader, out: &mut Effects) {
        let Wanted::Change { index, key, seen, until } = &reader.wanted else { return };
        if self.by_end.len() >= MAX_WATCHES {
            hit("bizur.watch.no_room");
            return reply(reader.caller, Answer::Unchanged {}, out);
        }
        let end = (*until, self.next);
        self.next += 1;
        self.by_bucket.entry(*index).or_default().push(end);
        let watch = Watch { caller: reader.caller, index: *index, key: key.clone(), seen: *seen };
        self.by_end.insert(end, watch);
    }

    /// Returns when the next watch has waited for long enough.
    pub(super) fn next_end(&self) -> Option<Tick> {
        self.by_end.first_key_value().map(|((end, _), _)| *end)
    }

    /// A bucket has this committed content. Answers the watches of its keys that have changed.
    pub(super) fn changed(&mut self, index: u32, content: &Bucket, out: &mut Effects) {
        let Some(ends) = self.by_bucket.remove(&index) else { return };
        let mut left = Vec::new();
        for end in ends {
            let Some(watch) = self.by_end.get(&end) else { continue };
            let held = content.get(&watch.key);
            if held.map_or(0, |(version, _)| version) == watch.seen {
                left.push(end);
                continue;
            }
            hit("bizur.watch.notified");
            let held = held.map(|(version, value)| (version, value.clone()));
            reply(watch.caller, Answer::Held { held }, out);
            self.by_end.remove(&end);
        }
        if !left.is_empty() {
            self.by_bucket.insert(index, left);
        }
    }

    /// Answers the watches whose time is over.
    pub(super) fn expire(&mut self, now: Tick, out: &mut Effects) {
        while let Some(entry) = self.by_end.first_entry().filter(|entry| entry.key().0 <= now) {
            let (end, watch) = entry.remove_entry();
            if let Some(ends) = self.by_bucket.get_mut(&watch.index) {
                ends.retain(|other| *other != end);
                if ends.is_empty() {
                    self.by_bucket.remove(&watch.index);
                }
            }
            reply(watch.caller, Answer::Unchanged {}, out);
        }
    }

    /// The leader steps down.
    pub(super) fn end_all(&mut self, leader: Option<NodeId>, out: &mut Effects) {
        self.by_bucket.clear();
        for (_, watch) in std::mem::take(&mut self.by_end) {
            reply(watch.caller, not_leader(leader), out);
        }
    }
}

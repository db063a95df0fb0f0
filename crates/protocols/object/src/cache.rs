//! The newest objects that a node has read or written, for all of its ObjectLoglets together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use atoll_contract::LogletId;
use atoll_core::sync::lock;

use crate::object::Entries;

#[derive(Debug, Default)]
struct Kept {
    objects: BTreeMap<(LogletId, u64), Arc<Entries>>,
    /// In the order in which they came.
    order: VecDeque<(LogletId, u64)>,
    bytes: usize,
}

/// Objects in memory, up to a limit of bytes. All of them were in the log when they were read: an index gets no second object, so they
/// never become wrong.
#[derive(Debug)]
pub(crate) struct Cache {
    limit_bytes: usize,
    kept: Mutex<Kept>,
}

impl Cache {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Cache { limit_bytes, kept: Mutex::default() }
    }

    pub(crate) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    pub(crate) fn get(&self, id: LogletId, index: u64) -> Option<Arc<Entries>> {
        lock(&self.kept).objects.get(&(id, index)).cloned()
    }

    /// Adds an object, and forgets the oldest ones beyond the limit.
    pub(crate) fn put(&self, id: LogletId, object: Arc<Entries>) {
        let key = (id, object.index);
        let mut kept = lock(&self.kept);
        let bytes = object.bytes();
        if bytes > self.limit_bytes || kept.objects.insert(key, object).is_some() {
            return;
        }
        kept.order.push_back(key);
        kept.bytes += bytes;
        while kept.bytes > self.limit_bytes
            && let Some(oldest) = kept.order.pop_front()
        {
            if let Some(gone) = kept.objects.remove(&oldest) {
                kept.bytes -= gone.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Stamp;
    use atoll_contract::{Batch, ClientId, Entry, Offset, OpId};

    #[test]
    fn the_oldest_objects_go_first() {
        let object = |index| {
            let op = OpId { client: ClientId(1), seq: index };
            let batches = vec![Batch::of([Entry { op, payload: vec![0; 80].into() }])];
            let stamp = Stamp { writer: 1, nonce: index };
            Arc::new(Entries { index, first: Offset(index), count: 1, stamp, batches })
        };
        let cache = Cache::new(250);
        for index in [1, 2, 2, 3] {
            cache.put(LogletId(1), object(index));
        }
        let there: Vec<u64> = (0..5).filter(|i| cache.get(LogletId(1), *i).is_some()).collect();
        assert_eq!(there, [2, 3]);
        assert!(cache.get(LogletId(2), 2).is_none());
    }
}

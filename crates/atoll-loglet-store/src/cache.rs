//! The newest pieces of logs that a node has read or written, for all of its Loglets of a kind together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use atoll_contract::LogletId;
use atoll_core::sync::lock;

/// A piece of a log, with the number that it has there.
type Key = (LogletId, u64);

#[derive(Debug)]
struct Kept<T> {
    pieces: BTreeMap<Key, (Arc<T>, usize)>,
    /// In the order in which they came.
    order: VecDeque<Key>,
    bytes: usize,
}

/// Pieces in memory, up to a limit of bytes. All of them were in the log when they were read: a number gets no second piece, so they never
/// become wrong.
#[derive(Debug)]
pub struct Cache<T> {
    limit_bytes: usize,
    kept: Mutex<Kept<T>>,
}

impl<T> Cache<T> {
    /// Returns an empty cache.
    pub fn new(limit_bytes: usize) -> Self {
        let kept = Kept { pieces: BTreeMap::new(), order: VecDeque::new(), bytes: 0 };
        Cache { limit_bytes, kept: Mutex::new(kept) }
    }

    /// Returns the limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Returns a piece.
    pub fn get(&self, id: LogletId, number: u64) -> Option<Arc<T>> {
        lock(&self.kept).pieces.get(&(id, number)).map(|(piece, _)| piece.clone())
    }

    /// Adds a piece of this size, and forgets the oldest ones beyond the limit.
    pub fn put(&self, id: LogletId, number: u64, piece: Arc<T>, bytes: usize) {
        let key = (id, number);
        let mut kept = lock(&self.kept);
        if bytes > self.limit_bytes || kept.pieces.contains_key(&key) {
            return;
        }
        kept.pieces.insert(key, (piece, bytes));
        kept.order.push_back(key);
        kept.bytes += bytes;
        while kept.bytes > self.limit_bytes
            && let Some(oldest) = kept.order.pop_front()
        {
            if let Some((_, bytes)) = kept.pieces.remove(&oldest) {
                kept.bytes -= bytes;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pieces_go_first() {
        let cache = Cache::new(250);
        for number in [1, 2, 2, 3] {
            cache.put(LogletId(1), number, Arc::new(number), 100);
        }
        let there: Vec<u64> = (0..5).filter(|n| cache.get(LogletId(1), *n).is_some()).collect();
        assert_eq!(there, [2, 3]);
        assert!(cache.get(LogletId(2), 2).is_none());
    }
}

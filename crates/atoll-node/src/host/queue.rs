//! A bounded queue that several threads take from.

use std::collections::VecDeque;

use atoll_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

struct Waiting<T> {
    items: VecDeque<T>,
    stop: bool,
}

/// A bounded queue with several consumers.
pub(crate) struct Queue<T> {
    limit: usize,
    waiting: Mutex<Waiting<T>>,
    work: Condvar,
}

impl<T> Queue<T> {
    pub(crate) fn new(limit: usize) -> Self {
        let waiting = Mutex::new(Waiting { items: VecDeque::new(), stop: false });
        Queue { limit, waiting, work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many items may wait.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Queues an item for whichever thread is free first.
    ///
    /// # Errors
    /// The queue is full or has been stopped; returns the item.
    pub(crate) fn put(&self, item: T) -> Result<(), T> {
        let mut waiting = self.lock();
        if waiting.stop || waiting.items.len() >= self.limit {
            return Err(item);
        }
        waiting.items.push_back(item);
        drop(waiting);
        self.work.notify_one();
        Ok(())
    }

    /// Returns how many items wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().items.len()
    }

    /// Stops the queue and drops the waiting items.
    pub(crate) fn stop(&self) {
        let left = {
            let mut waiting = self.lock();
            waiting.stop = true;
            std::mem::take(&mut waiting.items)
        };
        self.work.notify_all();
        drop(left);
    }

    /// Waits for the next item. Returns None after [`Queue::stop`].
    pub(crate) fn next(&self) -> Option<T> {
        let mut waiting = self.lock();
        loop {
            if waiting.stop {
                return None;
            }
            if let Some(item) = waiting.items.pop_front() {
                return Some(item);
            }
            waiting = self.work.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

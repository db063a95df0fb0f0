//! How one thread passes work to another, which sleeps when there is none. While the other thread is idle, the first one can also do the
//! work itself.

use std::time::{Duration, Instant};

use atoll_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Work that was passed on and has not been taken yet.
pub(crate) trait Left: Default {
    fn is_empty(&self) -> bool;
}

/// Does the work. One thread at a time uses it; see [`run`] and [`Port::take_over`].
pub(crate) trait Worker {
    type Left: Left;

    /// Returns how long to sleep at most. None means until there is work.
    fn patience(&self) -> Option<Duration>;
    /// Handles the work. It is empty if the patience has run out.
    fn round(&mut self, left: Self::Left);
    /// Called once, after the last work.
    fn end(&mut self);
}

#[derive(Default)]
struct Inside<W> {
    left: W,
    stop: bool,
}

/// Passes work to one thread. See the module documentation.
#[derive(Default)]
pub(crate) struct Port<W> {
    inside: Mutex<Inside<W>>,
    bell: Condvar,
}

impl<W: Left> Port<W> {
    fn lock(&self) -> MutexGuard<'_, Inside<W>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work and wakes the other thread.
    pub(crate) fn leave(&self, how: impl FnOnce(&mut W)) {
        how(&mut self.lock().left);
        self.bell.notify_one();
    }

    /// Makes the other thread stop after the work that was added until now.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.bell.notify_one();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().stop
    }

    /// Whether no work waits and the port is not stopping.
    fn is_idle(&self) -> bool {
        let inside = self.lock();
        inside.left.is_empty() && !inside.stop
    }

    /// Returns the worker if the other thread is idle. The caller can then do work at once instead of passing it on.
    pub(crate) fn take_over<'a, K: Worker<Left = W>>(
        &self,
        worker: &'a Mutex<K>,
    ) -> Option<MutexGuard<'a, K>> {
        let worker = worker.try_lock().ok()?;
        self.is_idle().then_some(worker)
    }

    /// Waits at most `patience` for work. Returns all work that waits, and whether to stop.
    fn take(&self, patience: Option<Duration>) -> (W, bool) {
        let mut inside = self.lock();
        let until = patience.map(|p| Instant::now() + p);
        while inside.left.is_empty() && !inside.stop {
            inside = match until {
                None => self.bell.wait(inside).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.bell.wait_timeout(inside, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        (std::mem::take(&mut inside.left), inside.stop)
    }
}

/// Runs the other thread until it is stopped.
pub(crate) fn run<K: Worker>(worker: &Mutex<K>, port: &Port<K::Left>) {
    let lock = || worker.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let patience = lock().patience();
        let (left, stop) = port.take(patience);
        let mut worker = lock();
        worker.round(left);
        if stop {
            return worker.end();
        }
    }
}

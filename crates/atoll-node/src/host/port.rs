//! How one thread passes work to another, which sleeps when there is none. While the other thread is idle, the first one can also do the
//! work itself.

use std::time::{Duration, Instant};

use atoll_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What was left and is not taken yet.
pub(crate) trait Left: Default {
    fn is_empty(&self) -> bool;
}

/// Does the work. One thread at a time has it; see [`run`] and [`Port::take_over`].
pub(crate) trait Worker {
    type Left: Left;

    /// How long to sleep at most; None: until there is work.
    fn patience(&self) -> Option<Duration>;
    /// Handles what was left, which is nothing when the patience has run out.
    fn round(&mut self, left: Self::Left);
    /// Called when there is no more work.
    fn end(&mut self);
}

#[derive(Default)]
struct Inside<W> {
    left: W,
    stop: bool,
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct Port<W> {
    inside: Mutex<Inside<W>>,
    bell: Condvar,
}

impl<W: Left> Port<W> {
    fn lock(&self) -> MutexGuard<'_, Inside<W>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves work in addition to what is left already.
    pub(crate) fn leave(&self, how: impl FnOnce(&mut W)) {
        how(&mut self.lock().left);
        self.bell.notify_one();
    }

    /// Stops the other thread: it does what was left until now, and nothing after that.
    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.bell.notify_one();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().stop
    }

    /// Nothing was left that is not taken.
    fn is_idle(&self) -> bool {
        let inside = self.lock();
        inside.left.is_empty() && !inside.stop
    }

    /// The worker, if the other thread has nothing to do. The caller may use it to do work at once instead of leaving it here.
    pub(crate) fn take_over<'a, K: Worker<Left = W>>(
        &self,
        worker: &'a Mutex<K>,
    ) -> Option<MutexGuard<'a, K>> {
        let worker = worker.try_lock().ok()?;
        self.is_idle().then_some(worker)
    }

    /// All work that there is, after at most `patience`; and whether to stop.
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

/// What the other thread does until it is stopped.
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

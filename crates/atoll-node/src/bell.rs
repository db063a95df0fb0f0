//! A bell: whoever waits is woken when it rings, and a ring that comes first is not lost.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug, Default)]
struct Inner {
    rings: u64,
    waiting: Vec<Waker>,
}

/// Cheap to clone; all clones are one bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Arc<Mutex<Inner>>);

impl Bell {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes everybody who waits. Wakers are called in the order in which they came.
    pub fn ring(&self) {
        let waiting = {
            let mut inner = self.lock();
            inner.rings += 1;
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// How often it rang so far.
    pub fn rings(&self) -> u64 {
        self.lock().rings
    }

    /// Ready once it has rung more than `seen` times; returns the new count.
    pub fn after(&self, seen: u64) -> Rung {
        Rung { bell: self.clone(), seen }
    }
}

/// See [`Bell::after`].
#[derive(Debug)]
pub struct Rung {
    bell: Bell,
    seen: u64,
}

impl Future for Rung {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u64> {
        let mut inner = self.bell.lock();
        if inner.rings > self.seen {
            return Poll::Ready(inner.rings);
        }
        if !inner.waiting.iter().any(|w| w.will_wake(cx.waker())) {
            inner.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

//! A value that another party completes: one writer, one reader, no executor needed on either side.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The completer was dropped without an answer: whether the operation happened is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operation was abandoned; whether it happened is unknown")]
pub struct Abandoned;

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    /// Whether the completer has completed the ticket or was dropped.
    closed: bool,
}

/// The waiting end. Dropping it does not stop the operation (contracts X8).
#[derive(Debug)]
#[must_use = "the outcome is lost if nobody waits for it"]
pub struct Ticket<T>(Arc<Mutex<Slot<T>>>);

/// The completing end. If it is dropped without completing, the ticket returns [`Abandoned`].
#[derive(Debug)]
pub struct Completer<T>(Arc<Mutex<Slot<T>>>);

/// Returns a connected pair.
pub fn ticket<T>() -> (Completer<T>, Ticket<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, closed: false }));
    (Completer(slot.clone()), Ticket(slot))
}

impl<T> Ticket<T> {
    /// Returns a ticket that is already complete.
    pub fn ready(value: T) -> Self {
        Ticket(Arc::new(Mutex::new(Slot { value: Some(value), waker: None, closed: true })))
    }

    /// Takes the outcome if there is one: the value, or [`Abandoned`] if there will never be one.
    pub fn try_take(&mut self) -> Option<Result<T, Abandoned>> {
        let mut slot = lock(&self.0);
        match slot.value.take() {
            Some(value) => Some(Ok(value)),
            None if slot.closed => Some(Err(Abandoned)),
            None => None,
        }
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T, Abandoned>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = lock(&self.0);
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Ok(value));
        }
        if slot.closed {
            return Poll::Ready(Err(Abandoned));
        }
        match &mut slot.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => slot.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Completer<T> {
    /// Passes the value to the ticket and wakes the waiter.
    pub fn complete(self, value: T) {
        let waker = {
            let mut slot = lock(&self.0);
            slot.value = Some(value);
            slot.closed = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// True if the ticket was dropped.
    pub fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = lock(&self.0);
            slot.closed = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

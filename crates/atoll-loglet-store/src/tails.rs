//! What a handle knows about the tail without asking a server, and the local procedures that wait for the tail to move.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Poll, Waker};

use atoll_contract::{Offset, SealedConfig, Tail};
use atoll_core::sync::lock;

#[derive(Debug, Default)]
struct Known {
    /// The highest readable tail. It comes only from acknowledgements, open tails and unsealed servers: the known tail of a sealed server
    /// may be above the stop (native-T3).
    tail: Offset,
    /// The sealed tail, if a check has found one.
    sealed: Option<Offset>,
    /// At most one per waiting procedure.
    wakers: Vec<Waker>,
}

/// The tails that a handle knows; see the module documentation.
#[derive(Debug, Default)]
pub struct Tails(Mutex<Known>);

impl Tails {
    /// Raises the known tail and wakes the waiters. The tail must be readable, and not the known tail of a sealed server.
    pub fn learn(&self, tail: Offset) {
        let wakers = {
            let mut known = lock(&self.0);
            if tail <= known.tail {
                return;
            }
            known.tail = tail;
            std::mem::take(&mut known.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Records that a check found the Loglet sealed, and wakes the waiters.
    pub fn learn_sealed(&self, tail: Offset) {
        let wakers = {
            let mut known = lock(&self.0);
            known.sealed = known.sealed.max(Some(tail));
            std::mem::take(&mut known.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns the highest readable tail that this handle knows.
    pub fn tail(&self) -> Offset {
        lock(&self.0).tail
    }

    /// Returns the sealed tail, if a check has found one.
    pub fn sealed(&self) -> Option<Offset> {
        lock(&self.0).sealed
    }

    /// Returns the sealed tail if there is one, otherwise an open tail if it is above `above`.
    pub fn above(&self, above: Offset) -> Option<Tail> {
        let known = lock(&self.0);
        match known.sealed {
            Some(at) => Some(Tail { at, sealed: Some(SealedConfig::new()) }),
            None if known.tail > above => Some(Tail { at: known.tail, sealed: None }),
            None => None,
        }
    }

    /// Waits for [`Tails::above`] or for the output of `other`, whichever comes first.
    pub async fn or<F: Future + Unpin>(&self, above: Offset, mut other: F) -> Result<Tail, F::Output> {
        std::future::poll_fn(|cx| {
            if let Some(tail) = self.above(above) {
                return Poll::Ready(Ok(tail));
            }
            let polled = Pin::new(&mut other).poll(cx);
            if polled.is_pending() {
                let mut known = lock(&self.0);
                known.wakers.retain(|w| !w.will_wake(cx.waker()));
                known.wakers.push(cx.waker().clone());
            }
            polled.map(Err)
        })
        .await
    }
}

//! A race of two futures, and rounds of an operation that many callers share.

use std::future::Future;
use std::sync::Mutex;
use std::task::Poll;

use atoll_core::sync::lock;
use atoll_core::testing::mutant;
use atoll_core::{Completer, Ticket, ticket};

use crate::mutants;

/// Which of two futures was ready first.
pub(crate) enum First<A, B> {
    A(A),
    B(B),
}

/// Waits for the first of two futures and returns its output. If both are ready, `a` wins.
pub(crate) async fn race<A: Future, B: Future>(a: A, b: B) -> First<A::Output, B::Output> {
    let mut a = std::pin::pin!(a);
    let mut b = std::pin::pin!(b);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(out) = a.as_mut().poll(cx) {
            return Poll::Ready(First::A(out));
        }
        b.as_mut().poll(cx).map(First::B)
    })
    .await
}

#[derive(Debug)]
struct Shares<T> {
    next: Vec<Completer<T>>,
    current: Vec<Completer<T>>,
    running: bool,
}

/// An operation that many callers share. A caller that joins while a round is in progress gets the next round, never the current one,
/// whose answer may be older than the question (vlog-V14). Bounded by the waiting callers.
#[derive(Debug)]
pub(crate) struct Rounds<T>(Mutex<Shares<T>>);

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Rounds(Mutex::new(Shares { next: Vec::new(), current: Vec::new(), running: false }))
    }
}

impl<T: Clone> Rounds<T> {
    /// Joins the next round. If the flag is true, the caller must run rounds until [`Rounds::begin`] returns false.
    pub(crate) fn join(&self) -> (Ticket<T>, bool) {
        let (done, wait) = ticket();
        let mut s = lock(&self.0);
        if mutant(mutants::VLOG_V14) && !s.current.is_empty() {
            s.current.push(done);
            return (wait, false);
        }
        s.next.push(done);
        let start = !s.running;
        s.running = true;
        (wait, start)
    }

    /// Starts a round for all waiting callers. Returns false if there is none.
    pub(crate) fn begin(&self) -> bool {
        let mut s = lock(&self.0);
        s.current = std::mem::take(&mut s.next);
        s.current.retain(|c| !c.is_abandoned());
        s.running = !s.current.is_empty();
        s.running
    }

    /// Answers all callers of the current round.
    pub(crate) fn finish(&self, result: &T) {
        let current = std::mem::take(&mut lock(&self.0).current);
        for c in current {
            c.complete(result.clone());
        }
    }
}

//! Small tools of the procedures: a bell that wakes everybody who waits for a change, a race of two futures, and rounds
//! that many callers share.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use atoll_core::sync::lock;
use atoll_core::testing::{Mutant, mutant};
use atoll_core::{Completer, Ticket, ticket};

#[derive(Debug, Default)]
struct Ringing {
    rings: u64,
    next: u64,
    /// Bounded by the futures that wait; each leaves on drop.
    wakers: BTreeMap<u64, Waker>,
}

/// Rung at every change. Whoever waits notes the count before it looks, so no change is missed.
#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<Ringing>);

impl Bell {
    pub(crate) fn rings(&self) -> u64 {
        lock(&self.0).rings
    }

    pub(crate) fn ring(&self) {
        let wakers = {
            let mut state = lock(&self.0);
            state.rings += 1;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_values().for_each(Waker::wake);
    }

    /// Ready once it was rung more often than `seen`.
    pub(crate) fn after(&self, seen: u64) -> Rung<'_> {
        Rung { bell: self, seen, key: None }
    }
}

/// See [`Bell::after`].
pub(crate) struct Rung<'a> {
    bell: &'a Bell,
    seen: u64,
    key: Option<u64>,
}

impl Future for Rung<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let bell = self.bell;
        let mut state = lock(&bell.0);
        if state.rings > self.seen {
            return Poll::Ready(());
        }
        let key = *self.key.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        state.wakers.insert(key, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Rung<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let waker = lock(&self.bell.0).wakers.remove(&key);
            drop(waker);
        }
    }
}

/// Which of two futures was ready first.
pub(crate) enum First<A, B> {
    A(A),
    B(B),
}

/// The first of two futures; `a` wins when both are ready.
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

/// An operation that many callers share. Who asks while one is under way gets the next one, never that one: its answer
/// may be older than the question (V14). Bounded by the callers that wait.
#[derive(Debug)]
pub(crate) struct Rounds<T>(Mutex<Shares<T>>);

impl<T> Default for Rounds<T> {
    fn default() -> Self {
        Rounds(Mutex::new(Shares { next: Vec::new(), current: Vec::new(), running: false }))
    }
}

impl<T: Clone> Rounds<T> {
    /// Joins the next round. The flag tells the caller to run rounds until [`Rounds::begin`] says that nobody waits.
    pub(crate) fn join(&self) -> (Ticket<T>, bool) {
        let (done, wait) = ticket();
        let mut s = lock(&self.0);
        if mutant(Mutant::VlogV14) && !s.current.is_empty() {
            s.current.push(done);
            return (wait, false);
        }
        s.next.push(done);
        let start = !s.running;
        s.running = true;
        (wait, start)
    }

    /// Starts a round for all who wait; false if nobody does.
    pub(crate) fn begin(&self) -> bool {
        let mut s = lock(&self.0);
        s.current = std::mem::take(&mut s.next);
        s.current.retain(|c| !c.is_abandoned());
        s.running = !s.current.is_empty();
        s.running
    }

    /// Answers the round.
    pub(crate) fn finish(&self, result: &T) {
        let current = std::mem::take(&mut lock(&self.0).current);
        for c in current {
            c.complete(result.clone());
        }
    }
}

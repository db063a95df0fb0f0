//! TLS handshakes take a noticeable time of a processor, up to a millisecond each. If thousands of clients connect at once, all of their
//! handshakes are ready, and whoever else uses the thread would wait for all of them.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Lets one handshake compute at a time, and all other tasks that are ready have their turn before the next one does. A handshake that
/// waits for its peer holds nothing back. Clones belong together.
#[derive(Clone, Debug)]
pub struct Handshakes(Arc<Semaphore>);

impl Default for Handshakes {
    fn default() -> Self {
        Handshakes(Arc::new(Semaphore::new(1)))
    }
}

type Turn = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

impl Handshakes {
    /// Completes with the handshake. Runs on the current runtime.
    pub async fn run<F: Future>(&self, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        let mut turn: Option<Turn> = None;
        poll_fn(|cx| {
            let waiting = turn.get_or_insert_with(|| {
                let all = self.0.clone();
                // The semaphore is never closed.
                Box::pin(async move { all.acquire_owned().await.ok() })
            });
            let taken = ready!(waiting.as_mut().poll(cx));
            turn = None;
            let done = handshake.as_mut().poll(cx);
            if let Some(taken) = taken {
                tokio::spawn(give_back(taken));
            }
            done
        })
        .await
    }
}

/// Ends a turn once every other task that is ready has been polled.
async fn give_back(turn: OwnedSemaphorePermit) {
    tokio::task::yield_now().await;
    drop(turn);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    const CLIENTS: usize = 100;

    /// Runs handshakes that are all ready; returns the most that were polled between two turns of another task.
    async fn most_between_turns(together: Option<Handshakes>) -> usize {
        let polled = Arc::new(AtomicUsize::new(0));
        let handshakes: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (polled, together) = (polled.clone(), together.clone());
                let mut left = 3;
                let handshake = poll_fn(move |cx| {
                    polled.fetch_add(1, Ordering::Relaxed);
                    left -= 1;
                    if left == 0 {
                        return Poll::Ready(());
                    }
                    // The peer has already answered.
                    cx.waker().wake_by_ref();
                    Poll::Pending
                });
                tokio::spawn(async move {
                    match together {
                        Some(together) => together.run(handshake).await,
                        None => handshake.await,
                    }
                })
            })
            .collect();
        let (mut most, mut before) = (0, 0);
        while !handshakes.iter().all(tokio::task::JoinHandle::is_finished) {
            tokio::task::yield_now().await;
            let now = polled.load(Ordering::Relaxed);
            most = most.max(now - before);
            before = now;
        }
        assert_eq!(before, 3 * CLIENTS);
        most
    }

    #[test]
    fn others_have_their_turn_between_two_handshakes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let most = runtime.block_on(most_between_turns(Some(Handshakes::default())));
        assert!(most <= 2, "{most} handshakes were polled between two turns of another task");
        let most = runtime.block_on(most_between_turns(None));
        assert!(most >= CLIENTS / 2, "{most}: this test shows nothing any more");
    }
}

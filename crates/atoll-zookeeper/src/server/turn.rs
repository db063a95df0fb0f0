//! How much a connection may do before the other connections of its thread get their turn. A turn is limited in requests, bytes and
//! time, because one request may cost a thousand times as much as another (contracts X25).

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;

/// Most requests in a turn.
const REQUESTS: usize = 512;
/// Most bytes of requests and replies in a turn.
const BYTES: usize = 512 * 1024;
/// Longest turn, approximately.
const FOR: Duration = Duration::from_millis(2);
/// Approximate duration of the turns of all busy connections together. The node polls its sockets once in that time.
const ROUND: Duration = Duration::from_millis(4);
/// Shortest turn, approximately, however many connections are busy. A lower value costs more turns.
const AT_LEAST: Duration = Duration::from_micros(100);
/// Requests between two readings of the clock. A reading at each request would be noticeable.
const LOOK_EVERY: usize = 8;
/// The clock is also read after this many bytes.
const LOOK_EVERY_BYTES: usize = 64 * 1024;

/// The number of busy connections: those whose last turn had to end although they had more to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd(Arc<AtomicUsize>);

impl Crowd {
    /// Adds a connection, which is not busy yet.
    pub(crate) fn join(&self) -> Member {
        Member { crowd: self.clone(), is_busy: false }
    }

    /// Returns how long a turn may be, so that all turns together take no longer than a round.
    fn share(&self) -> Duration {
        let busy = u32::try_from(self.0.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (ROUND / busy.max(1)).clamp(AT_LEAST, FOR)
    }
}

/// A connection among the others.
#[derive(Debug)]
pub(crate) struct Member {
    crowd: Crowd,
    is_busy: bool,
}

impl Member {
    /// Begins a turn.
    pub(crate) fn begin(&self) -> Turn {
        Turn::begin(self.crowd.share())
    }

    /// Ends a turn.
    pub(crate) fn end(&mut self, turn: &Turn) {
        self.set_busy(turn.is_over());
    }

    fn set_busy(&mut self, is_busy: bool) {
        if std::mem::replace(&mut self.is_busy, is_busy) != is_busy {
            match is_busy {
                true => self.crowd.0.fetch_add(1, Ordering::Relaxed),
                false => self.crowd.0.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.set_busy(false);
    }
}

/// One turn.
#[derive(Debug)]
pub(crate) struct Turn {
    began: Instant,
    /// Its longest duration.
    most: Duration,
    requests: usize,
    bytes: usize,
    /// The numbers of requests and bytes at which the clock is read next.
    look_at: (usize, usize),
    over: bool,
}

impl Turn {
    fn begin(most: Duration) -> Turn {
        let look_at = (LOOK_EVERY, LOOK_EVERY_BYTES);
        Turn { began: Instant::now(), most, requests: 0, bytes: 0, look_at, over: false }
    }

    /// Records a request that was handled. `bytes` is the length of the request plus that of its reply.
    pub(crate) fn did(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
        self.over |= self.requests >= REQUESTS || self.bytes >= BYTES;
        let (requests, look_bytes) = self.look_at;
        if self.requests >= requests || self.bytes >= look_bytes {
            self.look_at = (self.requests + LOOK_EVERY, self.bytes + LOOK_EVERY_BYTES);
            self.over |= self.began.elapsed() >= self.most;
        }
    }

    /// Returns whether the turn must end.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

/// Polls the current task again once every other ready task has had its turn and the sockets were polled. If a task only woke
/// itself, it would go to the end of the queue. The runtime polls the sockets only when the queue is empty or after dozens of
/// tasks, so a few busy connections would keep the thread from reading any socket for dozens of turns.
pub(crate) fn poll_after_the_others(cx: &mut Context<'_>) {
    if pin!(tokio::task::yield_now()).poll(cx) == Poll::Ready(()) {
        cx.waker().wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs three tasks that always have more to do. Returns the number of turns that they took before another task received from a
    /// socket.
    fn turns_until_a_socket_is_heard(again: fn(&mut Context<'_>)) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (mut near, mut far) = tokio::net::UnixStream::pair().unwrap();
            let heard = tokio::spawn(async move { far.read_u8().await.unwrap() });
            // The socket is now registered, and has no data yet.
            tokio::task::yield_now().await;
            let turns = Arc::new(AtomicUsize::new(0));
            let busy = |turns: Arc<AtomicUsize>| {
                std::future::poll_fn::<(), _>(move |cx| {
                    turns.fetch_add(1, Ordering::Relaxed);
                    again(cx);
                    Poll::Pending
                })
            };
            let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(busy(turns.clone()))).collect();
            near.write_u8(7).await.unwrap();
            assert_eq!(heard.await.unwrap(), 7);
            tasks.iter().for_each(tokio::task::JoinHandle::abort);
            turns.load(Ordering::Relaxed)
        })
    }

    #[test]
    fn sockets_are_heard_between_two_turns_of_busy_connections() {
        let turns = turns_until_a_socket_is_heard(poll_after_the_others);
        assert!(turns <= 9, "three connections took {turns} turns before a socket was heard");
        let turns = turns_until_a_socket_is_heard(|cx| cx.waker().wake_by_ref());
        assert!(
            turns > 30,
            "tasks that wake themselves take {turns} turns: this test shows nothing any more"
        );
    }

    #[test]
    fn the_more_connections_are_busy_the_shorter_are_their_turns() {
        let crowd = Crowd::default();
        let mut members: Vec<Member> = (0..100).map(|_| crowd.join()).collect();
        assert_eq!(crowd.share(), FOR, "a connection that has done nothing is not busy");
        let over = {
            let mut turn = members[0].begin();
            turn.did(BYTES);
            turn
        };
        for member in &mut members {
            member.end(&over);
            member.end(&over);
        }
        assert_eq!(crowd.share(), AT_LEAST);
        for member in &mut members[..80] {
            let idle = member.begin();
            member.end(&idle);
        }
        assert_eq!(crowd.share(), ROUND / 20);
        drop(members);
        assert_eq!(crowd.share(), FOR);
    }

    #[test]
    fn a_turn_ends_by_requests_and_by_bytes() {
        let ends_after = |bytes: usize| {
            let mut turn = Turn::begin(Duration::MAX);
            (1..).find(|_| {
                turn.did(bytes);
                turn.is_over()
            })
        };
        let of_many_bytes = ends_after(1024 * 1024);
        assert_eq!(of_many_bytes, Some(1));
        assert!(ends_after(1).is_some_and(|n| n <= REQUESTS));
        assert!(ends_after(BYTES / 4).is_some_and(|n| n <= 4));
    }
}

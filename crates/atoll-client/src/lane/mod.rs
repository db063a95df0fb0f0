//! The lane of a log: all appends of this client to it, in order (contracts X15).
//!
//! Callers add records to the lane and wait. While a stream to a node is open, all waiting records are sent as one message, without
//! delay. Acknowledgements arrive in order. If the node fails, everything without an outcome is sent again to the next node in the
//! same order, under the same names, and with the floor from which the log is searched for an earlier attempt (X16, X24). A record
//! leaves the lane when it is acknowledged, when it fails permanently, or at its deadline.

mod driver;
mod outbox;
mod queue;

use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use atoll_pipeline::{Bounds, Place, WaitList};
use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::connections::Connections;
use crate::error::{Error, Failure};
use crate::proto::Reason;
use queue::Queue;

/// The least room that a record takes in a lane's window.
const RECORD_BYTES: usize = 1024;

/// The outcome of one record: its position or an error.
pub(crate) type Settled = Result<u64, Error>;

/// The callers' handle. Dropping it ends the lane once its records are settled.
#[derive(Debug)]
pub(crate) struct Lane {
    shared: Arc<Shared>,
    operation_timeout: Duration,
}

/// The state that callers, driver and outbox share.
#[derive(Debug)]
struct Shared {
    log: String,
    client: u64,
    queue: Mutex<Queue>,
    /// The most bytes of unsettled records.
    window_bytes: usize,
    /// Callers that found the window of unsettled records full.
    callers: WaitList,
    /// Notifies the driver that a record waits while no stream is open, or that the lane is closing.
    bell: Notify,
}

impl Shared {
    /// Changes the queue. Then, outside its lock, notifies callers, releases room, and wakes the stream.
    fn update<R>(&self, change: impl FnOnce(&mut Queue) -> R) -> R {
        let (result, after) = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let result = change(&mut queue);
            (result, queue.take_aftermath())
        };
        for (caller, outcome) in after.told {
            // A caller that has gone away does not need the outcome.
            let _ = caller.send(outcome);
        }
        if after.settled.items > 0
            && let Some(free_bytes) = after.free_bytes
        {
            self.callers.admit(free_bytes);
        }
        if let Some(waker) = after.outbox {
            waker.wake();
        }
        result
    }
}

impl Shared {
    /// Adds a record at the end of the lane, if there is room. Returns whether it did, or there is no record.
    fn enter(&self, record: &mut Option<(Bytes, oneshot::Sender<Settled>)>, deadline: Instant) -> bool {
        let Some(bytes) = window_bytes(record) else { return true };
        let wake = self.update(|queue| {
            if !queue.has_room(bytes) {
                return None;
            }
            let (payload, to) = record.take()?;
            Some(queue.push(payload, bytes, deadline, to))
        });
        if wake == Some(true) {
            self.bell.notify_one();
        }
        wake.is_some()
    }

    /// Waits for room, after all callers that wait already, and then adds the record.
    async fn when_entered(&self, record: &mut Option<(Bytes, oneshot::Sender<Settled>)>, deadline: Instant) {
        let bytes = window_bytes(record).unwrap_or_default();
        let mut waiter = Waiter { shared: self, place: self.callers.place(bytes.min(self.window_bytes)) };
        poll_fn(|cx| {
            waiter.place.wait(cx);
            match waiter.place.is_first() && self.enter(record, deadline) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }

    /// Wakes the callers for which there is room now.
    fn admit(&self) {
        if !self.callers.is_empty()
            && let Some(free_bytes) = self.update(|queue| queue.free_bytes())
        {
            self.callers.admit(free_bytes);
        }
    }
}

/// Returns the room that a record takes in the window.
fn window_bytes(record: &Option<(Bytes, oneshot::Sender<Settled>)>) -> Option<usize> {
    record.as_ref().map(|(payload, _)| payload.len().max(RECORD_BYTES))
}

impl Lane {
    /// Starts a lane and its driver on the current tokio runtime.
    pub(crate) fn start(log: &str, connections: Arc<Connections>) -> Self {
        let operation_timeout = connections.options.operation_timeout;
        let shared = Arc::new(Shared {
            log: log.to_owned(),
            client: random_client(),
            queue: Mutex::new(Queue::new(Bounds {
                items: usize::MAX,
                bytes: connections.options.unsettled_bytes,
            })),
            window_bytes: connections.options.unsettled_bytes,
            callers: WaitList::default(),
            bell: Notify::new(),
        });
        tokio::spawn(driver::drive(shared.clone(), connections));
        Lane { shared, operation_timeout }
    }

    /// Adds a record at the end of the lane. Waits for room, at most until the record's deadline; without room, the record did not
    /// happen.
    pub(crate) async fn submit(&self, payload: Bytes) -> Result<oneshot::Receiver<Settled>, Error> {
        let deadline = Instant::now() + self.operation_timeout;
        let (to, outcome) = oneshot::channel();
        let mut record = Some((payload, to));
        // Nobody overtakes the callers that wait, so records enter the lane in the order of the calls.
        let entered = self.shared.callers.is_empty() && self.shared.enter(&mut record, deadline);
        if !entered && timeout_at(deadline, self.shared.when_entered(&mut record, deadline)).await.is_err() {
            return Err(Error::DidNotHappen(Failure::new(
                Reason::Busy,
                "too many records of this client wait for acknowledgement",
                "see `atoll status`",
            )));
        }
        Ok(outcome)
    }
}

/// A caller's place among those that wait for room.
struct Waiter<'a> {
    shared: &'a Shared,
    place: Place,
}

/// A caller that leaves, whether it used the room or not, wakes the next one.
impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.place.leave();
        self.shared.admit();
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.update(Queue::close);
        self.shared.bell.notify_one();
    }
}

/// Returns a random client id, which no other client should have. Its source is the random seed of the standard library's hash
/// maps.
pub(crate) fn random_client() -> u64 {
    let salt = (std::process::id(), std::time::SystemTime::now());
    RandomState::new().hash_one(salt).max(1)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Waker};

    use super::*;
    use crate::proto::Run;
    use crate::proto::append_stream_reply::Outcome;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl std::task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the state of a lane with room for so many small records.
    fn shared(records: usize) -> Shared {
        let window_bytes = records * RECORD_BYTES;
        let bounds = Bounds { items: usize::MAX, bytes: window_bytes };
        let queue = Mutex::new(Queue::new(bounds));
        let (callers, bell) = (WaitList::default(), Notify::new());
        Shared { log: "log".to_owned(), client: 1, queue, window_bytes, callers, bell }
    }

    fn record(text: &'static str) -> Option<(Bytes, oneshot::Sender<Settled>)> {
        Some((Bytes::from_static(text.as_bytes()), oneshot::channel().0))
    }

    /// Sends all waiting records, and returns their payloads.
    fn send(shared: &Shared, generation: u64) -> Vec<Bytes> {
        let message = shared.update(|queue| queue.next_message(generation, Instant::now(), Waker::noop()));
        message.ok().flatten().map(|records| records.payloads).unwrap_or_default()
    }

    #[test]
    fn callers_that_wait_for_room_enter_in_order() {
        let (shared, deadline) = (shared(1), Instant::now());
        let generation = shared.update(|queue| {
            let generation = queue.begin_stream(deadline);
            queue.opened(0);
            generation
        });
        let settle = || {
            let runs = vec![Run { first: 0, count: 1 }];
            shared.update(|queue| queue.settle(Outcome { runs, failed: None }, deadline))
        };
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(shared.enter(&mut record("first"), deadline));
        assert!(!shared.enter(&mut record("no room"), deadline));
        let (mut second, mut left, mut third) = (record("second"), record("left"), record("third"));
        let mut second = Box::pin(shared.when_entered(&mut second, deadline));
        let mut left = Box::pin(shared.when_entered(&mut left, deadline));
        let mut third = pin!(shared.when_entered(&mut third, deadline));
        assert!(second.as_mut().poll(cx).is_pending() && left.as_mut().poll(cx).is_pending());
        assert!(third.as_mut().poll(cx).is_pending());
        assert_eq!(send(&shared, generation), ["first"]);
        settle();
        assert!(third.as_mut().poll(cx).is_pending(), "it does not overtake the second");
        assert!(second.as_mut().poll(cx).is_ready());
        assert_eq!(send(&shared, generation), ["second"]);
        settle();
        drop(left);
        assert!(third.as_mut().poll(cx).is_ready(), "who leaves holds up nobody");
        assert_eq!(send(&shared, generation), ["third"]);
        assert!(shared.callers.is_empty());
    }

    #[test]
    fn room_wakes_who_waits_for_it() {
        let (shared, deadline) = (shared(1), Instant::now());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = &mut Context::from_waker(&waker);
        assert!(shared.enter(&mut record("first"), deadline));
        let mut second = record("second");
        let mut second = pin!(shared.when_entered(&mut second, deadline));
        assert!(second.as_mut().poll(cx).is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        let why = Failure::new(Reason::Unavailable, "late", "");
        shared.update(|queue| queue.refuse(crate::error::Outcome::No, &why));
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(second.as_mut().poll(cx).is_ready());
    }
}

//! The lane of a log: all appends of this client to it, in order (contracts X15).
//!
//! Callers add records to the lane and wait. While a stream to a node is open, all waiting records are sent as one message, without
//! delay. Acknowledgements arrive in order. If the node fails, everything without an outcome is sent again to the next node in the
//! same order, under the same names, and with the floor from which the log is searched for an earlier attempt (X16, X24). A record
//! leaves the lane when it is acknowledged, when it fails permanently, or at its deadline.

mod driver;
mod outbox;
mod queue;

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::connections::Connections;
use crate::error::{Error, Failure};
use crate::proto::Reason;
use queue::Queue;

/// The unit in which a lane's room is counted. Each record takes at least one unit.
const ROOM_UNIT_BYTES: usize = 1024;

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
    /// Room for unsettled records, in units of [`ROOM_UNIT_BYTES`].
    room: Semaphore,
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
        if after.units > 0 {
            self.room.add_permits(after.units);
        }
        if let Some(waker) = after.outbox {
            waker.wake();
        }
        result
    }
}

impl Lane {
    /// Starts a lane and its driver on the current tokio runtime.
    pub(crate) fn start(log: &str, connections: Arc<Connections>) -> Self {
        let operation_timeout = connections.options.operation_timeout;
        let shared = Arc::new(Shared {
            log: log.to_owned(),
            client: random_client(),
            queue: Mutex::new(Queue::default()),
            room: Semaphore::new(connections.options.unsettled_bytes / ROOM_UNIT_BYTES),
            bell: Notify::new(),
        });
        tokio::spawn(driver::drive(shared.clone(), connections));
        Lane { shared, operation_timeout }
    }

    /// Adds a record at the end of the lane. Waits for room, at most until the record's deadline; without room, the record did not
    /// happen.
    pub(crate) async fn submit(&self, payload: Bytes) -> Result<oneshot::Receiver<Settled>, Error> {
        let deadline = Instant::now() + self.operation_timeout;
        let units = 1 + payload.len() / ROOM_UNIT_BYTES;
        let n = u32::try_from(units).expect("records are below 1 MB");
        let permit = match self.shared.room.try_acquire_many(n) {
            Ok(permit) => permit,
            Err(_) => match timeout_at(deadline, self.shared.room.acquire_many(n)).await {
                Ok(Ok(permit)) => permit,
                _ => {
                    return Err(Error::DidNotHappen(Failure::new(
                        Reason::Busy,
                        "too many records of this client wait for acknowledgement",
                        "see `atoll status`",
                    )));
                }
            },
        };
        permit.forget();
        let (to, outcome) = oneshot::channel();
        if self.shared.update(|queue| queue.push(payload, units, deadline, to)) {
            self.shared.bell.notify_one();
        }
        Ok(outcome)
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

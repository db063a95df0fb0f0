//! Clients of one Loglet, on modelled nodes: each has a number of appends under way, and what they take is noted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::{Batch, ClientId, Entry, Loglet, OpId};
use atoll_core::{Env, Tick};
use bytes::Bytes;

use crate::latency::Latencies;

/// How long a client pauses after a failure.
const PAUSE: Duration = Duration::from_millis(1);

/// Locks what clients share.
pub fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was acknowledged, and how long it took.
pub struct Tally {
    /// The operations since the measurement began.
    pub latencies: Latencies,
    from: Tick,
    is_over: bool,
}

impl Tally {
    /// Returns a tally of what ends at or after `from`.
    pub fn new(from: Tick) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Tally { latencies: Latencies::new(), from, is_over: false }))
    }

    /// Notes an operation, unless it ended before the measurement. Returns whether the client is to continue.
    pub fn note(&mut self, began: Tick, ended: Tick, succeeded: bool) -> bool {
        if ended >= self.from {
            match succeeded {
                true => self.latencies.add(ended.since(began)),
                false => self.latencies.errors += 1,
            }
        }
        !self.is_over
    }

    /// Ends the measurement and the clients. Returns what was noted since the measurement began.
    pub fn end(&mut self) -> Latencies {
        self.is_over = true;
        std::mem::replace(&mut self.latencies, Latencies::new())
    }
}

/// One of the appends that a client has under way.
pub struct Worker {
    /// The client.
    pub client: ClientId,
    /// The number of its first record.
    pub first: u64,
    /// From one record to the next.
    pub step: u64,
    /// The content of each record.
    pub payload: Bytes,
    /// How long it waits before it starts.
    pub starts_after: Duration,
}

/// Appends one record after the other, at most this many, until the run ends.
pub async fn append(
    env: Env,
    loglet: Arc<dyn Loglet>,
    worker: Worker,
    tally: Arc<Mutex<Tally>>,
    at_most: u64,
) {
    env.sleep(worker.starts_after).await;
    for n in 0..at_most {
        let op = OpId { client: worker.client, seq: worker.first + n * worker.step };
        let began = env.now();
        let payload = worker.payload.clone();
        let placed = loglet.append(Batch::of([Entry { op, payload }])).await;
        let appended = matches!(placed, Ok(Ok(_)));
        if !locked(&tally).note(began, env.now(), appended) {
            return;
        }
        if !appended {
            env.sleep(PAUSE).await;
        }
    }
}

//! Clients of one Loglet, on modelled nodes and on real ones: each has a number of appends or reads under way, and what they take is noted.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_contract::{Batch, ClientId, Entry, Loglet, Offset, OpId, ReadFrom};
use atoll_core::{Env, Tick};
use bytes::Bytes;

use crate::latency::Latencies;

/// How often a log is trimmed.
const TRIM_EVERY: Duration = Duration::from_millis(5);
/// How long a client pauses after a failure.
const PAUSE: Duration = Duration::from_millis(1);

/// Locks what clients share.
pub fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock by which operations are timed.
#[derive(Clone, Copy, Debug)]
pub enum Clock {
    /// That of the node, which stands still during a turn: the only one of a model.
    Node,
    /// That of the machine.
    Machine(Instant),
}

impl Clock {
    /// Returns the clock of this machine.
    pub fn real() -> Self {
        Clock::Machine(Instant::now())
    }

    /// Returns the time.
    pub fn now(self, env: &Env) -> Tick {
        match self {
            Clock::Node => env.now(),
            Clock::Machine(since) => Tick(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)),
        }
    }
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

    /// Returns whether the measurement has ended.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Begins the measurement now, and forgets what was noted before.
    pub fn begin(&mut self, now: Tick) {
        self.from = now;
        self.latencies = Latencies::new();
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
    /// The clock.
    pub clock: Clock,
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
        let began = worker.clock.now(&env);
        let payload = worker.payload.clone();
        // As the virtual log does: an orderer that has forgotten the client then knows that this is no repeat of something older.
        let floor = loglet.known_tail();
        let placed = loglet.append_above(Batch::of([Entry { op, payload }]), floor).await;
        let appended = matches!(placed, Ok(Ok(_)));
        if !locked(&tally).note(began, worker.clock.now(&env), appended) {
            return;
        }
        if !appended {
            env.sleep(PAUSE).await;
        }
    }
}

/// Trims the log up to its tail again and again, until the run ends. So the journals of its servers soon write into files that they have
/// already, as those of a service do that runs for long. Without trims, each byte is written twice: new files are filled with zeros first.
pub async fn keep_trimming(env: Env, loglet: Arc<dyn Loglet>, tally: Arc<Mutex<Tally>>) {
    while !locked(&tally).is_over() {
        env.sleep(TRIM_EVERY).await;
        // Who only appends may not know how far the log goes. The next round trims what this one did not.
        if let Ok(tail) = loglet.check_tail().await {
            let _ = loglet.prefix_trim(tail.at).await;
        }
    }
}

/// Reads one entry after the other, at random below `tail`, until the run ends.
pub async fn read(env: Env, loglet: Arc<dyn Loglet>, tail: Offset, clock: Clock, tally: Arc<Mutex<Tally>>) {
    loop {
        let at = Offset(env.random() % tail.0.max(1));
        let began = clock.now(&env);
        let read = loglet.read(at..at.plus(1), 1, ReadFrom::Anywhere).await;
        let is_there = read.is_ok_and(|read| read.entries.first().is_some_and(|entry| !entry.is_pad()));
        if !locked(&tally).note(began, clock.now(&env), is_there) {
            return;
        }
        if !is_there {
            env.sleep(PAUSE).await;
        }
    }
}

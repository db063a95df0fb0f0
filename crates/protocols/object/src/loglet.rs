//! The handle to an ObjectLoglet.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    Tail, Unavailability,
};
use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Env, Tick, Ticket};
use atoll_loglet_store::tails::Tails;

use crate::append::Appends;
use crate::config::ObjectConfig;
use crate::known::Known;
use crate::shelf::{Fault, Shelf};
use crate::store::StoreError;

/// Timeouts and sizes of handles, and the defaults of new Loglets.
#[derive(Clone, Debug)]
pub struct ObjectOptions {
    /// How long an append may take before its outcome is reported as unknown.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request to the store may take.
    pub request_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long a wait for the tail takes at most.
    pub wait_patience: Duration,
    /// The first and the longest pause between two looks of a wait for the tail.
    pub look_every: (Duration, Duration),
    /// The most bytes of batches that wait in a handle.
    pub window_bytes: usize,
    /// The most spans of operations that an appender remembers.
    pub dedupe_spans: usize,
    /// The most bytes of entries in the memory of a node, for all its Loglets of this kind.
    pub cache_bytes: usize,
    /// Maximum number of bytes of entries that one step of a copy moves.
    pub step_bytes: u32,
    /// About how many bytes of entries an object of a new Loglet has at most.
    pub batch_bytes: u32,
    /// How long a node waits from one object of a new Loglet to the next, in milliseconds.
    pub interval_ms: u32,
    /// How many objects of a new Loglet are deleted together.
    pub block_objects: u32,
}

impl Default for ObjectOptions {
    fn default() -> Self {
        ObjectOptions {
            append_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(5),
            retry: Duration::from_millis(50),
            wait_patience: Duration::from_secs(2),
            look_every: (Duration::from_millis(20), Duration::from_millis(500)),
            window_bytes: 8 * 1024 * 1024,
            dedupe_spans: 64 * 1024,
            cache_bytes: 32 * 1024 * 1024,
            step_bytes: atoll_loglet_store::STEP_BYTES,
            batch_bytes: 4 * 1024 * 1024,
            interval_ms: 50,
            block_objects: 128,
        }
    }
}

/// A handle to one ObjectLoglet. Its clones share what it knows.
#[derive(Clone)]
pub struct ObjectLoglet(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) id: LogletId,
    pub(crate) config: ObjectConfig,
    pub(crate) options: Arc<ObjectOptions>,
    pub(crate) shelf: Shelf,
    pub(crate) tails: Tails,
    pub(crate) known: Mutex<Known>,
    pub(crate) appends: Mutex<Appends>,
    /// Whether a wait looks at the store, so that the others need not.
    pub(crate) looking: AtomicBool,
    /// Whether a block is being deleted.
    pub(crate) clearing: AtomicBool,
}

impl std::fmt::Debug for ObjectLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectLoglet({} at {})", self.0.id, self.0.config.url)
    }
}

impl Shared {
    pub(crate) fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Pauses after a fault that may pass, or returns it: if it does not pass, or time is up.
    pub(crate) async fn again(&self, until: Tick, fault: Fault) -> Result<(), Fault> {
        if !fault.passes() || self.env.now() >= until {
            return Err(fault);
        }
        if fault == Fault::Deleted {
            return match self.rebase().await {
                Err(fault) if !fault.passes() => Err(fault),
                _ => Ok(()),
            };
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        Ok(())
    }

    pub(crate) fn op_until(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }
}

/// Returns why an operation is unavailable.
pub(crate) fn unavailable(fault: &Fault) -> Unavailability {
    match fault {
        Fault::Store(StoreError::Busy) => Unavailability::Busy,
        Fault::Store(StoreError::Full) => Unavailability::DiskFull,
        Fault::Store(StoreError::NoAnswer) | Fault::Deleted => Unavailability::NoQuorum,
        Fault::Store(_) | Fault::Gone | Fault::Damaged(_) => Unavailability::StorageFailed,
    }
}

pub(crate) fn failed(fault: Fault) -> LogletError {
    match fault {
        Fault::Gone => LogletError::Gone,
        other => LogletError::Unavailable(unavailable(&other)),
    }
}

impl Loglet for ObjectLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.append_above(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.0.submit(batch, not_below)
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async { self.0.check_tail().await.map_err(failed) })
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move { self.0.wait_tail(above).await.map_err(failed) })
    }

    fn known_tail(&self) -> Offset {
        self.0.tails.tail()
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(self.0.read(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move { self.0.prefix_trim(to).await.map_err(failed) })
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { self.0.seal().await.map_err(failed) })
    }
}

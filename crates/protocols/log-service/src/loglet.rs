//! The handle of a loglet, on any node.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    Tail,
};
use atoll_core::{BoxFuture, Env, Ticket};
use atoll_loglet_store::cache::Cache;
use atoll_loglet_store::tails::Tails;

use crate::append::Appends;
use crate::config::LogServiceConfig;
use crate::known::{Known, Trouble};
use crate::layout::Message;
use crate::service::{Service, Stream};

/// Timeouts and sizes.
#[derive(Clone, Debug)]
pub struct LogServiceOptions {
    /// How long an append is tried before it is given up, as unknown if the service may have it.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer.
    pub request_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long an appender waits for others, or lets them go first, with jitter.
    pub courtesy: Duration,
    /// How long a handle waits for news before it looks again.
    pub wait_patience: Duration,
    /// The most bytes of batches that wait in a handle.
    pub window_bytes: usize,
    /// The most spans of operations that a handle remembers.
    pub dedupe_spans: usize,
    /// The most bytes of entries in the memory of a node, for all its loglets of this kind.
    pub cache_bytes: usize,
    /// About how many bytes of entries one step of a copy moves.
    pub step_bytes: u32,
}

impl Default for LogServiceOptions {
    fn default() -> Self {
        LogServiceOptions {
            append_timeout: Duration::from_secs(10),
            op_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(2),
            retry: Duration::from_millis(20),
            courtesy: Duration::from_millis(2),
            wait_patience: Duration::from_secs(2),
            window_bytes: 8 * 1024 * 1024,
            dedupe_spans: 64 * 1024,
            cache_bytes: 32 * 1024 * 1024,
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// A handle to one loglet. Its clones share what it knows.
#[derive(Clone)]
pub struct LogServiceLoglet(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) env: Env,
    pub(crate) id: LogletId,
    pub(crate) config: LogServiceConfig,
    pub(crate) stream: Stream,
    pub(crate) options: Arc<LogServiceOptions>,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) tails: Tails,
    /// None until the handle has looked at the log.
    pub(crate) known: Mutex<Option<Known>>,
    pub(crate) appends: Mutex<Appends>,
    /// The author of this handle's messages: a random number.
    pub(crate) writer: u64,
    pub(crate) cache: Arc<Cache<Message>>,
    /// Whether messages are being purged.
    pub(crate) purging: AtomicBool,
}

impl std::fmt::Debug for LogServiceLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogServiceLoglet({} in {} at {})", self.0.id, self.0.stream.name, self.0.config.servers)
    }
}

pub(crate) fn failed(trouble: Trouble) -> LogletError {
    match trouble {
        Trouble::Gone => LogletError::Gone,
        other => LogletError::Unavailable(other.unavailability()),
    }
}

impl Loglet for LogServiceLoglet {
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

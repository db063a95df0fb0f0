//! A handle to a Scalog Loglet: the client's side (scalog.md §6, §10).
//!
//! | file | what it is |
//! | --- | --- |
//! | `append.rs` | appends, and retries when a shard ends |
//! | `tail.rs` | checkTail from the ordering log, waits for the tail, seal |
//! | `read.rs` | reads: one server of each shard, merged by number |
//! | `shards.rs` | adds and ends shards; appendToShard |
//! | `sharded.rs` | the same for the virtual log, which knows no kind |
//! | `client.rs`, `policy.rs` | the paper's own interface: append by a policy, readRecord, subscribe |

mod append;
mod client;
mod policy;
mod read;
mod sharded;
mod shards;
mod tail;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    Sharded, Tail, Unavailability,
};
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env, NodeId, Notify, Tick, Ticket};

use crate::config::ScalogConfig;
use crate::order::{Order, OrderEntry};
use crate::ordering::read;
use crate::provider::DirectoryOf;

pub use client::{PolicyAppendError, ScalogClient, Subscription};
pub use policy::{ChooseShard, LiveShard, ShardPolicy};
pub use shards::ChangeError;

/// Timeouts and sizes of handles, and of new Loglets.
#[derive(Clone, Debug)]
pub struct ScalogOptions {
    /// How long an append may take before its outcome is reported as unknown.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer.
    pub round_timeout: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long a seal waits for an entry of the ordering log, before it seals the ordering log itself.
    pub seal_patience: Duration,
    /// The most bytes of appends of one handle that are under way.
    pub window_bytes: usize,
    /// The most bytes that one step of a copy reads.
    pub step_bytes: u32,
    /// How often servers, aggregators and orderers of a new Loglet send what is new, in microseconds. Shorter: appends wait less, and the
    /// ordering log grows faster.
    pub interval_us: u32,
    /// The most children of an aggregator of a new Loglet.
    pub fan_in: usize,
    /// The servers of a shard of a new Loglet: all but one may fail.
    pub replicas: usize,
}

impl Default for ScalogOptions {
    fn default() -> Self {
        ScalogOptions {
            append_timeout: Duration::from_secs(1),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_millis(500),
            retry: Duration::from_millis(5),
            seal_patience: Duration::from_millis(100),
            window_bytes: 64 << 20,
            step_bytes: atoll_loglet_store::STEP_BYTES,
            interval_us: 500,
            fan_in: 24,
            replicas: 2,
        }
    }
}

/// How old what a handle knows about the ordering log may be when it sends records for the first time. A server that may have forgotten
/// records that were ordered since then refuses such records, because it cannot tell whether they are new. The caller then reads the log
/// from there on, so this must not be long.
const OLD_AFTER: Duration = Duration::from_secs(1);

/// What a handle knows.
struct Known {
    order: Order,
    /// Whether the ordering log is sealed, and all of it below some end of it was applied.
    ended: bool,
    /// What was ordered before this time is known. None: nothing was checked yet.
    checked_at: Option<Tick>,
    in_flight_bytes: usize,
}

pub(crate) struct Shared {
    env: Env,
    id: LogletId,
    config: ScalogConfig,
    pub(crate) config_bytes: Bytes,
    log: Arc<dyn Loglet>,
    options: Arc<ScalogOptions>,
    directory: DirectoryOf,
    known: Mutex<Known>,
    /// Notified when an entry of the ordering log was applied.
    changed: Notify,
}

/// See the module documentation. Cheap to clone.
#[derive(Clone)]
pub struct ScalogLoglet(pub(crate) Arc<Shared>);

impl fmt::Debug for ScalogLoglet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScalogLoglet({:?}, {})", self.0.env, self.0.id)
    }
}

const NO_ORDER: LogletError = LogletError::Unavailable(Unavailability::NoQuorum);

impl ScalogLoglet {
    /// Returns a handle. `log` is its ordering log. New shards are kept by members that the directory shows.
    pub(crate) fn new(
        env: Env,
        id: LogletId,
        (config, config_bytes): (ScalogConfig, Bytes),
        log: Arc<dyn Loglet>,
        (options, directory): (Arc<ScalogOptions>, DirectoryOf),
    ) -> Self {
        let (ended, checked_at, in_flight_bytes) = Default::default();
        let known = Mutex::new(Known { order: Order::new(&config), ended, checked_at, in_flight_bytes });
        let changed = Notify::default();
        ScalogLoglet(Arc::new(Shared {
            env,
            id,
            config,
            config_bytes,
            log,
            options,
            directory,
            known,
            changed,
        }))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &ScalogConfig {
        &self.0.config
    }

    /// Runs a function on what the handle knows of the order.
    pub fn with_order<T>(&self, f: impl FnOnce(&Order) -> T) -> T {
        f(&lock(&self.0.known).order)
    }

    /// Returns the node that uses the handle.
    pub(crate) fn node(&self) -> NodeId {
        self.0.env.node()
    }

    /// Returns whether the handle knows that nothing more can be appended.
    pub fn is_sealed(&self) -> bool {
        let known = lock(&self.0.known);
        known.ended || known.order.is_sealed()
    }

    /// Applies the ordering log up to its tail: everything that was ordered before the call is known afterwards.
    pub(crate) async fn refresh(&self) -> Result<(), LogletError> {
        let began = self.0.env.now();
        let tail = self.0.log.check_tail().await?;
        self.catch_up(&tail).await?;
        let mut known = lock(&self.0.known);
        known.checked_at = known.checked_at.max(Some(began));
        Ok(())
    }

    /// Like `refresh`, unless that was done not long ago. It is for callers to whom a server says what has changed since.
    pub(crate) async fn refresh_if_old(&self) -> Result<(), LogletError> {
        let (now, checked_at) = (self.0.env.now(), lock(&self.0.known).checked_at);
        match checked_at.is_some_and(|at| now.since(at) < OLD_AFTER) {
            true => Ok(()),
            false => self.refresh().await,
        }
    }

    /// Applies the entries of the ordering log below a tail of it, which must come from a check if it is sealed.
    pub(crate) async fn catch_up(&self, tail: &Tail) -> Result<(), LogletError> {
        let to = tail.at.0;
        loop {
            let at = self.with_order(Order::applied);
            if at >= to {
                if tail.sealed.is_some() && !std::mem::replace(&mut lock(&self.0.known).ended, true) {
                    hit("scalog.handle.ended");
                    self.0.changed.notify();
                }
                return Ok(());
            }
            let page = read(&self.0.log, at, to).await.map_err(|error| match error {
                ReadError::Gone => LogletError::Gone,
                _ => NO_ORDER,
            })?;
            let mut known = lock(&self.0.known);
            // Another call of this handle may have applied them meanwhile.
            if known.order.applied() != at {
                continue;
            }
            for (place, bytes) in (page.first..).zip(page.entries) {
                if place != known.order.applied() {
                    hit("scalog.handle.resumed");
                    known.order = Order::resume_from(bytes, place).ok_or(NO_ORDER)?;
                } else if bytes.is_empty() {
                    known.order.skip();
                } else {
                    let Ok(entry) = OrderEntry::parse(bytes) else { return Err(NO_ORDER) };
                    known.order.apply(&entry);
                }
            }
            drop(known);
            self.0.changed.notify();
        }
    }
}

impl Loglet for ScalogLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, not_below)
    }

    /// Returns false: the records of two segments are ordered by cuts, not by the calls.
    fn keeps_order(&self) -> bool {
        false
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(self.check())
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(self.wait(above))
    }

    fn known_tail(&self) -> Offset {
        Offset(self.with_order(Order::base))
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(self.read_range(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.trim(to))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.end())
    }

    fn sharded(&self) -> Option<&dyn Sharded> {
        Some(self)
    }
}

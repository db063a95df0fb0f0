//! CORFU as a Loglet (corfu §7): a static projection with the epochs 1, open, and 2, sealed. The virtual log does what the paper's
//! auxiliary does.
//!
//! | file | what it is |
//! | --- | --- |
//! | `append.rs` | append |
//! | `check_tail.rs` | checkTail of an open Loglet, and waits |
//! | `seal.rs` | seal, and checkTail of a sealed Loglet |
//! | `sealed.rs` | what an installed stop comes with: the units that count, and the holes |
//! | `read.rs` | readNext |
//! | `trim.rs` | prefixTrim, deletion |
//! | `back_fill.rs` | a unit fetches what it lacks of a sealed Loglet |
//! | `positions.rs` | the paper's interface: look, fill and trim of one position |

mod append;
pub(crate) mod back_fill;
mod check_tail;
mod positions;
mod read;
mod seal;
pub mod sealed;
mod trim;

use std::ops::Range;
use std::sync::{Arc, Mutex};

use atoll_contract::{
    AppendError, Batch, Loglet, LogletError, LogletId, Offset, Placement, ReadBatch, ReadError, ReadFrom,
    Tail, Unavailability, WriteOnce,
};
pub(crate) use atoll_core::sync::lock;
use atoll_core::{BoxFuture, Encode, Env, Ticket};
use atoll_loglet_store::tails::Tails;

use crate::client::{Client, ClientOptions, Stop, View};
use crate::projection::Projection;
use sealed::SealedAt;

/// The epoch of an open Loglet.
pub const OPEN_EPOCH: u64 = 1;
/// The epoch of a sealed Loglet, in which copies are made.
pub const SEALED_EPOCH: u64 = 2;

/// A handle to one CORFU Loglet.
#[derive(Clone)]
pub struct CorfuLoglet(pub(crate) Arc<Shared>);

/// What the procedures of a handle share.
pub(crate) struct Shared {
    pub client: Client,
    /// The open Loglet.
    pub open: View,
    /// The same projection in the sealed epoch.
    pub closed: View,
    pub tails: Tails,
    pub state: Mutex<State>,
}

/// What a handle has found out.
pub(crate) struct State {
    /// The number of the handle, and of its next append: the tokens.
    pub handle: u64,
    pub next_append: u64,
    pub in_flight_bytes: usize,
    /// Appends may have got every position below. Only checks for single positions raise it.
    pub reached: Offset,
    /// The end that is in the chain.
    pub installed: Option<SealedAt>,
    /// The end that a check of this handle has found. Another one may be installed.
    pub found: Option<SealedAt>,
}

impl std::fmt::Debug for CorfuLoglet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CorfuLoglet({} of {} units)", self.0.client.log, self.0.open.projection.units().len())
    }
}

impl CorfuLoglet {
    pub(crate) fn new(env: Env, id: LogletId, projection: Projection, options: Arc<ClientOptions>) -> Self {
        let handle = env.random();
        let open = View { has_sole_writers: true, ..View::new(projection) };
        let mut sealed = (*open.projection).clone();
        sealed.epoch = SEALED_EPOCH;
        // Units are created with the configuration that is in the chain.
        let closed = View {
            projection: Arc::new(sealed),
            config: open.config.clone(),
            is_ended: true,
            ..open.clone()
        };
        let (client, tails) = (Client { env, log: id, options }, Tails::default());
        let (next_append, in_flight_bytes, reached) = (0, 0, Offset::ZERO);
        let state = State { handle, next_append, in_flight_bytes, reached, installed: None, found: None };
        CorfuLoglet(Arc::new(Shared { client, open, closed, tails, state: Mutex::new(state) }))
    }

    /// Tells the handle where the Loglet ends, according to the chain (vlog-L9).
    pub(crate) fn ends(&self, at: SealedAt) {
        self.0.tails.learn_sealed(Offset(at.tail));
        lock(&self.0.state).installed = Some(at);
    }

    /// Returns the end in the chain, otherwise the one that a check has found.
    pub(crate) fn end(&self) -> Option<SealedAt> {
        let state = lock(&self.0.state);
        state.installed.clone().or_else(|| state.found.clone())
    }
}

/// Returns the tail of a sealed Loglet.
pub(crate) fn sealed_tail(end: &SealedAt) -> Tail {
    Tail { at: Offset(end.tail), sealed: Some(end.to_bytes()) }
}

/// Returns what a stop means for an operation of a Loglet.
pub(crate) fn loglet_error(stop: Stop) -> LogletError {
    match stop {
        Stop::Gone => LogletError::Gone,
        Stop::Unavailable(why) => LogletError::Unavailable(why),
        Stop::WrongUnit => LogletError::Unavailable(Unavailability::StorageFailed),
        Stop::Sealed | Stop::Trimmed => LogletError::Unavailable(Unavailability::NoQuorum),
    }
}

impl Loglet for CorfuLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.start_append(batch, not_below)
    }

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
        self.0.tails.tail()
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(self.read_entries(range, max_bytes, from))
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.trim(to))
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(self.seal_units())
    }

    fn write_once(&self) -> Option<&dyn WriteOnce> {
        Some(self)
    }
}

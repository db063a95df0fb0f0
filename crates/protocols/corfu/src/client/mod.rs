//! What a client does with the units of one projection (corfu §3): the steps that the paper's interface and the Loglet share.
//!
//! | file | what it is |
//! | --- | --- |
//! | `write.rs` | a write down a chain, from head to tail |
//! | `fill.rs` | fills holes, and completes partial chains |
//! | `tail.rs` | how far the log was written, and how far it is complete |

mod fill;
mod tail;
mod write;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{LogletId, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{Class, Env, Link, NodeId, Tick};

use crate::message::{SealTo, ToUnit, UnitAnswer, Verdict};
use crate::projection::{Projection, UnitId};

pub(crate) use fill::{Found, both};
pub use tail::Tails;
pub use write::Wrote;

/// Timeouts and sizes of clients.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// How long an append may take before its outcome is reported as unknown.
    pub append_timeout: Duration,
    /// How long the other operations try before they give up.
    pub op_timeout: Duration,
    /// How long one request waits for its answer.
    pub round_timeout: Duration,
    /// How long a read waits for a unit before it asks another one, too. Too short: entries are read twice. Too long: readers wait for
    /// units that have died.
    pub slow_read: Duration,
    /// Pause between two attempts, with jitter.
    pub retry: Duration,
    /// How long a position below the tail may be a hole before it is filled. Too short: slow appends lose their positions. Too long:
    /// readers wait.
    pub fill_timeout: Duration,
    /// How long a seal waits for more units than it needs.
    pub seal_grace: Duration,
    /// How long a unit may hold a request that waits.
    pub wait_patience: Duration,
    /// The most bytes that one step of a copy moves.
    pub step_bytes: u32,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            append_timeout: Duration::from_secs(1),
            op_timeout: Duration::from_secs(5),
            round_timeout: Duration::from_millis(500),
            slow_read: Duration::from_millis(5),
            retry: Duration::from_millis(5),
            fill_timeout: Duration::from_millis(30),
            seal_grace: Duration::from_millis(100),
            wait_patience: Duration::from_secs(2),
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// A projection, decoded and encoded.
#[derive(Clone, Debug)]
pub struct View {
    /// The projection.
    pub projection: Arc<Projection>,
    /// Its encoded form, which creates the log on a unit.
    pub config: Bytes,
    /// Whether it is that of a sealed Loglet, to which nobody appends. Repairers that reach different units may then differ about a
    /// position that nobody may read: a hole of the installed end.
    pub is_ended: bool,
    /// Whether a position has one writer at most, because a single life of a sequencer hands it out. A writer that finds its position
    /// deleted alone then knows that it was its own entry.
    pub has_sole_writers: bool,
}

impl View {
    /// Returns the view of a projection.
    pub fn new(projection: Projection) -> Self {
        let config = atoll_core::Encode::to_bytes(&projection);
        View { projection: Arc::new(projection), config, is_ended: false, has_sole_writers: false }
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.projection.epoch
    }
}

/// Why a step on a chain could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// A unit is in a higher epoch: there is, or will be, another projection.
    #[error("the log is sealed to a higher epoch")]
    Sealed,
    /// The log was deleted permanently.
    #[error("the log was deleted")]
    Gone,
    /// The position is below the first range, or was trimmed.
    #[error("the position was trimmed")]
    Trimmed,
    /// A node does not hold the unit that the projection names: its data directory was lost or replaced (corfu-C16).
    #[error("a node has another data directory than the projection names for its unit")]
    WrongUnit,
    /// A unit did not answer in time, or refused.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
}

/// A client of one log on one node. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    /// The executor of the node.
    pub env: Env,
    /// The log.
    pub log: LogletId,
    /// Timeouts and sizes.
    pub options: Arc<ClientOptions>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({:?}, {})", self.env, self.log)
    }
}

const NO_ANSWER: Stop = Stop::Unavailable(Unavailability::NoQuorum);

impl Client {
    /// Asks a unit once. The request is sent again with the projection if the unit does not know the log.
    pub async fn ask_once<R: ToUnit>(&self, view: &View, unit: UnitId, request: R) -> Result<R::Reply, Stop> {
        let patience = self.options.round_timeout;
        let call = self.env.call(unit.0, request.clone());
        let answer = self.env.within(patience, call).await.map_err(|_| NO_ANSWER)?.map_err(|_| NO_ANSWER)?;
        if *R::verdict(&answer) != (Verdict::Unconfigured {}) {
            return Ok(answer);
        }
        let call = self.env.call(unit.0, request.with_config(view.config.clone()));
        self.env.within(patience, call).await.map_err(|_| NO_ANSWER)?.map_err(|_| NO_ANSWER)
    }

    /// Asks a unit until it answers something other than "busy" or "ahead", or until the time is up. A unit in a lower epoch is sealed to
    /// the epoch of the view first, which is installed (corfu-C1).
    pub async fn ask<R: ToUnit>(
        &self,
        view: &View,
        unit: UnitId,
        request: R,
        until: Tick,
    ) -> Result<R::Reply, Stop> {
        loop {
            match self.ask_once(view, unit, request.clone()).await {
                Ok(answer) if *R::verdict(&answer) == (Verdict::Ahead {}) => {
                    hit("corfu.client.lazy_seal");
                    self.seal_unit(view, unit).await?;
                }
                Ok(answer) if *R::verdict(&answer) == (Verdict::Busy {}) => {}
                Ok(answer) => return Ok(answer),
                Err(_) if self.env.now() < until => {}
                Err(stop) => return Err(stop),
            }
            if self.env.now() >= until {
                return Err(Stop::Unavailable(Unavailability::Busy));
            }
            self.env.sleep(self.env.jitter(self.options.retry)).await;
        }
    }

    /// Seals one unit to the epoch of a view that is installed.
    pub async fn seal_unit(&self, view: &View, unit: UnitId) -> Result<UnitAnswer, Stop> {
        let request = SealTo { log: self.log, config: Bytes::new(), epoch: view.epoch() };
        let answer = self.ask_once(view, unit, request).await?;
        match answer.verdict {
            Verdict::Done {} => Ok(answer),
            verdict => Err(refusal(&verdict)),
        }
    }

    /// Returns the time at which an operation gives up.
    pub fn op_end(&self) -> Tick {
        self.env.now().after(self.options.op_timeout)
    }

    /// Returns the time at which a round gives up.
    pub fn round_end(&self) -> Tick {
        self.env.now().after(self.options.round_timeout)
    }

    /// Returns until when a unit that does not answer is asked again, before somebody looks whether another one has taken its place.
    pub fn look_end(&self) -> Tick {
        self.env.now().after(self.options.retry * 2)
    }

    /// Puts units that all have the same in the order in which to ask them: that of this node comes first, and those to which there is no
    /// connection come last.
    pub fn nearest_first(&self, units: &mut [UnitId]) {
        let is_down = |node| self.env.link(node, Class::Data) == Link::Down;
        units.sort_by_key(|unit| (unit.0 != self.env.node(), is_down(unit.0)));
    }

    /// Pauses between two attempts. Returns false if the time is up.
    pub async fn pause(&self, until: Tick) -> bool {
        if self.env.now() >= until {
            return false;
        }
        self.env.sleep(self.env.jitter(self.options.retry)).await;
        true
    }
}

/// Returns why a unit refused.
pub fn refusal(verdict: &Verdict) -> Stop {
    match verdict {
        Verdict::Sealed {} => Stop::Sealed,
        Verdict::Gone {} => Stop::Gone,
        Verdict::Deleted {} | Verdict::Erased {} => Stop::Trimmed,
        Verdict::DiskFull {} => Stop::Unavailable(Unavailability::DiskFull),
        Verdict::WrongIdentity {} => Stop::WrongUnit,
        Verdict::StorageFailed {} | Verdict::Damaged { .. } => {
            Stop::Unavailable(Unavailability::StorageFailed)
        }
        Verdict::Busy {} => Stop::Unavailable(Unavailability::Busy),
        Verdict::Invalid {} => Stop::Unavailable(Unavailability::TooLarge),
        _ => NO_ANSWER,
    }
}

/// Returns the nodes of units.
pub fn nodes(units: &[UnitId]) -> Vec<NodeId> {
    let mut nodes: Vec<NodeId> = units.iter().map(|unit| unit.0).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

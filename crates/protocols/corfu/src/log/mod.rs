//! The paper's own interface: append, read, fill, trim (Figure 1), over a projection in a register.
//!
//! | file | what it is |
//! | --- | --- |
//! | `append.rs` | append, with a sequencer or without one |
//! | `read.rs` | read, fill, trim |
//! | `reconfigure.rs` | a new projection: seal, decide, install |
//! | `changes.rs` | which projections follow: a unit or the sequencer replaced, ranges extended and merged; the rebuild of a unit |
//!
//! The register's version is the epoch: the projection of epoch e is written by a conditional write that expects version e − 1 (corfu-K7).
//! It is always read from the register itself, never from a server that might have an old one (corfu-C20).

mod append;
mod changes;
mod read;
mod reconfigure;

use std::sync::{Arc, Mutex};

use atoll_contract::register::{Nonce, Register, RegisterError, Version, Written};
use atoll_contract::{LogletId, Unavailability};
use atoll_core::sync::lock;
use atoll_core::{Encode, Env, NodeId};
use bytes::Bytes;

use crate::client::{Client, ClientOptions, Stop, Tails, View};
use crate::intervals::Intervals;
use crate::message::Token;
use crate::projection::{Projection, ProjectionError};

pub use read::Entry;

/// What the names of the registers of logs start with; the name of the log follows.
pub const REGISTER_PREFIX: &str = "corfu/";
/// A client remembers so many ranges of complete positions. Each reconfiguration may begin another one.
const MAX_COMPLETE: usize = 256;
/// Every position of a log is below this one. No log gets there; the limit keeps sums of positions in range.
pub const MAX_POSITION: u64 = 1 << 60;

/// Returns the identity of the log with this name on its units. It is not random, so that a log needs nothing but its register. Bits 31
/// and 30 are 0, so it is never taken for a Loglet of a chain, and nobody collects it as one that no chain names.
pub fn id_of(name: &str) -> LogletId {
    // FNV-1a. Part numbers have no meaning here.
    let step = |hash: u128, byte: &u8| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    let all = [REGISTER_PREFIX.as_bytes(), name.as_bytes()].concat();
    let hash = all.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step);
    LogletId(hash & !(3 << 30)).whole()
}

/// Returns the nodes that hold something of the log with this register value. None if the value cannot be read.
pub fn nodes_of(value: &Bytes) -> Option<Vec<NodeId>> {
    let projection = Projection::parse(value).ok()?;
    let units = projection.units().into_iter().map(|unit| unit.0);
    Some(units.chain([projection.sequencer.0]).collect())
}

/// Why an operation on a log failed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// It did not happen. The log, or the register, cannot answer now.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// The outcome is not known: the append may be in the log at this position, or may still get there. Resume it there, or find out by
    /// filling the position.
    #[error("unknown outcome at position {0}")]
    Unknown(u64),
    /// The register has no projection that can be used.
    #[error("the projection cannot be used: {0}")]
    Projection(#[from] ProjectionError),
    /// The register was never written: there is no such log.
    #[error("there is no such log")]
    NotThere,
    /// The register holds another version than the projection in it says.
    #[error("the register holds version {0}, which was not expected")]
    Version(u64),
    /// The position is not below the tail, so there is nothing to fill or trim. Nothing was changed.
    #[error("position {position} is beyond the tail, which is {tail}")]
    BeyondTail {
        /// The requested position.
        position: u64,
        /// The position above every one that is written.
        tail: u64,
    },
    /// A node does not hold the unit that the projection names: its data directory was lost or replaced. Replace the unit. An append did
    /// not happen.
    #[error("a node has another data directory than the projection names for its unit")]
    WrongUnit,
    /// Another reconfiguration was faster; nothing was changed by this one.
    #[error("another reconfiguration was faster")]
    Overtaken,
    /// Not enough units are sealed: each chain that takes new positions needs one.
    #[error("no unit of a chain could be sealed")]
    NotSealed,
    /// The log was deleted permanently.
    #[error("the log was deleted")]
    Gone,
}

impl From<Stop> for LogError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Unavailable(why) => LogError::Unavailable(why),
            Stop::WrongUnit => LogError::WrongUnit,
            Stop::Gone => LogError::Gone,
            Stop::Sealed | Stop::Trimmed => LogError::Unavailable(Unavailability::NoQuorum),
        }
    }
}

impl From<RegisterError> for LogError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::NotWritten(why) | RegisterError::Unknown(why) => LogError::Unavailable(why.into()),
            _ => LogError::Unavailable(Unavailability::TooLarge),
        }
    }
}

/// A client of one CORFU log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CorfuLog {
    client: Client,
    register: Arc<dyn Register>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    view: Option<View>,
    token: Token,
    /// All positions below this one are written, or somebody took them: something above was written.
    written: u64,
    /// Positions that are on every unit of their chain, as far as checks of the tail have shown.
    complete: Intervals,
}

impl State {
    fn new(token: Token) -> Self {
        State { view: None, token, written: 0, complete: Intervals::default() }
    }
}

impl CorfuLog {
    /// Returns a client of a log whose projection is in this register. Cheap; nothing is contacted.
    pub fn new(env: Env, log: LogletId, register: Arc<dyn Register>, options: ClientOptions) -> Self {
        let token = Token { client: env.random(), number: 0 };
        let client = Client { env, log, options: Arc::new(options) };
        CorfuLog { client, register, state: Arc::new(Mutex::new(State::new(token))) }
    }

    /// Writes the first projection, of epoch 1. It is durable on return.
    pub async fn create(&self, projection: Projection) -> Result<(), LogError> {
        projection.check(None)?;
        self.install(0, &projection).await
    }

    /// Returns the projection that this client knows, reading it if it knows none.
    pub async fn view(&self) -> Result<View, LogError> {
        let known = lock(&self.state).view.clone();
        match known {
            Some(view) => Ok(view),
            None => self.refresh().await,
        }
    }

    /// Reads the newest projection.
    pub async fn refresh(&self) -> Result<View, LogError> {
        let read = self.register.read().await?;
        if read.version == Version(0) {
            return Err(LogError::NotThere);
        }
        let projection = Projection::parse(&read.value)?;
        if read.version != Version(projection.epoch) {
            return Err(LogError::Version(read.version.0));
        }
        let view = View::new(projection);
        let mut state = lock(&self.state);
        if state.view.as_ref().is_none_or(|known| known.epoch() < view.epoch()) {
            state.view = Some(view.clone());
        }
        Ok(view)
    }

    /// Installs the projection that follows the one of `epoch`.
    async fn install(&self, epoch: u64, projection: &Projection) -> Result<(), LogError> {
        let nonce = Nonce(u128::from(self.client.env.random()) << 64 | u128::from(self.client.env.random()));
        let value = projection.to_bytes();
        let until = self.client.op_end();
        loop {
            match self.register.write_if(Version(epoch), value.clone(), nonce).await {
                Ok(Written::Yes(_)) => return Ok(()),
                // A retry of a write that was done finds its own nonce.
                Ok(Written::Conflict(other)) if other.nonce == nonce => return Ok(()),
                Ok(Written::Conflict(_)) => return Err(LogError::Overtaken),
                Err(error) if !self.client.pause(until).await => return Err(error.into()),
                Err(_) => {}
            }
        }
    }

    fn next_token(&self) -> Token {
        let mut state = lock(&self.state);
        state.token.number += 1;
        state.token
    }

    fn has_written(&self, below: u64) {
        let mut state = lock(&self.state);
        state.written = state.written.max(below);
    }

    /// Notes what a probe shows: what is on the tail of a chain is on all of its units.
    fn has_seen(&self, view: &View, tails: &Tails) {
        let complete = view.projection.active().start..tails.complete_below(view);
        let mut state = lock(&self.state);
        if state.complete.len() >= MAX_COMPLETE {
            state.complete = Intervals::default();
        }
        state.complete.add(complete);
    }

    fn knows_complete(&self, position: u64) -> bool {
        lock(&self.state).complete.contains(position)
    }

    /// Refuses a position at which nothing is written, and nothing above, either. A fill or a trim there would move the tail up to it, with
    /// junk in between. Costs nothing if this client knows that the tail is above.
    pub async fn check_below_tail(&self, position: u64) -> Result<(), LogError> {
        if position < lock(&self.state).written {
            return Ok(());
        }
        match self.tail().await? {
            tail if position < tail => Ok(()),
            tail => Err(LogError::BeyondTail { position, tail }),
        }
    }

    /// Returns the position above every one that is written now (the paper's check). It may fall after a sequencer is replaced (corfu-C12):
    /// it counts what was written, not what was given out.
    pub async fn tail(&self) -> Result<u64, LogError> {
        let until = self.client.op_end();
        let mut view = self.view().await?;
        loop {
            match self.client.probe(&view).await {
                Ok(tails) if tails.covers(&view) => {
                    let tail = tails.written_above(&view);
                    self.has_written(tail);
                    self.has_seen(&view, &tails);
                    return Ok(tail);
                }
                Err(Stop::Sealed) => view = self.newer(view.epoch(), until).await?,
                Err(stop @ Stop::Gone) => return Err(stop.into()),
                Ok(_) | Err(_) => {}
            }
            if !self.client.pause(until).await {
                return Err(LogError::Unavailable(Unavailability::NoQuorum));
            }
        }
    }
}

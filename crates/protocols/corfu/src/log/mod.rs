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
use atoll_core::{Encode, Env};

use crate::client::{Client, ClientOptions, Stop, View};
use crate::message::Token;
use crate::projection::{Projection, ProjectionError};

pub use read::Entry;

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
    /// There is no projection yet, or the log exists already.
    #[error("the register holds version {0}, which was not expected")]
    Version(u64),
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
}

impl CorfuLog {
    /// Returns a client of a log whose projection is in this register. Cheap; nothing is contacted.
    pub fn new(env: Env, log: LogletId, register: Arc<dyn Register>, options: ClientOptions) -> Self {
        let token = Token { client: env.random(), number: 0 };
        let client = Client { env, log, options: Arc::new(options) };
        CorfuLog { client, register, state: Arc::new(Mutex::new(State { view: None, token })) }
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

    /// Returns the position above every one that is written now (the paper's check). It may fall after a sequencer is replaced (corfu-C12):
    /// it counts what was written, not what was given out.
    pub async fn tail(&self) -> Result<u64, LogError> {
        let until = self.client.op_end();
        let mut view = self.view().await?;
        loop {
            match self.client.probe(&view).await {
                Ok(tails) if tails.covers(&view) => return Ok(tails.written_above(&view)),
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

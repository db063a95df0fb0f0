//! CORFU's own interface to one log: single positions, and which nodes keep them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::MAX_RECORD_BYTES;
use crate::connections::{Channel, Connections, Repeat};
use crate::corfu_proto as proto;
use crate::corfu_proto::corfu_service_client::CorfuServiceClient;
use crate::error::{Error, Failure};
use crate::lane::random_client;
use crate::proto::Reason;

pub use proto::read_reply::What as Cell;

/// The maximum length of a message that a node sends, in bytes. It has one entry at most.
const MAX_REPLY_BYTES: usize = 2 * 1024 * 1024;
/// A replacement may have to wait for the time-out of a dead node.
const RECONFIGURE_TIMEOUT: Duration = Duration::from_secs(60);

/// What to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Another node takes the place of a unit.
    Unit {
        /// The node to replace. It may be down.
        old: u32,
        /// The node that takes its place.
        new: u32,
    },
    /// Another node gives out positions.
    Sequencer(u32),
}

/// Single positions of a log. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Corfu(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connections: Arc<Connections>,
    log: String,
    /// The highest tail that this client knows.
    tail: AtomicU64,
}

fn client(channel: Channel) -> CorfuServiceClient<Channel> {
    CorfuServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES)
}

/// Performs a call.
macro_rules! call {
    ($self:ident, $repeat:expr, $within:expr, $method:ident, $request:expr) => {{
        let request = $request;
        let call = $self.0.connections.call($repeat, $within, |channel| {
            let request = request.clone();
            async move { client(channel).$method(request).await }
        });
        call.await
    }};
}

impl Corfu {
    pub(crate) fn new(log: &str, connections: Arc<Connections>) -> Self {
        Corfu(Arc::new(Inner { connections, log: log.to_owned(), tail: AtomicU64::new(0) }))
    }

    /// Returns the name of the log.
    pub fn log(&self) -> &str {
        &self.0.log
    }

    /// Returns a tail that was known before an append: no copy of the append is below it.
    async fn floor(&self) -> Result<u64, Error> {
        match self.0.tail.load(Ordering::Relaxed) {
            // Without one, an append that is sent again would be searched for in the whole log, which may be long, or trimmed.
            0 => {
                let known = self.show().await?.complete;
                Ok(self.0.tail.fetch_max(known, Ordering::Relaxed).max(known))
            }
            known => Ok(known),
        }
    }

    fn within(&self) -> Duration {
        self.0.connections.options.attempt_timeout
    }

    /// Appends an entry, and returns its position. It is on every unit of its chain on return. Appends of one client that are in flight
    /// together may land in any order.
    ///
    /// # Errors
    /// An append that is sent again, after a failure, is done once. After [`Error::Unknown`] it may be in the log, or may still get there.
    pub async fn append(&self, data: impl Into<Bytes>) -> Result<u64, Error> {
        let data = data.into();
        if data.len() > MAX_RECORD_BYTES {
            let words = format!("the entry has {} bytes; at most {MAX_RECORD_BYTES} are allowed", data.len());
            return Err(Error::DidNotHappen(Failure::new(Reason::TooLarge, words, "split it")));
        }
        let floor = self.floor().await?;
        let log = self.0.log.clone();
        let request = proto::AppendRequest { log, data, client: random_client(), floor: None };
        let was_sent = AtomicBool::new(false);
        let call = self.0.connections.call(Repeat::Idempotent, self.within(), |channel| {
            let mut request = request.clone();
            request.floor = was_sent.swap(true, Ordering::Relaxed).then_some(floor);
            async move { client(channel).append(request).await }
        });
        let position = call.await?.position;
        self.0.tail.fetch_max(position + 1, Ordering::Relaxed);
        Ok(position)
    }

    /// Returns what is at a position.
    ///
    /// # Errors
    /// [`Reason::BeyondTail`] if nothing is there yet, and nothing above it.
    pub async fn read(&self, position: u64) -> Result<Cell, Error> {
        let request = proto::ReadRequest { log: self.0.log.clone(), position };
        let reply = call!(self, Repeat::Idempotent, self.within(), read, request)?;
        let newer = || {
            Error::DidNotHappen(Failure::new(
                Reason::Damaged,
                "the answer says nothing that this client knows",
                "are the versions of client and server compatible?",
            ))
        };
        reply.what.ok_or_else(newer)
    }

    /// Decides a position that an append has taken and not written. Returns true if it is junk, false if it was trimmed before.
    ///
    /// # Errors
    /// [`Reason::Conflict`] if an entry is there, [`Reason::BeyondTail`] if no append can have taken it.
    pub async fn fill(&self, position: u64) -> Result<bool, Error> {
        let request = proto::FillRequest { log: self.0.log.clone(), position };
        Ok(!call!(self, Repeat::Idempotent, self.within(), fill, request)?.trimmed)
    }

    /// Trims one position. Returns false if it is junk, which stays.
    pub async fn trim(&self, position: u64) -> Result<bool, Error> {
        let what = Some(proto::trim_request::What::Position(position));
        let request = proto::TrimRequest { log: self.0.log.clone(), what };
        Ok(!call!(self, Repeat::Idempotent, self.within(), trim, request)?.junk)
    }

    /// Trims all positions below one.
    pub async fn trim_prefix(&self, below: u64) -> Result<(), Error> {
        let what = Some(proto::trim_request::What::Below(below));
        let request = proto::TrimRequest { log: self.0.log.clone(), what };
        call!(self, Repeat::Idempotent, self.within(), trim, request).map(drop)
    }

    /// Returns which nodes keep the active segment, and how far it goes.
    pub async fn show(&self) -> Result<proto::Projection, Error> {
        let request = proto::ShowRequest { log: self.0.log.clone() };
        call!(self, Repeat::Idempotent, self.within(), show, request)
    }

    /// Replaces a unit or the sequencer. The log continues with the replacement on return.
    ///
    /// # Errors
    /// After [`Error::Unknown`] it may have happened, or may still happen; [`Corfu::show`] shows whether it did.
    pub async fn replace(&self, what: Replacement) -> Result<proto::Projection, Error> {
        let what = match what {
            Replacement::Unit { old, new } => {
                proto::replace_request::What::Unit(proto::ReplaceUnit { old, new })
            }
            Replacement::Sequencer(node) => proto::replace_request::What::Sequencer(node),
        };
        let request = proto::ReplaceRequest { log: self.0.log.clone(), what: Some(what) };
        call!(self, Repeat::Once, RECONFIGURE_TIMEOUT, replace, request)
    }
}

//! The handle to one log.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::MAX_RECORD_BYTES;
use crate::connections::{Connections, Repeat};
use crate::error::{Error, Failure};
use crate::lane::{Lane, Settled};
use crate::proto::log_service_client::LogServiceClient;
use crate::proto::{CheckTailReply, CheckTailRequest, Reason, TrimRequest};
use crate::read::{ReadOptions, Reader};

/// A handle to a log. Cheap to clone. All handles of one client to one log share an ordered stream of appends.
#[derive(Clone, Debug)]
pub struct Log {
    name: Arc<str>,
    connections: Arc<Connections>,
    lane: Arc<Lane>,
}

/// An append in flight. Dropping it does not cancel the append; whether the append happens is then unknown.
#[derive(Debug)]
#[must_use = "the outcome is lost if nobody waits for it"]
pub struct Appending(oneshot::Receiver<Settled>);

impl Future for Appending {
    type Output = Result<u64, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|outcome| {
            outcome.unwrap_or_else(|_| {
                Err(Error::Unknown(Failure::new(Reason::Abandoned, "this client's runtime stopped", "")))
            })
        })
    }
}

impl Log {
    pub(crate) fn new(name: &str, connections: Arc<Connections>, lane: Arc<Lane>) -> Self {
        Log { name: name.into(), connections, lane }
    }

    /// Returns the name of the log.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends a record. Returns its position once the record is durable on a majority of the servers.
    pub async fn append(&self, record: impl Into<Bytes>) -> Result<u64, Error> {
        self.submit(record).await?.await
    }

    /// Submits a record after all records that this client submitted before, and returns while the append is in flight. Records
    /// land in the order of submission. Waits only if too many bytes are unacknowledged.
    pub async fn submit(&self, record: impl Into<Bytes>) -> Result<Appending, Error> {
        let record = record.into();
        if record.len() > MAX_RECORD_BYTES {
            return Err(Error::DidNotHappen(Failure::new(
                Reason::TooLarge,
                format!("the record has {} bytes; at most {MAX_RECORD_BYTES} are allowed", record.len()),
                "split it",
            )));
        }
        Ok(Appending(self.lane.submit(record).await?))
    }

    /// Appends records in order. Returns one outcome for each.
    pub async fn append_batch(&self, records: impl IntoIterator<Item = Bytes>) -> Vec<Result<u64, Error>> {
        let mut under_way = Vec::new();
        for record in records {
            under_way.push(self.submit(record).await);
        }
        let mut outcomes = Vec::with_capacity(under_way.len());
        for submitted in under_way {
            outcomes.push(match submitted {
                Ok(appending) => appending.await,
                Err(error) => Err(error),
            });
        }
        outcomes
    }

    /// Reads records in order. The read continues at another node if its node fails.
    pub fn read(&self, options: ReadOptions) -> Reader {
        Reader::new(&self.name, self.connections.clone(), options)
    }

    /// Reads from `from` on without an end: waits for more records at the tail.
    pub fn tail(&self, from: u64) -> Reader {
        self.read(ReadOptions { follow: true, ..ReadOptions::from(from) })
    }

    /// Checks the tail. Returns the first position that cannot be read yet, which is above every append acknowledged before this
    /// call.
    pub async fn check_tail(&self) -> Result<u64, Error> {
        Ok(self.bounds().await?.tail)
    }

    /// Returns the tail and the first position that can be read.
    pub async fn bounds(&self) -> Result<CheckTailReply, Error> {
        let request = CheckTailRequest { log: self.name.to_string() };
        let attempt_timeout = self.connections.options.attempt_timeout;
        self.connections
            .call(Repeat::Idempotent, attempt_timeout, |channel| {
                let request = request.clone();
                async move { LogServiceClient::new(channel).check_tail(request).await }
            })
            .await
    }

    /// Trims the log: permanently removes all records below `to`. Idempotent.
    pub async fn trim(&self, to: u64) -> Result<(), Error> {
        let request = TrimRequest { log: self.name.to_string(), to };
        let attempt_timeout = self.connections.options.attempt_timeout;
        self.connections
            .call(Repeat::Idempotent, attempt_timeout, |channel| {
                let request = request.clone();
                async move { LogServiceClient::new(channel).trim(request).await }
            })
            .await
            .map(drop)
    }
}

//! Reads a log as a stream of batches that continues at another node if its node fails.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::{Status, Streaming};

use crate::connections::Connections;
use crate::error::{Error, Failure, Outcome, is_worth_retrying};
use crate::proto::log_service_client::LogServiceClient;
use crate::proto::{ReadReply, ReadRequest, Reason, Record};

/// The maximum length of a message that is accepted from a server, in bytes. A batch of records fits, even if it ends with a record
/// of the maximum length.
const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;
/// A stream that lasted this long worked, even if no reply came. Its node has found the tail, because a node that cannot find it ends the
/// stream sooner. This matters only at older nodes: others send a reply without records as soon as they have found the tail.
const WORKS_AFTER: Duration = Duration::from_secs(20);

/// The range and the way of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The first position to read. None: the first one that is not trimmed.
    pub from: Option<u64>,
    /// The end of the read (exclusive). None: the tail at the time of the call, or no end with `follow`.
    pub to: Option<u64>,
    /// The maximum number of records. None: no limit.
    pub limit: Option<u64>,
    /// Whether to wait for more records at the tail instead of ending there.
    pub follow: bool,
    /// Whether to read only from the answering node's own disk. The read fails if a record is missing there.
    pub local_only: bool,
}

impl ReadOptions {
    /// Reads everything from a position up to the tail.
    pub fn from(position: u64) -> Self {
        ReadOptions { from: Some(position), ..Self::default() }
    }
}

/// Records at consecutive positions. Positions between two batches hold no record.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadBatch {
    /// The position of the first record.
    pub first: u64,
    /// The records; at least one.
    pub records: Vec<Record>,
    /// How many of them came from a server other than the one that answered.
    pub remote: u64,
}

/// A read in progress.
#[derive(Debug)]
pub struct Reader {
    log: String,
    connections: Arc<Connections>,
    /// What is still to be read.
    rest: ReadOptions,
    stream: Option<Open>,
    /// The number of failures since a stream last worked.
    failures: usize,
    /// When to give up, unless a stream works before. None if there was no failure since a stream last worked.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Open {
    /// The address that serves it.
    at: usize,
    since: Instant,
    replies: Streaming<ReadReply>,
}

impl Reader {
    pub(crate) fn new(log: &str, connections: Arc<Connections>, rest: ReadOptions) -> Self {
        Reader { log: log.to_owned(), connections, rest, stream: None, failures: 0, deadline: None }
    }

    /// Returns the next records, or None at the end. If a node fails, another one continues after the last record that was read.
    /// Dropping the future and calling this again loses nothing.
    ///
    /// # Errors
    /// No node could continue within [`crate::Options::operation_timeout`] of a failure, or none ever can. How long the read lasted before
    /// does not count: a reader that waits at the tail survives any number of failures.
    pub async fn next(&mut self) -> Result<Option<ReadBatch>, Error> {
        loop {
            if self.rest.limit == Some(0) {
                return Ok(None);
            }
            let (at, outcome) = match &mut self.stream {
                Some(open) => (open.at, open.replies.message().await),
                None => {
                    let at = self.connections.current();
                    match self.open(at).await {
                        Ok(replies) => {
                            self.stream = Some(Open { at, since: Instant::now(), replies });
                            continue;
                        }
                        Err(status) => (at, Err(status)),
                    }
                }
            };
            match outcome {
                Ok(Some(reply)) => {
                    if let Some(batch) = self.advance(reply)? {
                        return Ok(Some(batch));
                    }
                }
                Ok(None) => {
                    self.stream = None;
                    return Ok(None);
                }
                Err(status) => self.recover(at, &status).await?,
            }
        }
    }

    async fn open(&self, at: usize) -> Result<Streaming<ReadReply>, Status> {
        let unavailable = |failure: Failure| crate::error::status(Outcome::No, &failure);
        let channel = self.connections.channel(at).await.map_err(unavailable)?;
        let request = ReadRequest {
            log: self.log.clone(),
            from: self.rest.from,
            to: self.rest.to,
            limit: self.rest.limit.unwrap_or(0),
            follow: self.rest.follow,
            local_only: self.rest.local_only,
        };
        let mut client = LogServiceClient::new(channel).max_decoding_message_size(MAX_REPLY_BYTES);
        let opening = timeout(self.connections.options.attempt_timeout, client.read(request));
        match opening.await {
            Ok(response) => {
                let stream = response?.into_inner();
                self.connections.note_answer();
                Ok(stream)
            }
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Handles a reply. Its first position must follow the last one that was read, or pads that do, because no other gap may be skipped.
    fn advance(&mut self, reply: ReadReply) -> Result<Option<ReadBatch>, Error> {
        // A reply without records comes while this reader waits at the tail. It shows that the node serves the log.
        (self.failures, self.deadline) = (0, None);
        let count = reply.records.len() as u64;
        if count == 0 && reply.pads == 0 {
            return Ok(None);
        }
        if let Some(wanted) = self.rest.from
            && wanted.saturating_add(reply.pads) != reply.first
        {
            let message = format!("position {wanted} was wanted, the server sent {}", reply.first);
            let next = "are the versions of client and server compatible?";
            return Err(Error::DidNotHappen(Failure::new(Reason::Damaged, message, next)));
        }
        self.rest.from = Some(reply.first.saturating_add(count));
        self.rest.limit = self.rest.limit.map(|limit| limit.saturating_sub(count));
        if count == 0 {
            return Ok(None);
        }
        Ok(Some(ReadBatch { first: reply.first, records: reply.records, remote: reply.remote }))
    }

    /// Waits before the next attempt, or gives up with an error.
    async fn recover(&mut self, at: usize, status: &Status) -> Result<(), Error> {
        let ended = self.stream.take();
        let (_, mut failure) = self.connections.parsed(at, status).await;
        if !is_worth_retrying(failure.reason) {
            return Err(Error::DidNotHappen(failure));
        }
        let now = Instant::now();
        let options = &self.connections.options;
        if ended.is_some_and(|open| now.duration_since(open.since) > WORKS_AFTER.max(options.attempt_timeout))
        {
            (self.failures, self.deadline) = (0, None);
        }
        let deadline = *self.deadline.get_or_insert(now + options.operation_timeout);
        self.connections.failed(at, &failure);
        self.failures += 1;
        let wait = match self.failures % self.connections.len() {
            0 => options.backoff((self.failures / self.connections.len()) as u32 - 1),
            _ => Duration::ZERO,
        };
        if now + wait >= deadline || self.connections.is_hopeless() {
            if failure.next.is_empty() {
                failure.next = "`atoll status` shows whether enough servers are up".to_owned();
            }
            return Err(Error::DidNotHappen(failure));
        }
        sleep(wait).await;
        Ok(())
    }
}

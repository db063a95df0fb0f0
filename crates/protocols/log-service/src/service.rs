//! What the protocol needs of a log service: conditional publishes, reads that may be old but never wrong, purges and deletions. `nats/`
//! has the real one; `testing/` has one in memory, with faults.

use std::fmt;
use std::time::Duration;

use atoll_core::BoxFuture;
use bytes::Bytes;

/// The stream of a loglet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// What the subjects of its messages begin with.
    pub subject: String,
}

/// The subjects of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The messages of the log.
    Log,
    /// Marks, which prove a tail. A mark replaces the one before it.
    Mark,
}

/// A request to the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates the stream, with this many replicas; None for as many as the service can make durable. Sent once for each name, ever.
    Create {
        /// How many.
        replicas: Option<u8>,
    },
    /// Finds out whether the stream is there, and as it was created.
    Look,
    /// Deletes the stream.
    Delete,
    /// Adds a message.
    Publish {
        /// On this subject.
        on: Subject,
        /// If it is given: only if the newest message of the log has this sequence; 0 if there is none.
        expected: Option<u64>,
        /// The message.
        data: Bytes,
    },
    /// Reads the newest message of the log. It may be an older one.
    Last,
    /// Reads the messages from this sequence on, of all subjects, without a gap. Newer ones may be missing.
    Next {
        /// The sequence.
        from: u64,
        /// How many, at most.
        most: u32,
    },
    /// Deletes all messages below this sequence.
    Purge {
        /// The sequence.
        below: u64,
    },
}

impl Request {
    /// Returns whether it changes nothing.
    pub fn is_read(&self) -> bool {
        matches!(self, Request::Look | Request::Last | Request::Next { .. })
    }
}

/// A message in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its sequence.
    pub seq: u64,
    /// Its subject.
    pub on: Subject,
    /// The message.
    pub data: Bytes,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The stream exists now, with this many replicas.
    Created(u8),
    /// The message is durable, and has this sequence.
    Published(u64),
    /// What was read.
    Messages(Vec<Stored>),
    /// It is done.
    Done,
}

/// Why a request was not answered with what was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The newest message of the log has another sequence, or might soon. This publish did not happen.
    #[error("the log goes on elsewhere")]
    Refused,
    /// There is no such stream. Nothing happened.
    #[error("there is no such stream")]
    Missing,
    /// The stream is not as it was created, for this reason. Nothing happened.
    #[error("the stream was altered: {0}")]
    Altered(String),
    /// The service refuses this node. Nothing happened.
    #[error("the log service refuses the credentials in the environment of this node")]
    Credentials,
    /// The servers have no JetStream for this account. Nothing happened.
    #[error("the servers have no JetStream for this account")]
    NoJetStream,
    /// The service cannot do it. Nothing happened.
    #[error("the log service refuses: {0}")]
    Denied(String),
    /// Too many requests are under way. Nothing happened.
    #[error("too many requests to the log service are in progress")]
    Busy,
    /// No connection, or nobody leads the stream at the moment. Nothing happened.
    #[error("the log service cannot be reached")]
    NotReached,
    /// No answer came in time. Whether it happened, or still will, is unknown.
    #[error("the log service does not answer; whether it happened is unknown")]
    NoAnswer,
}

impl Fault {
    /// Returns whether the same request may succeed soon.
    pub fn passes(&self) -> bool {
        matches!(self, Fault::Refused | Fault::Busy | Fault::NotReached | Fault::NoAnswer)
    }
}

/// A log service. A future may be dropped; whether its request then happens is unknown.
pub trait Service: Send + Sync + fmt::Debug {
    /// Makes a request about a stream.
    fn ask(&self, stream: Stream, request: Request) -> BoxFuture<'static, Result<Answer, Fault>>;

    /// Waits until there may be a message of the log above this sequence, and for `patience` at most. A hint: it may end early or late.
    fn news(&self, stream: Stream, above: u64, patience: Duration) -> BoxFuture<'static, ()>;
}

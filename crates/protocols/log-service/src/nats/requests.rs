//! The requests, in terms of subjects, headers and JSON documents.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, StatusCode};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::json;

use super::answers::{Config, Reply, subject};
use crate::service::{Answer, Fault, Request, Stored, Stream, Subject};

/// A publish with this header succeeds only if the newest message of its subject has that sequence.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";
/// A publish with this header succeeds only if the subject belongs to that stream.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
/// A message with this header replaces all others of its subject.
const ROLLUP: &str = "Nats-Rollup";
const SEQUENCE: &str = "Nats-Sequence";
const SUBJECT: &str = "Nats-Subject";
const LAST_SEQUENCE: &str = "Nats-Last-Sequence";
/// The end of a batch of messages.
const END_OF_BATCH: u16 = 204;
/// The most bytes of messages in one answer, unless one message is larger.
const BATCH_BYTES: u32 = 1 << 20;
/// The least that a server must take as one message, with its headers.
const PAYLOAD_BYTES: usize = 1 << 20;
/// How many replicas a stream has in a cluster, unless an operator wants another number.
const USUAL_REPLICAS: u8 = 3;

/// Makes a request about a stream.
pub(super) async fn ask(
    client: &Client,
    stream: &Stream,
    request: Request,
    timeout: Duration,
) -> Result<Answer, Fault> {
    let api = Api { client, stream, timeout };
    match request {
        Request::Create { replicas } => api.create(replicas).await.map(Answer::Created),
        Request::Look => api.look().await.map(|()| Answer::Done),
        Request::Delete => api.simple("DELETE", Bytes::new()).await.map(|()| Answer::Done),
        Request::Publish { on, expected, data } => {
            api.publish(on, expected, data).await.map(Answer::Published)
        }
        Request::Last => {
            let log = subject(stream, "log");
            api.messages(json!({ "last_by_subj": log }), true).await.map(Answer::Messages)
        }
        Request::Next { from, most } => {
            let wanted = json!({ "seq": from, "batch": most, "max_bytes": BATCH_BYTES });
            api.messages(wanted, false).await.map(Answer::Messages)
        }
        Request::Purge { below: 0 } => Ok(Answer::Done),
        Request::Purge { below } => {
            let document = json!({ "seq": below }).to_string();
            api.simple("PURGE", document.into()).await.map(|()| Answer::Done)
        }
    }
}

/// Waits until there may be a message of the log above a sequence.
pub(super) async fn news(client: &Client, stream: &Stream, above: u64) -> Result<(), Fault> {
    let lost = |_| Fault::NotReached;
    let mut news = client.subscribe(subject(stream, "news")).await.map_err(lost)?;
    // What was published before the server knew of this wait is no news.
    client.flush().await.map_err(|_| Fault::NotReached)?;
    let api = Api { client, stream, timeout: Duration::from_secs(2) };
    let last = api.messages(json!({ "last_by_subj": subject(stream, "log") }), true).await?;
    if last.first().is_some_and(|stored| stored.seq > above) {
        return Ok(());
    }
    while let Some(message) = news.next().await {
        if number(&message, SEQUENCE).is_none_or(|seq| seq > above) {
            return Ok(());
        }
    }
    Err(Fault::NotReached)
}

fn header<'a>(message: &'a Message, name: &'static str) -> Option<&'a str> {
    message.headers.as_ref()?.get(name).map(|value| value.as_str())
}

fn number(message: &Message, name: &'static str) -> Option<u64> {
    header(message, name)?.parse().ok()
}

struct Api<'a> {
    client: &'a Client,
    stream: &'a Stream,
    timeout: Duration,
}

impl Api<'_> {
    async fn request(&self, to: String, request: async_nats::Request) -> Result<Message, Fault> {
        let request = request.timeout(Some(self.timeout));
        self.client.send_request(to, request).await.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => Fault::NotReached,
            RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
                Fault::Denied(error.to_string())
            }
            RequestErrorKind::TimedOut | RequestErrorKind::Other => Fault::NoAnswer,
        })
    }

    async fn about(&self, verb: &str, document: Bytes) -> Result<Reply, Fault> {
        let to = format!("$JS.API.STREAM.{verb}.{}", self.stream.name);
        let message = self.request(to, async_nats::Request::new().payload(document)).await?;
        serde_json::from_slice(&message.payload).map_err(|_| Fault::NoAnswer)
    }

    /// Makes a request about the stream whose answer has no content.
    async fn simple(&self, verb: &str, document: Bytes) -> Result<(), Fault> {
        match self.about(verb, document).await?.error {
            Some(error) => Err(error.of_request()),
            None => Ok(()),
        }
    }

    /// Finds out whether the servers have what a log needs, and creates the stream.
    async fn create(&self, replicas: Option<u8>) -> Result<u8, Fault> {
        let info = self.request("$JS.API.INFO".to_owned(), async_nats::Request::new()).await;
        let info = info.map_err(|fault| match fault {
            Fault::NotReached => Fault::NoJetStream,
            other => other,
        })?;
        let info: Reply = serde_json::from_slice(&info.payload).map_err(|_| Fault::NoAnswer)?;
        if let Some(error) = info.error {
            return Err(error.of_request());
        }
        if self.client.max_payload() < PAYLOAD_BYTES {
            return Err(Fault::Denied(format!("max_payload is below {PAYLOAD_BYTES} bytes")));
        }
        let mut wanted = replicas.unwrap_or(USUAL_REPLICAS);
        loop {
            let config = Config::of(self.stream, wanted);
            let document = serde_json::to_vec(&config).map_err(|error| Fault::Denied(error.to_string()))?;
            match self.about("CREATE", document.into()).await?.error {
                // One server alone keeps one replica.
                Some(error) if error.is_alone() && replicas.is_none() && wanted > 1 => wanted = 1,
                Some(error) => return Err(error.of_request()),
                None => return Ok(wanted),
            }
        }
    }

    async fn look(&self) -> Result<(), Fault> {
        let reply = self.about("INFO", Bytes::new()).await?;
        if let Some(error) = reply.error {
            return Err(error.of_request());
        }
        let config = reply.config.ok_or(Fault::NoAnswer)?;
        match config.altered(self.stream) {
            Some(what) => Err(Fault::Altered(what.to_owned())),
            None => Ok(()),
        }
    }

    /// Returns why nobody serves the stream. The request that found it out was not done.
    async fn unserved(&self) -> Fault {
        match tokio::time::timeout(self.timeout / 2, self.look()).await {
            Ok(Err(fault)) if !fault.passes() => fault,
            _ => Fault::NotReached,
        }
    }

    async fn publish(&self, on: Subject, expected: Option<u64>, data: Bytes) -> Result<u64, Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED_STREAM, self.stream.name.as_str());
        if let Some(expected) = expected {
            headers.insert(EXPECTED, expected.to_string());
        }
        let to = match on {
            Subject::Log => subject(self.stream, "log"),
            Subject::Mark => {
                headers.insert(ROLLUP, "sub");
                subject(self.stream, "mark")
            }
        };
        let request = async_nats::Request::new().headers(headers).payload(data);
        let message = match self.request(to, request).await {
            // Nobody leads the stream, or it does not exist.
            Err(Fault::NotReached) => return Err(self.unserved().await),
            other => other?,
        };
        let reply: Reply = serde_json::from_slice(&message.payload).map_err(|_| Fault::NoAnswer)?;
        match (reply.error, reply.seq) {
            (Some(error), _) => Err(error.of_publish()),
            (None, Some(seq)) => Ok(seq),
            (None, None) => Err(Fault::NoAnswer),
        }
    }

    /// Reads messages from any server of the stream. One that comes alone has no end behind it.
    async fn messages(&self, wanted: serde_json::Value, alone: bool) -> Result<Vec<Stored>, Fault> {
        let inbox = self.client.new_inbox();
        let mut answers = self.client.subscribe(inbox.clone()).await.map_err(|_| Fault::NotReached)?;
        let to = format!("$JS.API.DIRECT.GET.{}", self.stream.name);
        let asked = self.client.publish_with_reply(to, inbox, wanted.to_string().into()).await;
        asked.map_err(|_| Fault::NotReached)?;
        let log = subject(self.stream, "log");
        let mut messages: Vec<Stored> = Vec::new();
        while let Some(message) = answers.next().await {
            match message.status.map(|status| status.as_u16()) {
                None => {}
                Some(END_OF_BATCH) => return Ok(messages),
                Some(status) if status == StatusCode::NOT_FOUND.as_u16() => return Ok(messages),
                Some(status) if status == StatusCode::NO_RESPONDERS.as_u16() => {
                    return Err(self.unserved().await);
                }
                Some(_) => return Err(Fault::NoAnswer),
            }
            let seq = number(&message, SEQUENCE).ok_or(Fault::NoAnswer)?;
            let before = messages.last().map_or(0, |stored| stored.seq);
            if !alone && number(&message, LAST_SEQUENCE) != Some(before) {
                // One was lost on its way.
                return Err(Fault::NoAnswer);
            }
            let on = if header(&message, SUBJECT) == Some(&log) { Subject::Log } else { Subject::Mark };
            messages.push(Stored { seq, on, data: message.payload });
            if alone {
                return Ok(messages);
            }
        }
        Err(Fault::NoAnswer)
    }
}

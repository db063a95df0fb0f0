//! The JSON documents of JetStream's API, as far as this protocol needs them, and what their errors mean.

use serde::{Deserialize, Serialize};

use crate::service::{Fault, Stream};

/// Codes of errors (`err_code`).
const NO_PEERS: u16 = 10005;
const NOT_AVAILABLE: u16 = 10008;
const NOT_FOR_ACCOUNT: u16 = 10039;
const NOT_LEADER: u16 = 10009;
const STREAM_NOT_FOUND: u16 = 10059;
const WRONG_STREAM: u16 = 10060;
const WRONG_LAST: u16 = 10071;
const NO_REPLICAS_ALONE: u16 = 10074;
const NOT_ENABLED: u16 = 10076;
const SEALED: u16 = 10109;
const WRONG_LAST_IN_FLIGHT: u16 = 10164;
const TOO_LARGE: u16 = 10054;

/// An error of the API.
#[derive(Debug, Deserialize)]
pub(super) struct ApiError {
    #[serde(default)]
    err_code: u16,
    #[serde(default)]
    description: String,
}

impl ApiError {
    /// Whether the servers are no cluster, so that a stream can have one replica only.
    pub(super) fn is_alone(&self) -> bool {
        self.err_code == NO_REPLICAS_ALONE
    }

    /// Returns what the error says about a publish. Whatever does not say for certain that nothing happened is unknown.
    pub(super) fn of_publish(self) -> Fault {
        match self.err_code {
            WRONG_LAST | WRONG_LAST_IN_FLIGHT => Fault::Refused,
            SEALED => Fault::Altered("it is sealed".to_owned()),
            WRONG_STREAM => Fault::Altered("its subject belongs to another stream".to_owned()),
            STREAM_NOT_FOUND | NOT_FOR_ACCOUNT | NOT_ENABLED | TOO_LARGE => self.of_request(),
            code => {
                tracing::warn!(code, why = self.description, "the log service failed to publish");
                Fault::NoAnswer
            }
        }
    }

    /// Returns what it says about another request. Those may be repeated, so it does not matter whether they happened.
    pub(super) fn of_request(self) -> Fault {
        match self.err_code {
            STREAM_NOT_FOUND => Fault::Missing,
            NOT_FOR_ACCOUNT | NOT_ENABLED => Fault::NoJetStream,
            NOT_AVAILABLE | NOT_LEADER => Fault::NotReached,
            NO_PEERS => Fault::Denied(format!("too few servers: {}", self.description)),
            _ => Fault::Denied(self.description),
        }
    }
}

/// The answer to a publish, or to a request about a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Reply {
    pub(super) error: Option<ApiError>,
    /// Of a publish.
    pub(super) seq: Option<u64>,
    /// Of a stream.
    pub(super) config: Option<Config>,
}

/// Copies of messages go to another subject as they are stored: without their content, as news.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Republish {
    src: String,
    dest: String,
    #[serde(default)]
    headers_only: bool,
}

/// The configuration of a stream. What is not listed has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Config {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    subjects: Vec<String>,
    retention: String,
    max_msgs: i64,
    max_bytes: i64,
    max_age: i64,
    #[serde(default)]
    max_msgs_per_subject: i64,
    #[serde(default)]
    max_msg_size: i64,
    discard: String,
    storage: String,
    pub(super) num_replicas: u8,
    #[serde(default)]
    sealed: bool,
    #[serde(default)]
    deny_delete: bool,
    #[serde(default)]
    deny_purge: bool,
    #[serde(default)]
    allow_rollup_hdrs: bool,
    #[serde(default)]
    allow_direct: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    republish: Option<Republish>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mirror: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sources: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject_transform: Option<serde_json::Value>,
}

/// The subjects of a stream: of the log, of marks, and of news, which are not stored.
pub(super) fn subject(stream: &Stream, what: &str) -> String {
    format!("{}.{what}", stream.subject)
}

impl Config {
    pub(super) fn of(stream: &Stream, num_replicas: u8) -> Self {
        let [log, mark, news] = ["log", "mark", "news"].map(|what| subject(stream, what));
        Config {
            name: stream.name.clone(),
            description: "a segment of a log of Atoll: do not alter".to_owned(),
            subjects: vec![log.clone(), mark],
            retention: "limits".to_owned(),
            max_msgs: -1,
            max_bytes: -1,
            max_age: 0,
            max_msgs_per_subject: -1,
            max_msg_size: -1,
            // Without limits, nothing is ever discarded.
            discard: "new".to_owned(),
            storage: "file".to_owned(),
            num_replicas,
            sealed: false,
            deny_delete: true,
            deny_purge: false,
            allow_rollup_hdrs: true,
            allow_direct: true,
            republish: Some(Republish { src: log, dest: news, headers_only: true }),
            mirror: None,
            sources: None,
            subject_transform: None,
        }
    }

    /// Returns what was altered so that the log is not safe in the stream, or cannot be used. An operator may change the rest.
    pub(super) fn altered(&self, stream: &Stream) -> Option<&'static str> {
        let made = Config::of(stream, self.num_replicas);
        let changes = [
            (self.subjects != made.subjects, "it has other subjects"),
            (self.retention != made.retention, "it has another retention"),
            (self.max_msgs > 0 || self.max_bytes > 0, "it has a limit of messages or bytes"),
            (self.max_msgs_per_subject > 0, "it has a limit of messages"),
            (self.max_age > 0, "its messages have a maximum age"),
            (self.max_msg_size > 0, "its messages have a maximum size"),
            (self.storage != made.storage, "it is not in files"),
            (self.sealed, "it is sealed"),
            (self.deny_purge || !self.allow_rollup_hdrs || !self.allow_direct, "it denies what a log needs"),
            (self.mirror.is_some() || self.sources.is_some(), "it gets messages from other streams"),
            (self.subject_transform.is_some(), "it changes subjects"),
        ];
        changes.into_iter().find_map(|(changed, what)| changed.then_some(what))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_whether_nothing_happened() {
        let of = |err_code| ApiError { err_code, description: "why".to_owned() };
        assert_eq!(of(WRONG_LAST).of_publish(), Fault::Refused);
        assert_eq!(of(STREAM_NOT_FOUND).of_publish(), Fault::Missing);
        assert_eq!(
            of(10077).of_publish(),
            Fault::NoAnswer,
            "a store that failed may have the message elsewhere"
        );
        assert_eq!(of(NOT_ENABLED).of_request(), Fault::NoJetStream);
        assert!(of(NO_REPLICAS_ALONE).is_alone());
    }

    #[test]
    fn an_altered_stream_is_noticed_and_more_replicas_are_not() {
        let stream = Stream { name: "a-1".to_owned(), subject: "a.1".to_owned() };
        let config = Config::of(&stream, 1);
        let read = |json: &str| -> Config { serde_json::from_str(json).unwrap() };
        assert_eq!(read(&serde_json::to_string(&config).unwrap()), config);
        let more = Config { num_replicas: 3, description: "ours".to_owned(), ..config.clone() };
        assert_eq!(more.altered(&stream), None);
        for wrong in [
            Config { max_age: 1, ..config.clone() },
            Config { sealed: true, ..config.clone() },
            Config { subjects: vec!["b".to_owned()], ..config.clone() },
            Config { max_msgs: 9, ..config.clone() },
            Config { allow_direct: false, ..config },
        ] {
            assert!(wrong.altered(&stream).is_some(), "{wrong:?}");
        }
    }
}

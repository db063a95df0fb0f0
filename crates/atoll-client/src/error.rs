//! The errors of calls. Each one says whether the call happened, why it failed, and what to do next. On the wire, a gRPC status and
//! trailers carry the same information.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::proto::Reason;

const HAPPENED: &str = "atoll-happened";
const REASON: &str = "atoll-reason";
const NEXT: &str = "atoll-next";
/// What to do about a node that does not speak HTTP/2 on a connection without TLS.
const NEEDS_TLS: &str = "if the nodes have TLS, clients need it, too: --tls-ca, --tls-cert and --tls-key";
/// What to do when TLS itself fails.
const CHECK_TLS: &str = "do the nodes have TLS? --tls-ca names who signed their certificates, --tls-cert and --tls-key show who asks";

/// The error of a call, after all retries that were possible before its deadline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call did not happen and never will.
    #[error("did not happen: {0}")]
    DidNotHappen(Failure),
    /// Unknown: the call may have happened, or may still happen.
    #[error("unknown whether it happened: {0}")]
    Unknown(Failure),
    /// The call happened, but its answer is missing or incomplete. Do not make it again.
    #[error("happened, but: {0}")]
    Happened(Failure),
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The reason, for programs.
    pub reason: Reason,
    /// A description, for people.
    pub message: String,
    /// What to do next. May be empty.
    pub next: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)?;
        if !self.next.is_empty() {
            write!(f, " ({})", self.next)?;
        }
        Ok(())
    }
}

impl Failure {
    /// Creates a failure.
    pub fn new(reason: Reason, message: impl Into<String>, next: impl Into<String>) -> Self {
        Failure { reason, message: message.into(), next: next.into() }
    }

    /// Returns the failure of a connection on which TLS failed. Nothing was sent.
    pub(crate) fn of_tls(message: impl Into<String>) -> Self {
        Failure::new(Reason::Unavailable, message, CHECK_TLS)
    }

    /// Returns the failure of a connection without TLS to a node that has it.
    pub(crate) fn without_tls(address: &str) -> Self {
        Failure::new(Reason::Unavailable, format!("{address}: this node speaks TLS"), NEEDS_TLS)
    }

    /// Whether one side speaks TLS and the other does not, or they do not accept each other. This does not pass by waiting.
    pub(crate) fn is_of_tls(&self) -> bool {
        self.next == NEEDS_TLS || self.next == CHECK_TLS
    }
}

impl Error {
    /// Returns the reason and the message, whatever the outcome.
    pub fn failure(&self) -> &Failure {
        match self {
            Error::DidNotHappen(failure) | Error::Unknown(failure) | Error::Happened(failure) => failure,
        }
    }

    /// Returns the same error with another reason or message.
    #[must_use]
    pub fn map(self, f: impl FnOnce(Failure) -> Failure) -> Self {
        match self {
            Error::DidNotHappen(failure) => Error::DidNotHappen(f(failure)),
            Error::Unknown(failure) => Error::Unknown(f(failure)),
            Error::Happened(failure) => Error::Happened(f(failure)),
        }
    }

    pub(crate) fn invalid(message: impl Into<String>, next: impl Into<String>) -> Self {
        Error::DidNotHappen(Failure::new(Reason::Invalid, message, next))
    }
}

/// Whether one attempt of a failed operation took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did not happen.
    No,
    /// It happened, although the call failed.
    Yes,
    /// It is unknown.
    Unknown,
}

impl Outcome {
    /// Returns what is known after a further attempt of the same operation. An attempt that did nothing leaves doubt about earlier ones.
    pub(crate) fn and(self, further: Outcome) -> Outcome {
        match (self, further) {
            (Outcome::Yes, _) | (_, Outcome::Yes) => Outcome::Yes,
            (Outcome::Unknown, _) | (_, Outcome::Unknown) => Outcome::Unknown,
            (Outcome::No, Outcome::No) => Outcome::No,
        }
    }

    /// Returns its word in trailers and messages.
    pub fn text(self) -> &'static str {
        match self {
            Outcome::No => "no",
            Outcome::Yes => "yes",
            Outcome::Unknown => "unknown",
        }
    }

    /// Reads a word of [`Outcome::text`]. Others count as unknown.
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "no" => Outcome::No,
            "yes" => Outcome::Yes,
            _ => Outcome::Unknown,
        }
    }
}

/// Returns a gRPC status with the trailers of this API. Characters other than printable ASCII become `?` in the trailers.
pub fn status(happened: Outcome, failure: &Failure) -> Status {
    let mut status = Status::new(code(failure.reason), failure.message.clone());
    let trailers = status.metadata_mut();
    trailers.insert(HAPPENED, MetadataValue::from_static(happened.text()));
    trailers.insert(REASON, MetadataValue::from_static(reason_word(failure.reason)));
    let next: String =
        failure.next.chars().map(|c| if c == ' ' || c.is_ascii_graphic() { c } else { '?' }).collect();
    if let Ok(next) = MetadataValue::try_from(next) {
        trailers.insert(NEXT, next);
    }
    status
}

/// Parses a status. A status without the trailers usually comes from the transport: its outcome is unknown, and another node is
/// worth a try.
pub(crate) fn parse(status: &Status) -> (Outcome, Failure) {
    let text = |key| status.metadata().get(key).and_then(|v| v.to_str().ok());
    let happened = match text(HAPPENED) {
        Some("no") => Outcome::No,
        Some("yes") => Outcome::Yes,
        None if never_handled(status) => Outcome::No,
        _ => Outcome::Unknown,
    };
    let reason = match text(REASON) {
        Some(word) => reason_of(word),
        None if never_handled(status) => Reason::Invalid,
        None => Reason::Unavailable,
    };
    let message = match status.message() {
        "" => status.code().description().to_owned(),
        message => message.to_owned(),
    };
    let next = match text(NEXT) {
        Some(next) => next.to_owned(),
        None => String::new(),
    };
    (happened, Failure { reason, message, next })
}

/// Returns true for the codes that a gRPC server sends itself, without the trailers, before any handler has seen the call: no such
/// method, no permission, or a message too long to be decoded.
fn never_handled(status: &Status) -> bool {
    matches!(status.code(), Code::Unimplemented | Code::Unauthenticated | Code::OutOfRange)
}

/// Returns true if another node, or the same one later, may succeed.
pub(crate) fn is_worth_retrying(reason: Reason) -> bool {
    match reason {
        Reason::Busy
        | Reason::Unavailable
        | Reason::StorageFailed
        | Reason::Stopping
        | Reason::Abandoned
        | Reason::Unspecified => true,
        Reason::Invalid
        | Reason::TooLarge
        | Reason::NoSuchLog
        | Reason::NoSuchTable
        | Reason::LogDeleted
        | Reason::NoSuchKeyspace
        | Reason::KeyspaceLost
        | Reason::LeaseNotHeld
        | Reason::Trimmed
        | Reason::BeyondTail
        | Reason::DiskFull
        | Reason::Refused
        | Reason::Conflict
        | Reason::Forgotten
        | Reason::Unauthenticated
        | Reason::NotAllowed
        | Reason::Damaged => false,
    }
}

fn code(reason: Reason) -> Code {
    match reason {
        Reason::Invalid | Reason::TooLarge => Code::InvalidArgument,
        Reason::NoSuchLog | Reason::NoSuchTable | Reason::NoSuchKeyspace | Reason::LogDeleted => {
            Code::NotFound
        }
        Reason::Trimmed | Reason::BeyondTail => Code::OutOfRange,
        Reason::Busy | Reason::DiskFull => Code::ResourceExhausted,
        Reason::Unavailable | Reason::StorageFailed | Reason::Stopping => Code::Unavailable,
        Reason::Refused | Reason::Forgotten | Reason::LeaseNotHeld => Code::FailedPrecondition,
        Reason::Conflict => Code::Aborted,
        Reason::Unauthenticated => Code::Unauthenticated,
        Reason::NotAllowed => Code::PermissionDenied,
        Reason::Damaged | Reason::KeyspaceLost => Code::DataLoss,
        Reason::Abandoned | Reason::Unspecified => Code::Unknown,
    }
}

const REASONS: [(Reason, &str); 23] = [
    (Reason::Unspecified, "unspecified"),
    (Reason::Invalid, "invalid"),
    (Reason::TooLarge, "too-large"),
    (Reason::NoSuchLog, "no-such-log"),
    (Reason::Trimmed, "trimmed"),
    (Reason::BeyondTail, "beyond-tail"),
    (Reason::Busy, "busy"),
    (Reason::Unavailable, "unavailable"),
    (Reason::DiskFull, "disk-full"),
    (Reason::StorageFailed, "storage-failed"),
    (Reason::Stopping, "stopping"),
    (Reason::Refused, "refused"),
    (Reason::Conflict, "conflict"),
    (Reason::Damaged, "damaged"),
    (Reason::Abandoned, "abandoned"),
    (Reason::NoSuchTable, "no-such-table"),
    (Reason::Forgotten, "forgotten"),
    (Reason::LogDeleted, "log-deleted"),
    (Reason::NoSuchKeyspace, "no-such-keyspace"),
    (Reason::KeyspaceLost, "keyspace-lost"),
    (Reason::LeaseNotHeld, "lease-not-held"),
    (Reason::Unauthenticated, "unauthenticated"),
    (Reason::NotAllowed, "not-allowed"),
];

/// Returns the reason as trailers and `--json` spell it.
pub(crate) fn reason_word(reason: Reason) -> &'static str {
    REASONS.iter().find(|(r, _)| *r == reason).map_or("unspecified", |(_, word)| word)
}

/// Reads a word of [`reason_word`].
pub(crate) fn reason_of(word: &str) -> Reason {
    REASONS.iter().find(|(_, w)| *w == word).map_or(Reason::Unspecified, |(reason, _)| *reason)
}

impl Reason {
    /// Returns the reason in one word, as trailers and `--json` spell it.
    pub fn word(self) -> &'static str {
        reason_word(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_round_trip_keeps_outcome_reason_and_advice() {
        for (reason, _) in REASONS {
            for happened in [Outcome::No, Outcome::Yes, Outcome::Unknown] {
                let failure = Failure::new(reason, "the disk of node 2 is full", "trim, or add space");
                assert_eq!(parse(&status(happened, &failure)), (happened, failure));
            }
        }
    }

    #[test]
    fn every_reason_has_a_word_of_its_own() {
        for value in 0..REASONS.len() {
            let reason = Reason::try_from(i32::try_from(value).expect("small")).expect("dense");
            assert_eq!(reason_of(reason_word(reason)), reason);
            let expected =
                reason.as_str_name().trim_start_matches("REASON_").to_lowercase().replace('_', "-");
            assert_eq!(reason_word(reason), expected);
        }
        let beyond = i32::try_from(REASONS.len()).expect("small");
        assert!(Reason::try_from(beyond).is_err(), "a new reason needs a word");
    }

    #[test]
    fn what_the_transport_says_is_unknown() {
        let (happened, failure) = parse(&Status::unavailable("broken pipe"));
        assert_eq!(happened, Outcome::Unknown);
        assert!(is_worth_retrying(failure.reason));
        let (happened, failure) = parse(&Status::unimplemented(""));
        assert_eq!(happened, Outcome::No);
        assert!(!is_worth_retrying(failure.reason));
    }

    #[test]
    fn advice_with_odd_characters_still_travels() {
        let failure = Failure::new(Reason::Refused, "müde", "später\nnochmal");
        let (_, back) = parse(&status(Outcome::No, &failure));
        assert_eq!(back.next, "sp?ter?nochmal");
        assert_eq!(back.message, "müde");
    }
}

//! A history as a file of JSON lines.
//!
//! The first line may be a head: `{"type": "map", "initial": "empty"}`. `initial` is `empty` (default: no key was ever written) or
//! `unknown`. Without a head, the caller names the type. Each other line is one operation:
//!
//! ```json
//! {"client": 1, "call": 10, "return": 15, "outcome": "yes", "do": {"put": {"key": "a", "value": 5}}, "result": "done"}
//! {"client": 2, "call": 12, "return": 19, "outcome": "yes", "do": {"get": {"key": "a"}}, "result": {"row": {"value": 5}}}
//! {"client": 1, "call": 21, "return": null, "outcome": "unknown", "do": {"delete": {"key": "a", "expect": "present"}}}
//! ```
//!
//! | field | meaning |
//! | --- | --- |
//! | `client` | the number of the client |
//! | `call` | when it called, in ns of a clock that all clients share |
//! | `return` | when it was answered, by the same clock. Needed if the outcome is `yes` |
//! | `outcome` | `yes`: it happened, with this result (a refused condition is a result). `no`: it did not happen and never will. `unknown`: it may happen at any time after the call, or never |
//! | `do` | the request; see the data type in `types/` |
//! | `result` | the answer. Needed if the outcome is `yes`, and not allowed otherwise |
//! | `object` | for registers, sets, counters and locks: which one. The default is the empty name |

use std::io::{self, BufRead, Read};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use crate::types::{DataType, Type};

/// Maximum length of a line, in bytes.
pub const MAX_LINE_BYTES: u64 = 1 << 20;
/// Maximum number of operations.
pub const MAX_OPERATIONS: usize = 20_000_000;

/// Whether an operation happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Yes, with the result that the line has.
    Yes,
    /// No, and it never will.
    No,
    /// It may happen at any time after its call, or never.
    Unknown,
}

/// What holds before the first operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Initial {
    /// No key was ever written.
    #[default]
    Empty,
    /// Anything.
    Unknown,
}

/// An operation.
#[derive(Debug)]
pub struct Operation<T: DataType> {
    /// The number of its line, from 1.
    pub line: usize,
    /// The client.
    pub client: u64,
    /// The time of the call.
    pub call: i64,
    /// The time of the answer.
    pub returned: Option<i64>,
    /// Whether it happened.
    pub outcome: Outcome,
    /// Which object it is about; empty for types without objects.
    pub object: String,
    /// The request.
    pub request: T::Request,
    /// The answer, if the outcome is yes.
    pub answer: Option<T::Answer>,
}

impl<T: DataType> Operation<T> {
    /// Returns its keys.
    pub fn keys(&self) -> Vec<&str> {
        T::keys(&self.object, &self.request)
    }
}

/// A history.
#[derive(Debug)]
pub struct History<T: DataType> {
    /// What holds before the first operation.
    pub initial: Initial,
    /// The operations, in the order of the file.
    pub operations: Vec<Operation<T>>,
}

/// Why a file is not a history.
#[derive(Debug, Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It has no operation.
    #[error("it has no operation: each line must be one, like {EXAMPLE}")]
    Empty,
    /// Nobody said what the operations are about.
    #[error(
        "nothing says which data type it is about: begin the file with {{\"type\": \"map\"}}, or pass --type; allowed: {}",
        Type::names()
    )]
    NoType,
    /// The first line names another type.
    #[error("line 1 says that it is about a {head}, and --type says {asked}")]
    OtherType {
        /// The type in the file.
        head: Type,
        /// The type that was requested.
        asked: Type,
    },
    /// A line is not JSON, or not of the right form.
    #[error("line {line}: {what}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong, and what is allowed.
        what: String,
    },
}

/// An operation as an example in an error.
const EXAMPLE: &str = r#"{"client": 1, "call": 10, "return": 15, "outcome": "yes", "do": {"get": {"key": "a"}}, "result": "absent"}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    #[serde(rename = "type")]
    name: String,
    #[serde(default)]
    initial: Initial,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "Q: DeserializeOwned, A: DeserializeOwned"))]
struct Line<Q, A> {
    client: u64,
    call: i64,
    #[serde(rename = "return", default)]
    returned: Option<i64>,
    outcome: Outcome,
    #[serde(default)]
    object: Option<String>,
    #[serde(rename = "do")]
    request: Q,
    #[serde(default)]
    result: Option<A>,
}

/// The lines of a file that are not blank, with their numbers.
pub(crate) struct Lines<R> {
    from: R,
    number: usize,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn new(from: R) -> Self {
        Lines { from, number: 0, line: Vec::new() }
    }

    /// Reads the next line. False at the end.
    fn read(&mut self) -> Result<bool, InputError> {
        loop {
            self.line.clear();
            self.number += 1;
            let read = (&mut self.from).take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.line)?;
            if read as u64 > MAX_LINE_BYTES {
                let what = format!("it has more than {MAX_LINE_BYTES} bytes, the maximum");
                return Err(InputError::Line { line: self.number, what });
            }
            if read == 0 {
                return Ok(false);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn wrong(&self, what: impl Into<String>) -> InputError {
        InputError::Line { line: self.number, what: what.into() }
    }

    /// Parses the line that was read.
    fn parse<T: DeserializeOwned>(&self) -> Result<T, InputError> {
        serde_json::from_slice(&self.line).map_err(|error| {
            // The error ends with the position within the line, as if that were a whole text.
            let words = error.to_string();
            let words = words.rsplit_once(" at line ").map_or(words.as_str(), |(words, _)| words);
            self.wrong(format!("column {}: {words}", error.column()))
        })
    }
}

/// A file whose type is known, and whose operations are still to be read.
pub(crate) struct Opened<R> {
    pub kind: Type,
    initial: Initial,
    lines: Lines<R>,
    /// Whether `lines` has read a line that is an operation.
    waiting: bool,
}

/// Reads the head of a file.
pub(crate) fn open<R: BufRead>(from: R, asked: Option<Type>) -> Result<Opened<R>, InputError> {
    let mut lines = Lines::new(from);
    if !lines.read()? {
        return Err(InputError::Empty);
    }
    let first: Value = lines.parse()?;
    if first.get("type").is_none() {
        let kind = asked.ok_or(InputError::NoType)?;
        return Ok(Opened { kind, initial: Initial::Empty, lines, waiting: true });
    }
    let head: Head = lines.parse()?;
    let kind: Type = head.name.parse().map_err(|what: String| lines.wrong(what))?;
    match asked {
        Some(asked) if asked != kind => Err(InputError::OtherType { head: kind, asked }),
        _ => Ok(Opened { kind, initial: head.initial, lines, waiting: false }),
    }
}

impl<R: BufRead> Opened<R> {
    /// Reads the operations.
    pub fn history<T: DataType>(mut self) -> Result<History<T>, InputError> {
        let mut operations = Vec::new();
        while self.waiting || self.lines.read()? {
            self.waiting = false;
            if operations.len() == MAX_OPERATIONS {
                return Err(self.lines.wrong(format!("more than {MAX_OPERATIONS} operations, the maximum")));
            }
            let line: Line<T::Request, T::Answer> = self.lines.parse()?;
            if let Some(what) = senseless::<T>(&line) {
                return Err(self.lines.wrong(what));
            }
            operations.push(Operation {
                line: self.lines.number,
                client: line.client,
                call: line.call,
                returned: line.returned,
                outcome: line.outcome,
                object: line.object.unwrap_or_default(),
                request: line.request,
                answer: line.result,
            });
        }
        match operations.is_empty() {
            true => Err(InputError::Empty),
            false => Ok(History { initial: self.initial, operations }),
        }
    }
}

/// Returns what is contradictory about a line, if anything.
fn senseless<T: DataType>(line: &Line<T::Request, T::Answer>) -> Option<String> {
    if T::keys("", &line.request).is_empty() {
        return Some("it does nothing: \"do\" needs at least one step".to_owned());
    }
    if line.object.is_some() && !T::HAS_OBJECTS {
        return Some(format!("a {} has no \"object\"; its keys are in \"do\"", T::NAME));
    }
    if line.returned.is_some_and(|at| at < line.call) {
        return Some("it returned before it was called".to_owned());
    }
    match (line.outcome, &line.result) {
        (Outcome::Yes, _) if line.returned.is_none() => {
            Some("the outcome is \"yes\", so it needs the time of the answer, \"return\"".to_owned())
        }
        (Outcome::Yes, None) => Some("the outcome is \"yes\", so it needs a \"result\"".to_owned()),
        (Outcome::Yes, Some(answer)) => T::misfit(&line.request, answer)
            .map(|allowed| format!("this is no result of such an operation; allowed: {allowed}")),
        (Outcome::No | Outcome::Unknown, Some(_)) => {
            Some("it has a \"result\", so its outcome is \"yes\"".to_owned())
        }
        (Outcome::No | Outcome::Unknown, None) => None,
    }
}

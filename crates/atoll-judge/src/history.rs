//! A history as a file: what concurrent clients requested, when, and what they were answered.
//!
//! The file has one JSON object per line. The first line is the [`Head`], each other line is an [`Operation`]. `null` stands for a value
//! that is unknown or absent. Unknown fields are ignored. An example:
//!
//! ```json
//! {"kind": "zookeeper", "keys": ["a", "b"], "initial": [[1, 0, 20], null]}
//! {"client": 0, "session": 7, "call": 10, "return": 15, "do": [{"put": [0, 2, {"version": 0}, null]}],
//!  "result": {"ok": {"outs": [{"version": 1}], "stamp": 21}}, "zxid": 21}
//! {"client": 1, "session": 8, "call": 12, "return": 19, "plain": true, "do": [{"get": 0}],
//!  "result": {"ok": {"outs": [{"row": [1, 0, 20]}], "stamp": null}}, "zxid": 20}
//! {"client": 1, "session": 8, "call": 21, "return": null, "do": [{"delete": [0, "present"]}], "result": null, "zxid": null}
//! ```
//!
//! (The example breaks operations over two lines; in a file, each operation is one line.)

use serde::Deserialize;
use thiserror::Error;

/// How the versions of rows are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 0 when the row is created, and one more after each write.
    ZooKeeper,
    /// The stamp of the operation that wrote the row.
    Table,
}

/// A row: value, version, and, in ZooKeeper, the zxid of its last change (otherwise 0).
pub type Row = (i64, i64, i64);

/// Properties of the whole history.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// The interface that the clients used.
    pub kind: Kind,
    /// The names of the keys. Operations use indices into this list.
    pub keys: Vec<String>,
    /// The row of each key before the first operation.
    pub initial: Vec<Option<Row>>,
}

/// A condition on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// Always holds.
    Any,
    /// The key has no row.
    Absent,
    /// The key has a row.
    Present,
    /// The key has a row with this version.
    Version(i64),
}

/// A part of an operation. Keys are indices into [`Head::keys`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Reads a key.
    Get(usize),
    /// Lists the keys that have a row.
    List,
    /// Fails unless the condition holds.
    Check(usize, Expect),
    /// Writes a value if the condition holds. The last field is the session that owns the key if this step creates it.
    Put(usize, i64, Expect, Option<u64>),
    /// Deletes a key if the condition holds.
    Delete(usize, Expect),
    /// Ends a session and deletes the keys that it owns.
    Close(u64),
}

impl Step {
    /// Returns whether the step changes anything when it succeeds.
    pub fn writes(&self) -> bool {
        matches!(self, Step::Put(..) | Step::Delete(..) | Step::Close(_))
    }
}

/// The result of a step, for steps that return something.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Out {
    /// The row that a read found. `null` if it found none.
    Row(i64, i64, i64),
    /// The keys of a list, in ascending order.
    Keys(Vec<usize>),
    /// The version of the row after a write.
    Version(i64),
}

/// Why a step was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// The key has no row, although one was expected.
    Absent,
    /// The key has a row, although none was expected.
    Exists,
    /// The row has another version.
    Version,
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All steps were executed.
    Ok {
        /// One result per step. `null` if the operation succeeded but its results are unknown.
        outs: Option<Vec<Option<Out>>>,
        /// The place of a write in the order of all writes (a zxid, or the version of the database). Later writes have higher stamps.
        /// `null` if it is unknown.
        stamp: Option<i64>,
    },
    /// Nothing was executed.
    Refused {
        /// The step that was refused, if known.
        at: Option<usize>,
        /// The reason, if known.
        why: Option<Refusal>,
    },
}

/// An operation of a client. All its steps, or none of them, take effect at one moment between call and return.
#[derive(Clone, Debug, Deserialize)]
pub struct Operation {
    /// The client. The checks do not use it.
    pub client: u64,
    /// The session of the operation. Operations of one session take effect in the order of their calls.
    pub session: u64,
    /// The time of the call, in ns of a clock that all clients share.
    pub call: i64,
    /// The time of the answer. `null` if there was none: the operation may take effect at any time, or never.
    #[serde(rename = "return")]
    pub returned: Option<i64>,
    /// Whether this is a read that may return an older state. It is checked only against the order of its session.
    #[serde(default)]
    pub plain: bool,
    /// What was requested.
    #[serde(rename = "do")]
    pub steps: Vec<Step>,
    /// What was answered. `null` if that is unknown.
    pub result: Option<Outcome>,
    /// In ZooKeeper, the zxid in the header of the reply.
    #[serde(default)]
    pub zxid: Option<i64>,
}

impl Operation {
    /// Returns whether the operation may change anything.
    pub fn writes(&self) -> bool {
        self.steps.iter().any(Step::writes)
    }
}

/// A whole history.
#[derive(Clone, Debug)]
pub struct History {
    /// The first line of the file.
    pub head: Head,
    /// The other lines.
    pub operations: Vec<Operation>,
}

/// Why a file is not a valid history.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// It has no first line.
    #[error("it is empty")]
    Empty,
    /// A line does not have the required form.
    #[error("line {line}: {error}")]
    Line {
        /// The line number, from 1.
        line: usize,
        /// The error.
        error: serde_json::Error,
    },
    /// A line contradicts itself or the first line.
    #[error("line {line}: {what}")]
    Senseless {
        /// The line number, from 1.
        line: usize,
        /// The contradiction.
        what: &'static str,
    },
}

impl History {
    /// Parses a history.
    ///
    /// # Errors
    /// The text is not a valid history. The error names the line.
    pub fn parse(text: &str) -> Result<Self, HistoryError> {
        let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
        let at = |n: usize| move |error| HistoryError::Line { line: n + 1, error };
        let (n, first) = lines.next().ok_or(HistoryError::Empty)?;
        let head: Head = serde_json::from_str(first).map_err(at(n))?;
        if head.initial.len() != head.keys.len() {
            return Err(HistoryError::Senseless { line: n + 1, what: "as many initial rows as keys" });
        }
        let mut operations = Vec::new();
        for (n, line) in lines {
            let operation: Operation = serde_json::from_str(line).map_err(at(n))?;
            if let Some(what) = senseless(&head, &operation) {
                return Err(HistoryError::Senseless { line: n + 1, what });
            }
            operations.push(operation);
        }
        Ok(History { head, operations })
    }
}

/// Returns what is contradictory about an operation, if anything.
fn senseless(head: &Head, operation: &Operation) -> Option<&'static str> {
    let beyond = operation.steps.iter().any(|step| match step {
        Step::Get(k) | Step::Check(k, _) | Step::Put(k, ..) | Step::Delete(k, _) => *k >= head.keys.len(),
        Step::List | Step::Close(_) => false,
    });
    if beyond {
        return Some("a key that the first line does not name");
    }
    if operation.returned.is_some_and(|at| at < operation.call) {
        return Some("it returned before it was called");
    }
    match &operation.result {
        Some(_) if operation.returned.is_none() => Some("a result that was never returned"),
        Some(Outcome::Ok { outs: Some(outs), .. }) if outs.len() != operation.steps.len() => {
            Some("as many outs as steps")
        }
        _ => None,
    }
}

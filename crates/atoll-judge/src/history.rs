//! A history as a file: what concurrent clients asked, when, and what they were answered.
//!
//! JSON lines. The first is the [`Head`], each other one an [`Operation`]. `null` stands for what is not known or not there; unknown
//! fields are ignored. An example:
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
//! (Here an operation is broken over two lines to be read; in a file it is one.)

use serde::Deserialize;
use thiserror::Error;

/// How versions of rows come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// 0 when created, one more with each write.
    ZooKeeper,
    /// The stamp of the operation that wrote it.
    Table,
}

/// A row: value, version, and at ZooKeeper the zxid of its last change (0 elsewhere).
pub type Row = (i64, i64, i64);

/// What is true of the whole history.
#[derive(Clone, Debug, Deserialize)]
pub struct Head {
    /// Of which interface.
    pub kind: Kind,
    /// Names of the keys; operations use their places in this list.
    pub keys: Vec<String>,
    /// What each key held before the first operation.
    pub initial: Vec<Option<Row>>,
}

/// What must hold of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Expect {
    /// Nothing.
    Any,
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There is one, of this version.
    Version(i64),
}

/// A part of an operation. Keys are places in [`Head::keys`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// Reads a key.
    Get(usize),
    /// Lists the keys that are there.
    List,
    /// Fails unless this holds.
    Check(usize, Expect),
    /// Writes a value if that holds; the last is the session that owns the key if the step creates it.
    Put(usize, i64, Expect, Option<u64>),
    /// Deletes a key if that holds.
    Delete(usize, Expect),
    /// Ends a session: what it owns goes.
    Close(u64),
}

impl Step {
    /// Whether it changes anything when it succeeds.
    pub fn writes(&self) -> bool {
        matches!(self, Step::Put(..) | Step::Delete(..) | Step::Close(_))
    }
}

/// What a step answered, where that says anything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Out {
    /// Of a read that found something; `null` is one that found nothing.
    Row(i64, i64, i64),
    /// Of a list: the keys, in ascending order.
    Keys(Vec<usize>),
    /// Of a write: the version that it left.
    Version(i64),
}

/// Why a step was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// There is none, and there should be one.
    Absent,
    /// There is one, and there should be none.
    Exists,
    /// There is one of another version.
    Version,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All steps were done.
    Ok {
        /// One per step; `null`: done, and what was answered is not known.
        outs: Option<Vec<Option<Out>>>,
        /// Of a write: its place in the order of all writes (zxid, version of the database), which must grow; `null`: not known.
        stamp: Option<i64>,
    },
    /// Nothing was done.
    Refused {
        /// The step that was refused, if that is known.
        at: Option<usize>,
        /// Why, if that is known.
        why: Option<Why>,
    },
}

/// One operation of one client: its steps happen at one moment between call and return, all or none.
#[derive(Clone, Debug, Deserialize)]
pub struct Operation {
    /// Who; of no meaning to the judges.
    pub client: u64,
    /// The session that it was done in: its operations are done in the order of their calls.
    pub session: u64,
    /// When it was called, in ns of a clock that all clients share.
    pub call: i64,
    /// When it was answered; `null`: its effect may come at any time, or never.
    #[serde(rename = "return")]
    pub returned: Option<i64>,
    /// A read that need not be the newest: judged for the order of its session alone.
    #[serde(default)]
    pub plain: bool,
    /// What was asked.
    #[serde(rename = "do")]
    pub steps: Vec<Step>,
    /// What was answered; `null`: nobody knows.
    pub result: Option<Outcome>,
    /// The zxid in front of the reply, at ZooKeeper.
    #[serde(default)]
    pub zxid: Option<i64>,
}

impl Operation {
    /// Whether it may change anything.
    pub fn writes(&self) -> bool {
        self.steps.iter().any(Step::writes)
    }
}

/// A whole history.
#[derive(Clone, Debug)]
pub struct History {
    /// The first line.
    pub head: Head,
    /// The others.
    pub operations: Vec<Operation>,
}

/// A file that is not a history.
#[derive(Debug, Error)]
pub enum HistoryError {
    /// There is no first line.
    #[error("it is empty")]
    Empty,
    /// A line is not what it should be.
    #[error("line {line}: {error}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong.
        error: serde_json::Error,
    },
    /// A line says what cannot be.
    #[error("line {line}: {what}")]
    Senseless {
        /// From 1.
        line: usize,
        /// What cannot be.
        what: &'static str,
    },
}

impl History {
    /// Reads a history.
    ///
    /// # Errors
    /// It is none: the line and what is wrong with it.
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

/// What cannot be about an operation.
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

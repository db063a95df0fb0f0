//! Registers: one value, read, written, and written on the condition that it has a certain value.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DataType;
use crate::cells::Cells;
use crate::planted::{Bug, planted};

/// Registers. `object` names one of several.
#[derive(Debug)]
pub struct Register;

/// What is known of a register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Nothing.
    Unknown,
    /// Its value; null before the first write.
    Holds(Value),
}

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Returns the value.
    Read,
    /// Replaces the value.
    Write {
        /// The new value.
        value: Value,
    },
    /// Replaces the value if it is `expect`.
    WriteIf {
        /// The value that the register must have.
        expect: Value,
        /// The new value.
        value: Value,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The value that was read.
    Value(Value),
    /// The value was replaced.
    Done,
    /// The register had another value.
    Conflict,
}

impl DataType for Register {
    type Cell = Cell;
    type Request = Request;
    type Answer = Answer;

    const NAME: &'static str = "register";
    const HAS_OBJECTS: bool = true;

    fn empty() -> Cell {
        Cell::Holds(Value::Null)
    }

    fn unknown() -> Cell {
        Cell::Unknown
    }

    fn keys<'a>(object: &'a str, _: &'a Request) -> Vec<&'a str> {
        vec![object]
    }

    fn misfit(request: &Request, answer: &Answer) -> Option<&'static str> {
        match (request, answer) {
            (Request::Read, Answer::Value(_))
            | (Request::Write { .. }, Answer::Done)
            | (Request::WriteIf { .. }, Answer::Done | Answer::Conflict) => None,
            (Request::Read, _) => Some("{\"value\": V}"),
            (Request::Write { .. }, _) => Some("\"done\""),
            (Request::WriteIf { .. }, _) => Some("\"done\", \"conflict\""),
        }
    }

    fn writes(request: &Request, answer: Option<&Answer>) -> bool {
        !matches!(request, Request::Read) && answer != Some(&Answer::Conflict)
    }

    fn step(request: &Request, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        match (request, answer) {
            (Request::Read, Some(Answer::Value(value))) => match cells.get(0) {
                Cell::Unknown => {
                    cells.set(0, Cell::Holds(value.clone()));
                    true
                }
                Cell::Holds(held) => held == value,
            },
            (Request::Read, _) => true,
            (Request::Write { value }, _) => {
                cells.set(0, Cell::Holds(value.clone()));
                true
            }
            (Request::WriteIf { expect, value }, answer) => {
                let holds = match cells.get(0) {
                    Cell::Unknown => None,
                    Cell::Holds(held) => Some(held == expect),
                };
                match (answer, holds) {
                    (Some(Answer::Conflict), Some(true)) => planted(Bug::AnyConflict),
                    (Some(Answer::Conflict), _) | (None, Some(false)) => true,
                    (Some(_), Some(false)) => false,
                    _ => {
                        cells.set(0, Cell::Holds(value.clone()));
                        true
                    }
                }
            }
        }
    }

    fn request_words(request: &Request) -> String {
        match request {
            Request::Read => "read".to_owned(),
            Request::Write { value } => format!("write {value}"),
            Request::WriteIf { expect, value } => format!("write {value} if {expect}"),
        }
    }

    fn answer_words(answer: &Answer) -> String {
        match answer {
            Answer::Value(value) => value.to_string(),
            Answer::Done => "done".to_owned(),
            Answer::Conflict => "conflict".to_owned(),
        }
    }

    fn seen(request: &Request, answer: &Answer) -> Vec<(usize, Value)> {
        match (request, answer) {
            (Request::Read, Answer::Value(value)) => vec![(0, value.clone())],
            (Request::WriteIf { expect, .. }, Answer::Done) => vec![(0, expect.clone())],
            _ => Vec::new(),
        }
    }

    fn written(request: &Request) -> Vec<(usize, Value)> {
        match request {
            Request::Read => Vec::new(),
            Request::Write { value } | Request::WriteIf { value, .. } => vec![(0, value.clone())],
        }
    }
}

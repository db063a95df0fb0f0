//! Counters: numbers are added, and the sum is read.

use serde::{Deserialize, Serialize};

use super::DataType;
use crate::cells::Cells;

/// Counters. `object` names one of several.
#[derive(Debug)]
pub struct Counter;

/// What is known of a counter: None if nothing is, otherwise its value.
pub type Cell = Option<i64>;

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Adds a number.
    Add {
        /// The number; may be negative.
        by: i64,
    },
    /// Returns the sum.
    Read,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The sum that was read, or the sum after an addition.
    Value(i64),
    /// The number was added; the sum is not returned.
    Done,
}

impl DataType for Counter {
    type Cell = Cell;
    type Request = Request;
    type Answer = Answer;

    const NAME: &'static str = "counter";
    const HAS_OBJECTS: bool = true;

    fn empty() -> Cell {
        Some(0)
    }

    fn unknown() -> Cell {
        None
    }

    fn keys<'a>(object: &'a str, _: &'a Request) -> Vec<&'a str> {
        vec![object]
    }

    fn misfit(request: &Request, answer: &Answer) -> Option<&'static str> {
        match (request, answer) {
            (Request::Read, Answer::Done) => Some("{\"value\": N}"),
            _ => None,
        }
    }

    fn writes(request: &Request, _: Option<&Answer>) -> bool {
        matches!(request, Request::Add { .. })
    }

    fn step(request: &Request, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        let by = if let Request::Add { by } = request { *by } else { 0 };
        let sum = cells.get(0).map(|held| held.wrapping_add(by));
        match (sum, answer) {
            (Some(sum), Some(Answer::Value(told))) if sum != *told => return false,
            (None, Some(Answer::Value(told))) => cells.set(0, Some(*told)),
            (sum, _) => cells.set(0, sum),
        }
        true
    }

    fn request_words(request: &Request) -> String {
        match request {
            Request::Add { by } => format!("add {by}"),
            Request::Read => "read".to_owned(),
        }
    }

    fn answer_words(answer: &Answer) -> String {
        match answer {
            Answer::Value(value) => value.to_string(),
            Answer::Done => "done".to_owned(),
        }
    }
}

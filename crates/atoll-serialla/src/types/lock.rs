//! Locks with fencing numbers: at most one holder at a time, and every holder has a higher number than all before it.
//!
//! A lease that may run out is recorded as an `expire` of unknown outcome: it may take effect at any time after its call, or never.

use serde::{Deserialize, Serialize};

use super::DataType;
use crate::cells::Cells;

/// Locks. `object` names one of several.
#[derive(Debug)]
pub struct Lock;

/// What is known of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Nothing.
    Unknown,
    /// Nobody holds it.
    Free {
        /// The highest fencing number that is known to have been given.
        last: u64,
    },
    /// Somebody holds it.
    Held {
        /// The holder's number; None for a holder that was never told its number.
        fence: Option<u64>,
        /// The highest fencing number that is known to have been given.
        last: u64,
    },
}

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Takes the lock if nobody holds it.
    Acquire,
    /// Gives the lock back.
    Release {
        /// The holder's fencing number.
        fence: u64,
    },
    /// Asks whether the lock is still held with this number.
    Holds {
        /// The fencing number.
        fence: u64,
    },
    /// Takes the lock away, as a lease does when it ends. Without effect if nobody holds it with this number.
    Expire {
        /// The holder's fencing number; null for any holder.
        fence: Option<u64>,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The lock was taken, with this number.
    Fence(u64),
    /// Somebody else holds the lock.
    Held,
    /// The lock was given back, or taken away.
    Done,
    /// The lock was not held with this number.
    NotHeld,
    /// Whether it is held with this number.
    Holds(bool),
}

/// Whether a lock is held with a number: None if that cannot be said.
fn held_with(cell: &Cell, fence: u64) -> Option<bool> {
    match cell {
        Cell::Unknown => None,
        Cell::Free { .. } => Some(false),
        Cell::Held { fence: Some(held), .. } => Some(*held == fence),
        Cell::Held { fence: None, last } => (fence <= *last).then_some(false),
    }
}

fn last(cell: &Cell) -> u64 {
    match cell {
        Cell::Unknown => 0,
        Cell::Free { last } | Cell::Held { last, .. } => *last,
    }
}

impl DataType for Lock {
    type Cell = Cell;
    type Request = Request;
    type Answer = Answer;

    const NAME: &'static str = "lock";
    const HAS_OBJECTS: bool = true;

    fn empty() -> Cell {
        Cell::Free { last: 0 }
    }

    fn unknown() -> Cell {
        Cell::Unknown
    }

    fn keys<'a>(object: &'a str, _: &'a Request) -> Vec<&'a str> {
        vec![object]
    }

    fn misfit(request: &Request, answer: &Answer) -> Option<&'static str> {
        match (request, answer) {
            (Request::Acquire, Answer::Fence(_) | Answer::Held)
            | (Request::Release { .. }, Answer::Done | Answer::NotHeld)
            | (Request::Holds { .. }, Answer::Holds(_))
            | (Request::Expire { .. }, Answer::Done) => None,
            (Request::Acquire, _) => Some("{\"fence\": N}, \"held\""),
            (Request::Release { .. }, _) => Some("\"done\", \"not_held\""),
            (Request::Holds { .. }, _) => Some("{\"holds\": true}, {\"holds\": false}"),
            (Request::Expire { .. }, _) => Some("\"done\""),
        }
    }

    fn writes(request: &Request, answer: Option<&Answer>) -> bool {
        !matches!(request, Request::Holds { .. }) && !matches!(answer, Some(Answer::Held | Answer::NotHeld))
    }

    fn step(request: &Request, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        let cell = cells.get(0).clone();
        let known = last(&cell);
        match (request, answer) {
            (Request::Acquire, Some(Answer::Fence(fence))) => {
                if matches!(cell, Cell::Held { .. }) || *fence <= known {
                    return false;
                }
                cells.set(0, Cell::Held { fence: Some(*fence), last: *fence });
                true
            }
            (Request::Acquire, Some(_)) => !matches!(cell, Cell::Free { .. }),
            (Request::Acquire, None) => {
                if let Cell::Free { last } = cell {
                    cells.set(0, Cell::Held { fence: None, last });
                }
                true
            }
            (Request::Release { fence }, Some(Answer::NotHeld)) => held_with(&cell, *fence) != Some(true),
            (Request::Release { fence }, answer) => {
                let held = held_with(&cell, *fence) != Some(false);
                if held {
                    cells.set(0, Cell::Free { last: known.max(*fence) });
                }
                held || answer.is_none()
            }
            (Request::Holds { fence }, Some(Answer::Holds(true))) => {
                let held = held_with(&cell, *fence) != Some(false);
                if held {
                    cells.set(0, Cell::Held { fence: Some(*fence), last: known.max(*fence) });
                }
                held
            }
            (Request::Holds { fence }, Some(_)) => held_with(&cell, *fence) != Some(true),
            (Request::Holds { .. }, None) => true,
            (Request::Expire { fence }, _) => {
                let held = fence.is_none_or(|fence| held_with(&cell, fence) != Some(false));
                if held && matches!(cell, Cell::Held { .. }) {
                    cells.set(0, Cell::Free { last: known.max(fence.unwrap_or(0)) });
                }
                true
            }
        }
    }

    fn rank(answer: &Answer) -> Option<i64> {
        if let Answer::Fence(fence) = answer { i64::try_from(*fence).ok() } else { None }
    }

    fn request_words(request: &Request) -> String {
        match request {
            Request::Acquire => "acquire".to_owned(),
            Request::Release { fence } => format!("release {fence}"),
            Request::Holds { fence } => format!("holds {fence}?"),
            Request::Expire { fence: Some(fence) } => format!("expire {fence}"),
            Request::Expire { fence: None } => "expire".to_owned(),
        }
    }

    fn answer_words(answer: &Answer) -> String {
        match answer {
            Answer::Fence(fence) => format!("fence {fence}"),
            Answer::Held => "held".to_owned(),
            Answer::Done => "done".to_owned(),
            Answer::NotHeld => "not held".to_owned(),
            Answer::Holds(told) => if *told { "yes" } else { "no" }.to_owned(),
        }
    }
}

//! Maps: keys with rows, each of which is read, written and deleted by itself. Keys do not depend on each other.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DataType;
use super::rows::{self, Cell, Row, Step, Told};
use crate::cells::Cells;

/// A map.
#[derive(Debug)]
pub struct Map;

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A get found this row.
    Row(Row),
    /// A get found no row.
    Absent,
    /// The condition held, and the write or deletion was done; its version is not told.
    Done,
    /// The write was done, with this version.
    Written(i64),
    /// The condition did not hold.
    Conflict,
}

/// Calls `then` with the answer as rows know it.
fn told<T>(answer: Option<&Answer>, then: impl FnOnce(Told<'_>) -> T) -> T {
    match answer {
        None => then(Told::Nothing),
        Some(Answer::Row(row)) => {
            then(Told::Done { read: Some(std::slice::from_ref(&Some(row.clone()))), version: None })
        }
        Some(Answer::Absent) => then(Told::Done { read: Some(&[None]), version: None }),
        Some(Answer::Done) => then(Told::Done { read: None, version: None }),
        Some(Answer::Written(version)) => then(Told::Done { read: None, version: Some(*version) }),
        Some(Answer::Conflict) => then(Told::Conflict),
    }
}

impl DataType for Map {
    type Cell = Cell;
    type Request = Step;
    type Answer = Answer;

    const NAME: &'static str = "map";
    const HAS_OBJECTS: bool = false;

    fn empty() -> Cell {
        Cell::Absent { last: i64::MIN }
    }

    fn unknown() -> Cell {
        Cell::Unknown
    }

    fn keys<'a>(_: &'a str, request: &'a Step) -> Vec<&'a str> {
        vec![request.key()]
    }

    fn misfit(request: &Step, answer: &Answer) -> Option<&'static str> {
        match (request, answer) {
            (Step::Get { .. }, Answer::Row(_) | Answer::Absent)
            | (Step::Check { .. }, Answer::Done | Answer::Conflict)
            | (
                Step::Put { .. } | Step::Delete { .. },
                Answer::Done | Answer::Written(_) | Answer::Conflict,
            ) => None,
            (Step::Get { .. }, _) => Some("{\"row\": {\"value\": V, \"version\": N}}, \"absent\""),
            (Step::Check { .. }, _) => Some("\"done\", \"conflict\""),
            (Step::Put { .. } | Step::Delete { .. }, _) => {
                Some("\"done\", {\"written\": VERSION}, \"conflict\"")
            }
        }
    }

    fn writes(request: &Step, answer: Option<&Answer>) -> bool {
        request.writes() && answer != Some(&Answer::Conflict)
    }

    fn step(request: &Step, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        told(answer, |told| rows::execute(std::slice::from_ref(request), told, cells))
    }

    fn request_words(request: &Step) -> String {
        request.words()
    }

    fn answer_words(answer: &Answer) -> String {
        match answer {
            Answer::Row(row) => row.words(),
            Answer::Absent => "absent".to_owned(),
            Answer::Done => "done".to_owned(),
            Answer::Written(version) => format!("done (version {version})"),
            Answer::Conflict => "conflict".to_owned(),
        }
    }

    fn rank(answer: &Answer) -> Option<i64> {
        if let Answer::Written(version) = answer { Some(*version) } else { None }
    }

    fn seen(request: &Step, answer: &Answer) -> Vec<(usize, Value)> {
        told(Some(answer), |told| rows::seen(std::slice::from_ref(request), told))
    }

    fn written(request: &Step) -> Vec<(usize, Value)> {
        rows::written(std::slice::from_ref(request))
    }
}

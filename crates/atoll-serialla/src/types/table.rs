//! Tables: transactions over several keys. A request is a list of steps, which happen at one moment, all or none of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DataType;
use super::rows::{self, Cell, Row, Step, Told};
use crate::cells::Cells;

/// A table.
#[derive(Debug)]
pub struct Table;

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// All steps were executed.
    Done {
        /// What the gets found, one after the other, null for no row; null if it was not told.
        #[serde(default)]
        read: Option<Vec<Option<Row>>>,
        /// The version of what was written; null if it was not told.
        #[serde(default)]
        version: Option<i64>,
    },
    /// A condition did not hold, and nothing was executed.
    Conflict,
}

fn told(answer: Option<&Answer>) -> Told<'_> {
    match answer {
        None => Told::Nothing,
        Some(Answer::Conflict) => Told::Conflict,
        Some(Answer::Done { read, version }) => Told::Done { read: read.as_deref(), version: *version },
    }
}

impl DataType for Table {
    type Cell = Cell;
    type Request = Vec<Step>;
    type Answer = Answer;

    const NAME: &'static str = "table";
    const HAS_OBJECTS: bool = false;

    fn empty() -> Cell {
        Cell::Absent { last: i64::MIN }
    }

    fn unknown() -> Cell {
        Cell::Unknown
    }

    fn keys<'a>(_: &'a str, request: &'a Vec<Step>) -> Vec<&'a str> {
        request.iter().map(Step::key).collect()
    }

    fn misfit(request: &Vec<Step>, answer: &Answer) -> Option<&'static str> {
        let gets = request.iter().filter(|step| matches!(step, Step::Get { .. })).count();
        match answer {
            Answer::Done { read: Some(read), .. } if read.len() != gets => {
                Some("{\"done\": {\"read\": [...]}} with one entry for each get")
            }
            Answer::Conflict if request.iter().all(|step| matches!(step, Step::Get { .. })) => {
                Some("{\"done\": {...}}, because a transaction of gets has no condition")
            }
            _ => None,
        }
    }

    fn writes(request: &Vec<Step>, answer: Option<&Answer>) -> bool {
        request.iter().any(Step::writes) && answer != Some(&Answer::Conflict)
    }

    fn step(request: &Vec<Step>, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        rows::execute(request, told(answer), cells)
    }

    fn request_words(request: &Vec<Step>) -> String {
        request.iter().map(Step::words).collect::<Vec<_>>().join(", ")
    }

    fn answer_words(answer: &Answer) -> String {
        let Answer::Done { read, version } = answer else { return "conflict".to_owned() };
        let row = |row: &Option<Row>| row.as_ref().map_or("absent".to_owned(), Row::words);
        let mut words: Vec<String> = read.iter().flatten().map(row).collect();
        if words.is_empty() {
            words.push("done".to_owned());
        }
        if let Some(version) = version {
            words.push(format!("as version {version}"));
        }
        words.join(", ")
    }

    fn rank(answer: &Answer) -> Option<i64> {
        if let Answer::Done { version, .. } = answer { *version } else { None }
    }

    fn seen(request: &Vec<Step>, answer: &Answer) -> Vec<(usize, Value)> {
        rows::seen(request, told(Some(answer)))
    }

    fn written(request: &Vec<Step>) -> Vec<(usize, Value)> {
        rows::written(request)
    }
}

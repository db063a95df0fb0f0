//! Rows with versions: what maps and tables share. A transaction is a list of steps that happen at one moment, all or none of them.
//!
//! Versions rise: each write of a key has a higher version than every earlier write or deletion of that key. A version may be unknown, as
//! that of a write without an answer; it then gets the version that the first read shows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cells::Cells;
use crate::planted::{Bug, planted};

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// Nothing.
    Unknown,
    /// It has no row.
    Absent {
        /// The highest version that this key is known to have had.
        last: i64,
    },
    /// It has a row.
    Present {
        /// Its value.
        value: Value,
        /// Its version, if known.
        version: Option<i64>,
        /// The highest version that this key is known to have had.
        last: i64,
    },
}

/// A condition on a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Expect {
    /// None.
    #[default]
    Any,
    /// It has no row.
    Absent,
    /// It has a row.
    Present,
    /// It has a row of this version.
    Version(i64),
    /// It has a row with this value.
    Value(Value),
}

/// A step.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Returns the row of a key.
    Get {
        /// The key.
        key: String,
    },
    /// Refuses the transaction unless the condition holds.
    Check {
        /// The key.
        key: String,
        /// The condition.
        expect: Expect,
    },
    /// Writes a row if the condition holds; refuses the transaction otherwise.
    Put {
        /// The key.
        key: String,
        /// The value.
        value: Value,
        /// The condition.
        #[serde(default)]
        expect: Expect,
    },
    /// Deletes a row if the condition holds; refuses the transaction otherwise.
    Delete {
        /// The key.
        key: String,
        /// The condition.
        #[serde(default)]
        expect: Expect,
    },
}

impl Step {
    /// Returns the key.
    pub fn key(&self) -> &str {
        match self {
            Step::Get { key }
            | Step::Check { key, .. }
            | Step::Put { key, .. }
            | Step::Delete { key, .. } => key,
        }
    }

    /// Returns whether the step changes anything when it succeeds.
    pub fn writes(&self) -> bool {
        matches!(self, Step::Put { .. } | Step::Delete { .. })
    }

    /// Returns the step as a person would write it.
    pub fn words(&self) -> String {
        match self {
            Step::Get { key } => format!("get {key}"),
            Step::Check { key, expect } => format!("check {key}{}", expect.words()),
            Step::Put { key, value, expect } => format!("put {key} = {value}{}", expect.words()),
            Step::Delete { key, expect } => format!("delete {key}{}", expect.words()),
        }
    }
}

impl Expect {
    fn words(&self) -> String {
        match self {
            Expect::Any => String::new(),
            Expect::Absent => " if absent".to_owned(),
            Expect::Present => " if present".to_owned(),
            Expect::Version(version) => format!(" if version {version}"),
            Expect::Value(value) => format!(" if {value}"),
        }
    }
}

/// A row as a client sees it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its value.
    pub value: Value,
    /// Its version; null if it was not told.
    #[serde(default)]
    pub version: Option<i64>,
}

impl Row {
    /// Returns the row as a person would write it.
    pub fn words(&self) -> String {
        match self.version {
            Some(version) => format!("{} (version {version})", self.value),
            None => self.value.to_string(),
        }
    }
}

/// What is known of the answer to a transaction.
#[derive(Clone, Copy, Debug)]
pub enum Told<'a> {
    /// Nothing.
    Nothing,
    /// A condition did not hold.
    Conflict,
    /// It was done.
    Done {
        /// What its gets found, one after the other; None if it was not told.
        read: Option<&'a [Option<Row>]>,
        /// The version of what it wrote; None if it was not told.
        version: Option<i64>,
    },
}

fn last(cell: &Cell) -> i64 {
    match cell {
        Cell::Unknown => i64::MIN,
        Cell::Absent { last } | Cell::Present { last, .. } => *last,
    }
}

/// Whether a condition holds: None if that cannot be said.
fn holds(cell: &Cell, expect: &Expect) -> Option<bool> {
    match (cell, expect) {
        (_, Expect::Any) => Some(true),
        (Cell::Unknown, _) => None,
        (Cell::Absent { .. }, expect) => Some(*expect == Expect::Absent),
        (Cell::Present { .. }, Expect::Absent) => Some(false),
        (Cell::Present { .. }, Expect::Present) => Some(true),
        (Cell::Present { version: Some(held), .. }, Expect::Version(version)) => Some(held == version),
        // The row was written without an answer, so its version is higher than all before it.
        (Cell::Present { version: None, last, .. }, Expect::Version(version)) => {
            (version <= last).then_some(false)
        }
        (Cell::Present { value: held, .. }, Expect::Value(value)) => Some(held == value),
    }
}

/// Notes what a condition tells that held.
fn learn(cells: &mut Cells<'_, Cell>, n: usize, expect: &Expect) {
    let next = match (cells.get(n), expect) {
        (Cell::Unknown, Expect::Absent) => Cell::Absent { last: i64::MIN },
        (Cell::Unknown, Expect::Value(value)) => {
            Cell::Present { value: value.clone(), version: None, last: i64::MIN }
        }
        (Cell::Present { value, version: None, .. }, Expect::Version(version)) => {
            Cell::Present { value: value.clone(), version: Some(*version), last: *version }
        }
        _ => return,
    };
    cells.set(n, next);
}

/// Whether a get can find this; notes what it tells.
fn find(cells: &mut Cells<'_, Cell>, n: usize, found: Option<&Row>) -> bool {
    let next = match (cells.get(n), found) {
        (Cell::Absent { .. }, None) => return true,
        (Cell::Unknown, None) => Cell::Absent { last: i64::MIN },
        (Cell::Unknown, Some(row)) => Cell::Present {
            value: row.value.clone(),
            version: row.version,
            last: row.version.unwrap_or(i64::MIN),
        },
        (Cell::Present { value, version, last }, Some(row)) if *value == row.value => {
            match (version, row.version) {
                (_, None) => return true,
                (Some(held), Some(told)) => return *held == told,
                (None, Some(told)) if told > *last => {
                    Cell::Present { value: value.clone(), version: Some(told), last: told }
                }
                _ => return false,
            }
        }
        _ => return false,
    };
    cells.set(n, next);
    true
}

/// Writes or deletes a row. Returns false if the version is lower than an earlier one.
fn write(cells: &mut Cells<'_, Cell>, n: usize, value: Option<&Value>, version: Option<i64>) -> bool {
    let known = last(cells.get(n));
    if version.is_some_and(|version| version <= known) && !planted(Bug::VersionsFall) {
        return false;
    }
    let last = version.unwrap_or(known);
    cells.set(
        n,
        match value {
            Some(value) => Cell::Present { value: value.clone(), version, last },
            None => Cell::Absent { last },
        },
    );
    true
}

/// Executes a transaction, whose step `n` is about key number `n`. Returns false if it cannot have this answer in this state.
pub fn execute(steps: &[Step], told: Told<'_>, cells: &mut Cells<'_, Cell>) -> bool {
    let (read, version) = match told {
        Told::Done { read, version } => (read, version),
        Told::Nothing | Told::Conflict => (None, None),
    };
    let (mut gets, mut sure) = (0, true);
    // Two steps of one transaction may write a key. They have the same version.
    let mut written: Vec<&str> = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        if let Step::Check { expect, .. } | Step::Put { expect, .. } | Step::Delete { expect, .. } = step {
            match (holds(cells.get(n), expect), told) {
                (Some(false), Told::Done { .. }) => return false,
                (Some(false), _) => {
                    cells.reset();
                    return true;
                }
                (None, Told::Conflict) => sure = false,
                _ => learn(cells, n, expect),
            }
        }
        match step {
            Step::Get { .. } => {
                let found = read.and_then(|read| read.get(gets));
                gets += 1;
                if found.is_some_and(|found| !find(cells, n, found.as_ref())) {
                    return false;
                }
            }
            Step::Check { .. } => {}
            Step::Put { key, .. } | Step::Delete { key, .. } => {
                let again = written.contains(&key.as_str());
                written.push(key);
                let value = if let Step::Put { value, .. } = step { Some(value) } else { None };
                if again {
                    let next = match value {
                        Some(value) => {
                            Cell::Present { value: value.clone(), version, last: last(cells.get(n)) }
                        }
                        None => Cell::Absent { last: last(cells.get(n)) },
                    };
                    cells.set(n, next);
                } else if !write(cells, n, value, version) {
                    return false;
                }
            }
        }
    }
    if matches!(told, Told::Conflict) {
        cells.reset();
        return !sure || planted(Bug::AnyConflict);
    }
    true
}

/// Returns the values that an answer shows, each with the number of its step.
pub fn seen(steps: &[Step], told: Told<'_>) -> Vec<(usize, Value)> {
    let Told::Done { read, .. } = told else { return Vec::new() };
    let (mut found, mut gets) = (Vec::new(), 0);
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Get { .. } => {
                if let Some(Some(row)) = read.and_then(|read| read.get(gets)) {
                    found.push((n, row.value.clone()));
                }
                gets += 1;
            }
            Step::Check { expect: Expect::Value(value), .. }
            | Step::Put { expect: Expect::Value(value), .. }
            | Step::Delete { expect: Expect::Value(value), .. } => found.push((n, value.clone())),
            _ => {}
        }
    }
    found
}

/// Returns the values that a transaction writes, each with the number of its step.
pub fn written(steps: &[Step]) -> Vec<(usize, Value)> {
    let one = |(n, step): (usize, &Step)| match step {
        Step::Put { value, .. } => Some((n, value.clone())),
        _ => None,
    };
    steps.iter().enumerate().filter_map(one).collect()
}

//! Sets: elements are added, removed, looked up and listed.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::DataType;
use crate::cells::Cells;

/// Sets. `object` names one of several.
#[derive(Debug)]
pub struct Set;

/// What is known of a set: None if nothing is, otherwise its elements as JSON.
pub type Cell = Option<Arc<BTreeSet<String>>>;

/// A request.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Adds an element.
    Add {
        /// The element.
        element: Value,
    },
    /// Removes an element.
    Remove {
        /// The element.
        element: Value,
    },
    /// Looks an element up.
    Contains {
        /// The element.
        element: Value,
    },
    /// Lists all elements.
    List,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The element was added or removed; it is not said whether that changed the set.
    Done,
    /// Whether adding or removing the element changed the set.
    Changed(bool),
    /// Whether the element is in the set.
    Contains(bool),
    /// All elements.
    Elements(Vec<Value>),
}

fn changed(
    cells: &mut Cells<'_, Cell>,
    element: &Value,
    answer: Option<&Answer>,
    change: fn(&mut BTreeSet<String>, String) -> bool,
) -> bool {
    let Some(held) = cells.get(0) else { return true };
    let mut next = BTreeSet::clone(held);
    let changed = change(&mut next, element.to_string());
    if changed {
        cells.set(0, Some(Arc::new(next)));
    }
    !matches!(answer, Some(Answer::Changed(told)) if *told != changed)
}

impl DataType for Set {
    type Cell = Cell;
    type Request = Request;
    type Answer = Answer;

    const NAME: &'static str = "set";
    const HAS_OBJECTS: bool = true;

    fn empty() -> Cell {
        Some(Arc::default())
    }

    fn unknown() -> Cell {
        None
    }

    fn keys<'a>(object: &'a str, _: &'a Request) -> Vec<&'a str> {
        vec![object]
    }

    fn misfit(request: &Request, answer: &Answer) -> Option<&'static str> {
        match (request, answer) {
            (Request::Add { .. } | Request::Remove { .. }, Answer::Done | Answer::Changed(_))
            | (Request::Contains { .. }, Answer::Contains(_))
            | (Request::List, Answer::Elements(_)) => None,
            (Request::Add { .. } | Request::Remove { .. }, _) => {
                Some("\"done\", {\"changed\": true}, {\"changed\": false}")
            }
            (Request::Contains { .. }, _) => Some("{\"contains\": true}, {\"contains\": false}"),
            (Request::List, _) => Some("{\"elements\": [...]}"),
        }
    }

    fn writes(request: &Request, answer: Option<&Answer>) -> bool {
        matches!(request, Request::Add { .. } | Request::Remove { .. })
            && answer != Some(&Answer::Changed(false))
    }

    fn step(request: &Request, answer: Option<&Answer>, cells: &mut Cells<'_, Cell>) -> bool {
        match (request, answer) {
            (Request::Add { element }, answer) => {
                changed(cells, element, answer, |set, element| set.insert(element))
            }
            (Request::Remove { element }, answer) => {
                changed(cells, element, answer, |set, element| set.remove(&element))
            }
            (Request::Contains { element }, Some(Answer::Contains(told))) => {
                cells.get(0).as_ref().is_none_or(|held| held.contains(&element.to_string()) == *told)
            }
            (Request::List, Some(Answer::Elements(elements))) => {
                let told: BTreeSet<String> = elements.iter().map(Value::to_string).collect();
                match cells.get(0) {
                    Some(held) => **held == told,
                    None => {
                        cells.set(0, Some(Arc::new(told)));
                        true
                    }
                }
            }
            _ => true,
        }
    }

    fn request_words(request: &Request) -> String {
        match request {
            Request::Add { element } => format!("add {element}"),
            Request::Remove { element } => format!("remove {element}"),
            Request::Contains { element } => format!("contains {element}?"),
            Request::List => "list".to_owned(),
        }
    }

    fn answer_words(answer: &Answer) -> String {
        match answer {
            Answer::Done => "done".to_owned(),
            Answer::Changed(true) => "changed".to_owned(),
            Answer::Changed(false) => "no change".to_owned(),
            Answer::Contains(told) => if *told { "yes" } else { "no" }.to_owned(),
            Answer::Elements(elements) => Value::from(elements.clone()).to_string(),
        }
    }
}

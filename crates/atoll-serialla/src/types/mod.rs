//! Data types: what an operation does to the cells of its keys, and which results it can have.
//!
//! A cell may be *unknown*: nothing is known of its state. Every result fits an unknown cell, and may tell what it holds from then on.
//! Histories that begin in the middle start with unknown cells, and so do the short histories that a refutation is reduced to.

mod counter;
mod lock;
mod map;
mod register;
mod rows;
mod set;
mod table;

use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cells::Cells;

pub use counter::Counter;
pub use lock::Lock;
pub use map::Map;
pub use register::Register;
pub use set::Set;
pub use table::Table;

/// A data type whose histories can be checked.
pub trait DataType: Sized + 'static {
    /// What is known of one key.
    type Cell: Clone + Eq + Hash + fmt::Debug;
    /// What a client asks for.
    type Request: DeserializeOwned + Serialize + fmt::Debug;
    /// What it is answered.
    type Answer: DeserializeOwned + Serialize + fmt::Debug;

    /// The name, as in `--type` and in the first line of a history.
    const NAME: &'static str;
    /// Whether a line may have an `object`, which is then the key of its operation.
    const HAS_OBJECTS: bool;

    /// Returns the cell of a key before the first operation of a whole history.
    fn empty() -> Self::Cell;

    /// Returns a cell of which nothing is known.
    fn unknown() -> Self::Cell;

    /// Returns the keys of an operation, in the order in which [`DataType::step`] numbers them. A key may occur twice.
    fn keys<'a>(object: &'a str, request: &'a Self::Request) -> Vec<&'a str>;

    /// Returns which answers the request can have, if this is none of them.
    fn misfit(request: &Self::Request, answer: &Self::Answer) -> Option<&'static str>;

    /// Returns whether an operation may change cells. `answer` is None if it is unknown.
    fn writes(request: &Self::Request, answer: Option<&Self::Answer>) -> bool;

    /// Executes an operation: returns false if it cannot have this answer in this state. After true, the cells are as the operation leaves
    /// them. Without an answer, the operation has the effect that it has if nothing refuses it. What it leaves after false does not matter.
    fn step(
        request: &Self::Request,
        answer: Option<&Self::Answer>,
        cells: &mut Cells<'_, Self::Cell>,
    ) -> bool;

    /// Returns the request as a person would write it.
    fn request_words(request: &Self::Request) -> String;

    /// Returns the answer as a person would write it.
    fn answer_words(answer: &Self::Answer) -> String;

    /// Returns a number that rises with the order of writes, if the answer tells one. Only a hint for the search, which tries lower
    /// ones first.
    fn rank(_answer: &Self::Answer) -> Option<i64> {
        None
    }

    /// Returns the values that the answer shows, each with the number of its key.
    fn seen(_request: &Self::Request, _answer: &Self::Answer) -> Vec<(usize, Value)> {
        Vec::new()
    }

    /// Returns the values that the operation writes, each with the number of its key.
    fn written(_request: &Self::Request) -> Vec<(usize, Value)> {
        Vec::new()
    }
}

/// The name of a data type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the data types.
pub enum Type {
    Register,
    Set,
    Counter,
    Map,
    Lock,
    Table,
}

impl Type {
    /// All of them.
    pub const ALL: [Type; 6] = [Type::Register, Type::Set, Type::Counter, Type::Map, Type::Lock, Type::Table];

    /// Returns the name.
    pub fn name(self) -> &'static str {
        match self {
            Type::Register => Register::NAME,
            Type::Set => Set::NAME,
            Type::Counter => Counter::NAME,
            Type::Map => Map::NAME,
            Type::Lock => Lock::NAME,
            Type::Table => Table::NAME,
        }
    }

    /// Returns all names, separated by commas.
    pub fn names() -> String {
        Type::ALL.map(Type::name).join(", ")
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Type {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Type::ALL.into_iter().find(|t| t.name() == text);
        found.ok_or_else(|| format!("no data type is called {text:?}; allowed: {}", Type::names()))
    }
}

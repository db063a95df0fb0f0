//! Serialla: is a history of concurrent operations strictly serializable?
//!
//! Bizur §4 describes a tester that runs concurrent operations, records what they returned, and looks for a serial order that explains the
//! results. This crate is the second half: it reads a recorded history and searches for such an order. `atoll check` is its command line;
//! `atoll check run` also generates the operations.
//!
//! | paper | here |
//! | --- | --- |
//! | "a strict serializable execution that can explain the operations and responses" | `search.rs`: one order that agrees with all results and with real time |
//! | "a generic tool" | `types/`: a data type says what an operation does to the cells of its keys; the search knows nothing else of it |
//! | "a descriptive log of the concurrent operations" | `shrink.rs`, `report.rs`: the shortest refuting history that was found, as a table |
//!
//! | file | what it is |
//! | --- | --- |
//! | `history.rs` | the file format, and errors in files |
//! | `types/` | registers, sets, counters, maps, locks and tables |
//! | `cells.rs` | the state that an order leads to, with undo and a running hash |
//! | `parts.rs` | splits a history where no operation connects its keys |
//! | `search.rs` | the search for an explaining order |
//! | `shrink.rs` | makes a refuted history short |
//! | `check.rs` | all of it together, with limits |
//! | `report.rs` | the answer, for people and for programs |
//! | `planted.rs` | known bugs of the checker, for its own tests |
//!
//! Departures from the paper: the paper's tool stops threads at annotated places of the product's code. This crate judges what clients saw,
//! whoever ran them. The simulator permutes the schedules of the product's code.

pub mod cells;
pub mod check;
pub mod history;
mod parts;
mod planted;
pub mod report;
pub mod search;
mod shrink;
pub mod types;

pub use check::{Limits, Progress, check};
pub use history::InputError;
pub use report::{Report, Verdict};
pub use types::Type;

#[cfg(test)]
mod generate_test;
#[cfg(test)]
mod suite_test;

//! What a store has to offer.

use std::fmt;

use atoll_contract::register::Unavailability;
use atoll_core::BoxFuture;
use bytes::Bytes;

/// Why a store gave no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It did not happen, and may soon be possible.
    #[error("not done: {0}")]
    Passing(Unavailability),
    /// It may have happened, or may still happen.
    #[error("no answer; whether it happened is unknown")]
    NoAnswer,
    /// It did not happen, and another attempt would end like this one.
    #[error("refused: {0}")]
    Refused(String),
}

/// A value of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell<T> {
    /// The value.
    pub bytes: Bytes,
    /// What the store calls this value. It never calls another value of this cell so, also not after the cell was replaced twice.
    pub tag: T,
}

/// The names of cells, each with a number that is another one for another value, if the store has one.
pub type Listing = Vec<(String, Option<u128>)>;

/// Values by name. The names have letters, digits, `-`, `_` and `.`; they are neither `.` nor `..`.
pub trait Cells: Send + Sync + fmt::Debug + 'static {
    /// What the store calls a value of a cell.
    type Tag: Clone + Send + Sync + fmt::Debug + PartialEq + 'static;

    /// Reads a cell; None if there is none with this name. Shows all that was written before the call.
    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<Self::Tag>>, Fault>>;

    /// Replaces a cell that still has the value with this tag; without a tag, creates it if there is none. Durable on return. False proves
    /// nothing: the cell may have the new value already, from an earlier attempt.
    fn replace(
        &self,
        name: &str,
        expected: Option<Self::Tag>,
        bytes: Bytes,
    ) -> BoxFuture<'_, Result<bool, Fault>>;

    /// Returns the names of all cells, in any order. Shows all cells that were created before the call.
    fn list(&self) -> BoxFuture<'_, Result<Listing, Fault>>;
}

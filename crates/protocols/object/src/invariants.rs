//! The invariants of an ObjectLoglet. They rest on one property of the store: of all conditional puts to one name, at most one succeeds.
//!
//! | invariant | where it is maintained |
//! | --- | --- |
//! | object-O1 an index has at most one object, ever, that counts | conditional puts (`shelf.rs`), until its block is deleted; then O3 |
//! | object-O2 an index is taken only once all lower ones are, and its object begins where the one below ends | `append.rs`, `seal.rs`: whoever takes an index has seen what is below |
//! | object-O3 what was seen or put at an index counts only if its block is not marked as deleted afterwards | `shelf.rs`, `append.rs` |
//! | object-O4 a mark that says *deleted* is there before the first object of its block is deleted, and permanently | `Shelf::delete_block` |
//! | object-O5 the seal is the first object that has no entries; nothing behind it counts | O2, and because appenders stop at it |
//! | object-O6 an operation has one offset | an appender knows the operations of all objects from its floor to the index that it takes (`append.rs`) |

use atoll_contract::Offset;
use atoll_core::invariant;

use crate::known::At;

/// Checks that the log continues where it ended, and was not sealed there (object-O2, object-O5).
pub(crate) fn grows(sealed: bool, index: u64, next: At, first: Offset) {
    invariant!(!sealed, "entries at index {index}, behind the seal at {} (object-O5)", next.index);
    invariant!(
        first >= next.first && (index > next.index || first == next.first),
        "the object at index {index} begins at {first}; index {} begins at {} (object-O2)",
        next.index,
        next.first
    );
}

/// Checks the same for the last object, of which only the end is known.
pub(crate) fn grows_to(sealed: bool, index: u64, next: At, end: Offset) {
    invariant!(!sealed, "entries at index {index}, behind the seal at {} (object-O5)", next.index);
    invariant!(
        end > next.first,
        "index {index} ends at {end}; index {} begins at {} (object-O2)",
        next.index,
        next.first
    );
}

/// Checks that a seal follows what is known (object-O5).
pub(crate) fn seal_is_next(index: u64, next: At) {
    invariant!(
        index == next.index,
        "the seal at index {index}, and entries up to {} (object-O5)",
        next.index
    );
}

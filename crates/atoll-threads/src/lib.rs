//! Explores the orders in which threads may interleave in the product's own files, with the checker shuttle (decision 0012).
//!
//! The state that threads share is in separate files that use only `atoll_core::sync`. `build.rs` copies them, and this crate
//! compiles the copies with shuttle's types (`sync.rs`). At each lock, wait and atomic operation another thread may continue, and
//! shuttle plays many orders, the same ones in each run. A scenario that gets stuck in one of them fails as a deadlock, so a lost
//! wake-up is detected.
//!
//! | file | what it is |
//! | --- | --- |
//! | `scenarios/` | threads that use one piece each, as the product does |
//! | `bugs.rs` | known bugs, each of which a scenario must find |
//! | `explore.rs` | selects the orders that are played |
//!
//! docs/threads.md describes each piece and says what is not explored.

#[cfg(test)]
mod explore;
#[cfg(test)]
mod product;
#[cfg(test)]
mod sync;

/// The same pieces, each time with one bug.
#[cfg(test)]
#[allow(dead_code)] // A bug is there for one scenario.
#[allow(clippy::duplicate_mod)] // The same scenarios over other pieces.
mod bugs {
    include!(concat!(env!("OUT_DIR"), "/bugs.rs"));
}

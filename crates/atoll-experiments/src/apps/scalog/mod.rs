//! Programs for Scalog's applications (NSDI'20, §5): Scalog-Store, objects in the manner of vCorfu, and an online market.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store.rs` | Scalog-Store under load; single reads and compactions |
//! | `objects.rs` | objects with streams of their own under load; single reads and trims |
//! | `index.rs` | index servers of streams, and connections to them |
//! | `market.rs`, `market.html` | producers of events, the analyser, and its page |
//! | `web.rs` | as much of HTTP as these programs need |

pub mod index;
pub mod market;
pub mod objects;
pub mod store;
mod web;

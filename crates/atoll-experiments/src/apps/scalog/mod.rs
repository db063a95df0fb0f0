//! Programs for Scalog's applications (NSDI'20, §5): Scalog-Store, and objects in the manner of vCorfu.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store.rs` | Scalog-Store under load; single reads and compactions |
//! | `objects.rs` | objects with streams of their own under load; single reads and trims |
//! | `index.rs` | index servers of streams, and connections to them |
//! | `web.rs` | as much of HTTP as these programs need |

pub mod index;
pub mod objects;
pub mod store;
mod web;

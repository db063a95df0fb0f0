//! Programs for Scalog's applications (NSDI'20, §5): Scalog-Store.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store.rs` | Scalog-Store under load; single reads and compactions |

pub mod store;

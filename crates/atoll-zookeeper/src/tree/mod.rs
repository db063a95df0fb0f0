//! The replicated state: znodes, sessions, counters, and what each command does to them. The same on every node: no clock, no
//! randomness, nothing but the command, the state and [`atoll_db::ApplyAt`].
//!
//! | file | what it is |
//! | --- | --- |
//! | `key.rs`, `node.rs` | what is where in the store |
//! | `state.rs` | the store under a command: nodes, counters, lists of access |
//! | `application.rs` | which command does what |
//! | `create.rs`, `change.rs`, `multi.rs` | writes of clients |
//! | `reap.rs` | containers and nodes past their time to live |
//! | `read.rs` | reads of a published view |

pub mod application;
mod change;
pub mod create;
pub mod key;
mod multi;
pub mod node;
pub mod read;
pub mod reap;
pub mod state;

pub use application::ZooKeeper;

//! The replicated state: znodes, sessions, counters, and what each command does to them. The same on every node: no clock, no
//! randomness, nothing but the command, the state and [`atoll_db::ApplyAt`].
//!
//! | file | what it is |
//! | --- | --- |
//! | `key.rs`, `node.rs` | what is where in the store |
//! | `state.rs` | the store under a command: nodes, counters, lists of access |
//! | `application.rs` | which command does what |
//! | `create.rs`, `change.rs`, `multi.rs` | writes of clients |
//! | `import.rs` | znodes of another ensemble, with their Stat |
//! | `quota.rs` | limits on subtrees, and what is counted for them |
//! | `config.rs` | `/zookeeper/config`: the nodes that serve clients |
//! | `reap.rs` | containers and nodes past their time to live |
//! | `snapshot.rs`, `restore.rs` | the tree as a file, and a file as the tree |
//! | `read.rs` | reads of a published view |

pub mod application;
mod change;
pub mod config;
pub mod create;
mod import;
pub mod key;
mod multi;
pub mod node;
pub(crate) mod quota;
pub mod read;
pub mod reap;
pub mod restore;
pub mod snapshot;
pub mod state;

pub use application::ZooKeeper;

//! The replicated state: znodes, sessions and counters, and the effect of each command on them. It is the same on every node,
//! because an effect depends only on the command, the state and [`atoll_db::ApplyAt`], never on a clock or on randomness.
//!
//! | file | what it is |
//! | --- | --- |
//! | `key.rs`, `node.rs` | the layout of the store |
//! | `state.rs` | the state as a command sees it: nodes, counters, ACLs |
//! | `application.rs` | dispatches commands |
//! | `create.rs`, `change.rs`, `multi.rs` | writes of clients |
//! | `weight.rs` | the bound on what one command reads and replaces |
//! | `import.rs` | znodes of another ensemble, with their Stat |
//! | `quota.rs` | limits on subtrees, and the usage that is counted for them |
//! | `config.rs` | `/zookeeper/config`: the nodes that serve clients |
//! | `reap.rs` | deletion of containers and of nodes whose time to live has passed |
//! | `snapshot.rs`, `restore.rs` | tree snapshots, and their restore |
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
pub mod weight;

pub use application::ZooKeeper;

//! A whole node: its server roles, its view of the cluster, the policy that keeps logs available, its host and its database. It knows
//! no door: `start_with` takes a list of them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `config.rs`, `settings.rs` | the configuration of a node, and its timings |
//! | `assembly.rs` | combines roles and procedures into a node; the simulator uses it, too |
//! | `start.rs` | starts a real node: data directory, sockets, doors, and a thread of its own |
//! | `database.rs`, `replica.rs` | opens the database; what the rest of the node knows of it |
//! | `backend.rs`, `door_view.rs` | what the doors see of the node |
//! | `position_door.rs` | what the doors see of single positions of logs |
//! | `shard_door.rs` | what the doors see of the shards of logs |
//! | `named.rs`, `refusals.rs` | checks the nodes that an operator names; translates errors for clients |
//! | `duties.rs` | which node does what for a Loglet, for status and chains |
//! | `door_threads.rs` | the threads on which the doors run |
//! | `descriptors.rs` | how many files and sockets may be open, and how they are allocated |
//! | `space_alarm.rs` | whether the disk has room for more data |
//! | `host/` | feeds the core from sockets and disk |
//! | `members/` | which nodes are members, and which are up |
//! | `logs.rs` | the virtual logs that this node knows |
//! | `places/` | where the chains of logs can be outside of the cluster, and how they move |
//! | `keyspaces.rs`, `keyspace_door.rs` | the keyspaces of the cluster; what the doors see of them |
//! | `policy/` | when a node moves a log, or rebuilds a segment, by itself |
//! | `kept.rs` | records in registers, which operators or nodes keep |
//! | `backup/` | ships the database into an object store |
//! | `log_policy/` | what operators declare for single logs, and this node then does by itself |
//! | `rescue/` | makes a new data directory from what a lost cluster has left, or from a backup |
//! | `ask_logs.rs`, `survey.rs`, `operations.rs`, `figures.rs` | status, membership changes, metrics |
//! | `mutants.rs` | known bugs that tests switch on |

mod ask_logs;
pub mod assembly;
pub mod backend;
pub mod backup;
pub mod config;
pub mod database;
mod descriptors;
mod door_threads;
mod door_view;
mod duties;
pub mod figures;
pub mod host;
mod kept;
mod keyspace_door;
pub mod keyspaces;
pub mod log_policy;
pub mod logs;
pub mod members;
pub mod mutants;
mod named;
pub mod operations;
pub mod places;
pub mod policy;
mod position_door;
mod refusals;
pub mod replica;
pub mod rescue;
pub mod settings;
mod shard_door;
pub mod space_alarm;
mod start;
pub mod survey;

pub use atoll_db::{Applications, Options as DatabaseOptions};
pub use atoll_door::embed;
pub use config::NodeConfig;
pub use logs::Logs;
pub use replica::DatabaseState;
pub use start::{EndedBecause, RunningNode, StartError, start, start_with};

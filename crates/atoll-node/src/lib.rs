//! A whole node: its roles, its view of the cluster, the policy that keeps its logs going, its host and its doors.
//!
//! | file | what it is |
//! | --- | --- |
//! | `config.rs`, `settings.rs` | what a node is started with |
//! | `assembly.rs` | roles and procedures put together; the same in the simulator |
//! | `start.rs` | a real node: data directory, sockets, doors, a thread of its own |
//! | `database.rs` | the database: its log, its store, the doors that serve it |
//! | `descriptors.rs` | how many files and sockets may be open, and how they are divided |
//! | `space.rs` | whether the disk has room for more |
//! | `host/` | feeds the core from sockets and disk |
//! | `members/` | who belongs to the cluster, who is up, which nodes hold the registers |
//! | `logs.rs` | the virtual logs that are open |
//! | `policy/` | when a log is moved without being asked to |
//! | `ask_logs.rs`, `survey.rs`, `operations.rs`, `figures.rs` | status, changes of members, metrics |
//! | `doors/` | gRPC, metrics, ZooKeeper |
//! | `mutants.rs` | known bugs, for tests |

mod ask_logs;
pub mod assembly;
pub mod config;
pub mod database;
mod descriptors;
pub mod doors;
pub mod figures;
pub mod host;
pub mod logs;
pub mod members;
pub mod mutants;
pub mod operations;
pub mod policy;
pub mod protocols;
pub mod settings;
pub mod space;
mod start;
pub mod survey;

pub use atoll_db::Options as DatabaseOptions;
pub use config::NodeConfig;
pub use database::{DatabaseDoor, DatabaseState, DatabaseUp, embed};
pub use logs::Logs;
pub use start::{EndedBecause, RunningNode, StartError, start, start_with};

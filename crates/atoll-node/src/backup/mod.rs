//! The backup of the database's log and state into an object store, while the cluster works. `atoll_backup` knows the objects; this module
//! decides which node ships, when, and what the log keeps for it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `state.rs` | what this node knows of the backup, and what its parts share |
//! | `plan.rs` | what an operator wants: where to, how often, for how long; kept in a register |
//! | `source.rs` | the replica of this node, as the source of a backup |
//! | `keeper.rs` | the procedure that ships, takes snapshots, and deletes what is too old |
//! | `door.rs` | what operators do with it |
//!
//! Every node with a replica runs the procedure and follows the backup. The first one in service ships. Another one also ships once the
//! backup has not moved for some time, whatever the reason: conditional puts make that harmless.

mod door;
mod keeper;
mod plan;
mod source;
mod state;

pub use door::list_reply;
pub use plan::BackupPlan;
pub(crate) use source::restored;
pub use state::Backups;
pub(crate) use state::REGISTER;

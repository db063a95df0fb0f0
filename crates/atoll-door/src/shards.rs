//! What operations on the shards of logs are, as doors hand them to their node.

pub use atoll_contract::loglet::sharded::{ShardChange, ShardState, Shards};
pub use atoll_log::virtual_log::{ActiveShards, LogRecord};

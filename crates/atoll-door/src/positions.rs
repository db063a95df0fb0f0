//! What operations on single positions of logs are, as doors hand them to their node.

pub use atoll_contract::loglet::write_once::{PositionState, Replace};
pub use atoll_log::virtual_log::{ActivePositions, PositionOp};

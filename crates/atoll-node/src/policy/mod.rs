//! The policy that decides when a node moves a log to another Loglet by itself (virtuallog §5). The mechanism is `VirtualLog::extend`. The
//! reasons are the protocols' (`LogletProvider::reason_to_reconfigure`); the policy knows none of them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `assess.rs` | what this node knows, as a value, and what it makes of the reasons that the protocols find in it |
//! | `guardian.rs` | the procedure that checks the logs, waits its turn, and acts |
//! | `doubts.rs` | whether evidence counts against a sequencer or against this node |
//! | `pace.rs` | how often one log may be moved |
//! | `shard_adder.rs` | the procedure that adds a shard to logs whose shards are full, if an operator wants that |
//! | `back_filler.rs` | the procedure that makes this node fetch the entries that it missed |
//! | `collect.rs` | the procedure that deletes abandoned Loglets on this node |

pub mod assess;
pub mod back_filler;
pub mod collect;
pub mod doubts;
pub mod guardian;
pub mod pace;
pub mod shard_adder;

pub use assess::View;
pub use back_filler::BackFiller;
pub use collect::Collector;
pub use guardian::{Deeds, Guardian};
pub use shard_adder::ShardAdder;

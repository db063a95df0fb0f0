//! When a log is moved to another Loglet without being asked to (virtuallog §5): mechanism is `VirtualLog::extend`, this is
//! the policy.
//!
//! | file | what it is |
//! | --- | --- |
//! | `assess.rs` | what is wrong with a segment, and what should follow: a pure function |
//! | `guardian.rs` | the procedure that looks, waits its turn, and acts |
//! | `doubts.rs` | whether evidence counts against a sequencer or against this node |
//! | `pace.rs` | how often one log may be moved |
//! | `back_fill.rs` | the procedure that has this node fetch what it missed |
//! | `collect.rs` | the procedure that deletes what makers of Loglets left behind here |

pub mod assess;
pub mod back_fill;
pub mod collect;
pub mod doubts;
pub mod guardian;
pub mod pace;

pub use assess::{Reason, View};
pub use back_fill::BackFiller;
pub use collect::Collector;
pub use guardian::{Deeds, Guardian};

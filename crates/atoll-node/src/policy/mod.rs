//! When a log is moved to another Loglet without being asked to (virtuallog §5): mechanism is `VirtualLog::extend`, this is
//! the policy.
//!
//! | file | what it is |
//! | --- | --- |
//! | `assess.rs` | what is wrong with a segment, and what should follow: a pure function |
//! | `guardian.rs` | the procedure that looks, waits its turn, and acts |

pub mod assess;
pub mod guardian;

pub use assess::{Reason, View};
pub use guardian::{Deeds, Guardian};

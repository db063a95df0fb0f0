//! The analysis of what the users of a market do (Scalog, NSDI'20, §5): producers append events, and an analyser plays them.
//!
//! The analyser saves its state with its position in one piece (`Player::saved`), so that after a crash it counts every event once. Its
//! counts are those that a scan of the log finds.
//!
//! An event is appended once. A producer does not repeat it while the outcome is unknown, because two copies would count twice.

mod analysis;
mod event;

pub use analysis::{Analysis, Counts, MAX_ITEMS, MAX_NOTED, OTHERS, Windows};
pub use event::{Kind, MAX_NAME_BYTES, UserEvent, category};

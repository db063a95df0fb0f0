//! The policy that an operator declares for a log (Delos, OSDI '20, §3 and §4; virtuallog §5): where its active segment should be, which
//! sealed segments are cold, and how much is kept. The mechanisms are the same that operators use: `extend`, `modify` and `trim`.
//!
//! | file | what it is |
//! | --- | --- |
//! | `declared.rs` | what an operator declares, and the record of the register: the policy, when segments were sealed, what was done |
//! | `facts.rs` | observes the log and the replicas of the database |
//! | `decide.rs` | what the policy demands now: a pure function |
//! | `state.rs` | what this node knows of the policies, and what its parts share |
//! | `keeper.rs` | the procedure that follows the policies, and acts |
//! | `door.rs` | what operators do with policies |
//!
//! Every node follows all policies. Of all nodes, the one that ranks first decides and acts. Two nodes may both take themselves for the
//! first, which does no harm: a node claims an action by a conditional write to the register of the policy before it acts, and each action
//! depends on what it was decided on: an extension on the active Loglet, a move on the segment, a trim on a stop of a sealed segment.
//!
//! The guardian (`policy/guardian.rs`) moves logs, too, because of failures and at once. Policies are slow in comparison.

pub mod decide;
pub mod declared;
mod door;
mod facts;
mod keeper;
mod state;

pub use state::{Counts, LogPolicies};

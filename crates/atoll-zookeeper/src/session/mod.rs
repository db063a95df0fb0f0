//! Sessions. A session is part of the replicated state: its holder, how often it has moved, its timeout. Whether its client is
//! alive is known only to the node that holds it, and is not replicated (contracts X22).
//!
//! | file | what it is |
//! | --- | --- |
//! | `state.rs` | sessions in the replicated state: opened, attached, closed, expired, taken over |
//! | `keeper.rs` | who was heard of when; expires what a node holds, takes over what nobody holds |

pub mod keeper;
pub mod state;

//! Sessions. The replicated state contains each session's holder, timeout and number of moves. Only the holder knows whether the
//! client is alive; that is not replicated (contracts X22).
//!
//! | file | what it is |
//! | --- | --- |
//! | `secret.rs` | what is kept of a session's password |
//! | `state.rs` | sessions in the replicated state: opening, attaching, closing, expiry, takeover |
//! | `keeper.rs` | the sessions that this node holds, and which of them must expire |
//! | `held.rs` | when each of their clients was last heard, and when it can be found silent |

mod held;
pub mod keeper;
pub mod secret;
pub mod state;

pub use held::LastSeen;

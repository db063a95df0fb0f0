//! A loglet for tests of the plug-in interface. It has three roles, each on one node, that no other protocol has in this form. It joins the
//! program through one line in the list of protocols, and only in test builds. No paper describes it.
//!
//! | role | what it does | bound to |
//! | --- | --- | --- |
//! | [`Clerk`] | passes appends to the store, in the order of their arrival, and the answers back | one life of its node (native-T6) |
//! | [`Holder`] as the store | orders the entries and holds them in its journal; its seal is one durable bit | a data directory (native-T8) |
//! | [`Holder`] as the mirror | holds a second copy, which it fetches after the seal | a data directory |
//!
//! | paper (Delos Figure 2) | here |
//! | --- | --- |
//! | append, acknowledged after the sync; a retry gets its original offsets, also after a restart of the store | `append.rs`, `clerk.rs`, `holder/store.rs` |
//! | checkTail → (tail, sealed) | `Info` to the store |
//! | readNext | `read.rs`: the store; for a sealed loglet, the mirror too |
//! | prefixTrim | `Trim` to the store and the mirror |
//! | seal | `Seal` to the store: no more appends are accepted; the earlier ones and the bit become durable (native-T4) |
//! | (deletion after a truncate) | `Delete` to the store and the mirror |
//! | (a second copy) | `back_fill.rs`, `holder/mirror.rs` (X7) |
//! | (copies for reconfigModify) | `provider.rs`: `copy` |
//! | (placement) | `plan.rs` |
//! | (reasons to reconfigure) | `reasons.rs` |
//!
//! # Departures from the paper, and why
//!
//! - *The node that the failure handling takes for the orderer does not order.* The clerk is bound to a life of its node, so the log moves
//!   on after a restart of that node. The store assigns the offsets, because its journal remembers them.
//! - *The seal needs one node, not a majority*: only the store takes appends, so its bit decides (`can_seal`).
//! - *The sealed configuration is the sealed tail* (vlog-L9). Native and local loglets have an empty one. A handle that gets it may read
//!   from the mirror.
//! - *The mirror's answer does not count*: a trim or a deletion is done when the store has done it. A mirror that was away keeps the
//!   entries until the whole loglet is collected.
//!
//! # Limits
//!
//! A log of this kind makes no progress while the store of its active loglet is down. If that store's disk is lost, the open loglet is
//! lost; a sealed one can be rebuilt from its mirror. The kind has no feature level, because no release writes it.
//!
//! While a window is full, the clerk and the store refuse appends as busy, and the caller tries again later. A kind for use holds them
//! until there is room, as the local one does. Here the refusal stays, so that tests of the plug-in interface meet it.

mod append;
mod back_fill;
mod clerk;
pub mod config;
mod holder;
mod invariants;
mod loglet;
pub mod message;
pub mod mutants;
mod plan;
mod plugin;
mod provider;
mod read;
mod reasons;
pub mod roles;

pub use clerk::{Clerk, ClerkOptions};
pub use config::TrioConfig;
pub use holder::{Holder, HolderOptions, Side};
pub use loglet::{TrioLoglet, TrioOptions};
pub use plugin::TrioPlugin;
pub use provider::{KIND, TrioProvider};

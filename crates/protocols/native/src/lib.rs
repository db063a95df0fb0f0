//! NativeLoglet (Delos, OSDI'20 §4.2.1): a fixed sequencer assigns offsets, 2f + 1 fixed LogServers store entries, and majorities decide.
//! There are no elections and no membership changes: those belong to the virtual log, which seals this loglet and creates another.
//!
//! | the paper's term | our term |
//! | --- | --- |
//! | LogServer, sequencer | [`LogServer`], [`Sequencer`]: one role object each per node, for all loglets |
//! | locally committed | durable: synced in the server's journal |
//! | globally committed, global tail | durable on a majority, together with everything below |
//! | knownTail | `known_tail`: at most the global tail |
//! | local tail | `local_tail`: above every durable entry that arrived by Store or Repair |
//!
//! | paper | file |
//! | --- | --- |
//! | append | `append.rs` (client), `sequencer/` |
//! | LogServer: store, seal, repair | `log_server/store.rs` |
//! | seal | `seal.rs` |
//! | checkTail: all sealed, some sealed, none sealed | `check_tail.rs` (native-S1–native-S5), `repair.rs` |
//! | readNext | `read.rs` |
//! | prefixTrim | `trim.rs` |
//! | (deletion after a truncate) | `delete.rs`: tombstones, native-T10 |
//! | (a server that was away) | `back_fill.rs`, X7 |
//! | (copies for reconfigModify) | `provider.rs`: `build_sealed` |
//! | (reasons to reconfigure) | `reasons.rs` |
//! | invariants | `invariants.rs`; from outside of the nodes: `testing/oracle.rs` |
//!
//! # Departures from the paper, and why
//!
//! - *A sealed server answers Sealed even for entries that it holds* (native-T1), *only the Stored answers of a majority acknowledge an
//!   entry* (native-T2), *a seal flushes first* (native-T4): the paper leaves these open, and every other choice loses acknowledged
//!   appends.
//! - *Stored is cumulative*, one per turn: a server skips only committed entries and repairs only when sealed, so an unsealed
//!   local tail above p, with p at or above the known tail, means that p is there (contracts §3.6).
//! - *A batch is the unit of Store*, with consecutive offsets: one record, one answer.
//! - *The configuration names the sequencer's life and the servers' data directories* (native-T6, native-T8).
//! - *The first Sealed makes the sequencer complete the seal* (native-T15).
//! - *Appends of one handle carry an epoch and a number* (`atoll_loglet_store::handle_order`), so that they land in call order whichever
//!   messages the network loses (vlog-L8).
//! - *A repair reports the known tail to sealed servers afterwards*, in a Repair without entries (rule K): the next check takes one round,
//!   and servers know which entries they lack.
//!
//! # Traps
//!
//! Comments cite these. `store/` is the one of `atoll-loglet-store`. "Mutant" means that `mutants.rs` can switch the bug on, and that a
//! test finds it.
//!
//! | | what goes wrong otherwise | where it is handled |
//! | --- | --- | --- |
//! | native-T1 | a sealed server says Stored: an entry above the sealed tail is acked (mutant) | `log_server/store.rs` |
//! | native-T2 | an ack because a known tail moved, with the same effect (mutant) | `sequencer/sequenced_loglet.rs` |
//! | native-T3 | a known tail from a sealed server taken for an open tail (mutant) | `check_tail.rs` native-S5 |
//! | native-T4 | a seal answered before the Stores in flight are on disk (mutant) | `log_server/store.rs`, `store/loglet_store.rs` |
//! | native-T5 | a majority of the unsealed servers instead of all (mutant) | `sequencer/sequenced_loglet.rs` |
//! | native-T6 | a restarted sequencer assigns offsets twice (mutant) | lives in the configuration, Append, Store |
//! | native-T7 | Sealed or silence taken for "not appended" | `atoll_contract::AppendError` |
//! | native-T8 | a wiped server answers for entries that it lost (mutant) | `log_server/mod.rs` |
//! | native-T9 | tails from entries that are not synced yet | `reveals` on every answer; the journal |
//! | native-T10 | a late message recreates a deleted loglet (mutant) | tombstones |
//! | native-T11 | a reader skips an entry that one server lacks (mutant) | `store/reads.rs`, `read.rs` |
//! | native-T12 | a trimmed server forgets its tail (mutant) | `store/loglet_store.rs` |
//! | native-T13 | two sealers each hold some servers, and neither gets a majority | `seal.rs` |
//! | native-T14 | a check waits forever for a dead sequencer | `check_tail.rs` |
//! | native-T15 | an incomplete seal leaves appends unanswered | `sequencer/mod.rs` |
//! | native-T16 | a tail from an arbitrary subset of the replies | `check_tail.rs` native-S1 |
//! | native-T17 | sealed tails assumed equal: only the installed one counts | the virtual log |
//! | native-T18 | readers that wait forever at a sealed tail (mutant) | `log_server/serve.rs`, `loglet.rs` |
//! | native-T19 | a sealed tail from the sequencer's memory (mutant) | `loglet.rs` |
//! | native-T20 | a slow server's queue grows | `sequencer/window.rs` |
//! | native-T21 | an empty loglet: tail 0, sealed | `check_tail.rs` |
//! | native-T22 | writes after a failed sync; no room for a seal | `log_server/`, the journal |
//!
//! # Limits
//!
//! These have limits: the window per loglet and per server, remembered operations, waits, reads and moves per server, back-fills per node,
//! and rounds per operation. Each limit is an option of its role, documented with the effects of too small and too large values.

mod append;
mod back_fill;
mod check_tail;
pub mod config;
mod delete;
mod invariants;
mod log_server;
mod loglet;
pub mod message;
pub mod mutants;
mod plugin;
mod provider;
mod read;
mod reasons;
mod repair;
pub mod roles;
mod seal;
mod sequencer;
#[cfg(feature = "testing")]
mod testing;
mod trim;

pub use config::NativeConfig;
pub use log_server::{LogServer, LogServerOptions};
pub use loglet::{NativeLoglet, NativeOptions};
pub use plugin::NativePlugin;
pub use provider::NativeProvider;
pub use sequencer::{Sequencer, SequencerOptions};

//! StripedLoglet (Delos, OSDI'20 §4.2.2; virtuallog §10): a Loglet that is made of others, its *stripes*. It deals the appends out to them,
//! and one sequencer no longer carries every byte. It has no servers and no messages of its own: everything is done through the stripes,
//! which may be Loglets of any kind with contiguous offsets.
//!
//! | paper | file |
//! | --- | --- |
//! | the mapping of positions (Figure 7): L0 is A0, L1 is B0, L2 is A1 | `layout.rs` |
//! | append: dealt out, and acknowledged when all earlier positions are filled | `append.rs` |
//! | (not in the paper) pads for stripes that lag behind | `pads.rs` |
//! | checkTail: the first unfilled position; seal: all stripes | `check_tail.rs` |
//! | readNext: from the stripe of the position | `read.rs` |
//! | prefixTrim | `loglet.rs` |
//! | rotating sequencers (the same servers), sharded acceptors (other servers for each stripe) | `plan.rs` |
//! | (copies for reconfigModify) | `copy.rs` |
//! | invariants | `invariants.rs`; from outside of the nodes: `testing/oracle.rs` |
//!
//! # Departures from the paper, and why
//!
//! - *The stripe of a record follows from its name* (client, seq): consecutive records of a client go to consecutive stripes. In the paper,
//!   each client of the Loglet deals out its appends in turn, whatever they are. But only the stripe that received the first attempt of an
//!   append knows of it. A retry that went to another stripe, perhaps through another node, would be appended twice (vlog-V2).
//! - *A batch is split*: each record goes to its stripe. The records of one batch may therefore land in any order, and in part
//!   (`Loglet::keeps_order`, vlog-L8).
//! - *A blocked appender pads* (virtuallog §10). In the paper, an append waits until other appends have filled the earlier positions. If
//!   there are none, it would wait forever. Pads are entries that hold no record, and readers skip them.
//! - *A check that finds only some stripes sealed seals the others first* (virtuallog §10). Otherwise a sealer that died in the middle
//!   would leave a Loglet that takes no appends and does not count as sealed.
//! - *The sealed configuration is that of each stripe* (vlog-L9).
//!
//! # Traps
//!
//! | | what goes wrong otherwise | where it is handled |
//! | --- | --- | --- |
//! | an append is acknowledged as soon as its stripe has it (mutant) | a later tail, or the sealed one, is below it | `append.rs` |
//! | an idle stripe is not padded (mutant) | every append behind it waits forever | `pads.rs` |
//! | the answer to a pad is lost, and nobody else appends | the same | `pads.rs`: it checks the stripe's tail and pads again |
//! | an idle stripe was sealed while the others are open | the same: its pads are refused | `append.rs`: the append is answered Sealed |
//! | pads for a stripe to which appends are on their way | every append brings pads for all stripes | `stripes.rs` waits for them |
//! | several clients pad the same stripe, each by all that it lacks (mutant in `atoll-loglet-store`) | the stripe is far ahead, the others lag behind, and are padded in turn: more pads than records | a pad names its offset, and the stripe fills each offset once (`Loglet::append_above`) |
//! | the longest stripe taken for the sealed tail | readers get entries that were never acknowledged | `check_tail.rs` |
//! | a sealed tail of one stripe taken for a filled one | an append above the installed stop is acknowledged | `stripes.rs` |

mod append;
mod check_tail;
pub mod config;
mod copy;
mod invariants;
mod layout;
mod loglet;
pub mod mutants;
mod pads;
mod plan;
mod plugin;
mod provider;
mod read;
mod stripes;
#[cfg(feature = "testing")]
mod testing;

pub use config::{Mode, StripedConfig};
pub use layout::Layout;
pub use loglet::{StripedLoglet, StripedOptions};
pub use plugin::StripedPlugin;
pub use provider::StripedProvider;

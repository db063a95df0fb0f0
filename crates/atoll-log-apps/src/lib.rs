//! Applications of a shared log: CORFU-Store, optimistic transactions, replicated state machines (CORFU, TOCS 31(4), §3 and §4.4), and
//! those of Scalog (NSDI'20, §5).
//!
//! | paper | here |
//! | --- | --- |
//! | the interface of the log (Figure 1) | `shared_log.rs`; over CORFU's own interface in `corfu.rs`, over a log of a cluster in `client_log.rs`, in memory in `memory.rs` |
//! | CORFU-Store (§3): a replica of the log that maps keys to positions, multi-put and multi-get | `store/map.rs`, `store/client.rs` |
//! | snapshots at a position, rollback and replay | `store/map.rs`, `history.rs`, `player.rs` |
//! | garbage collection by applications (§2.6) | `store/compaction.rs` |
//! | the copy of a log in a second cluster | `mirror.rs` |
//! | CORFU-SMR (§3): a state machine that plays the log | `player.rs`, `smr.rs` |
//! | Scalog-Store (NSDI'20, §5) | `sharded_store/` |
//! | objects with streams of their own, in the manner of vCorfu (NSDI'17) | `streams/`; `counted.rs` counts what a reader reads |
//! | the online market (NSDI'20, §5) | `market/` |
//! | Hyder (CIDR'11): intentions, decided in the order of the log | `transactions/` |
//! | (retries) | `sessions.rs` |
//! | (what is appended; checkpoints in the log) | `entry.rs` |
//!
//! # Departures from the paper and the notes, and why
//!
//! - *Nobody sends a commit to the map service.* Replicas find it in the log (apps-A1). What they apply and when then depends on the log
//!   alone.
//! - *A move takes the place of a value in all versions of its key that still have it*, not only in the newest one. So snapshots and
//!   rollbacks see values that were moved, and the old position is needed by nobody.
//! - *Compaction writes a checkpoint into the log and reads it back before it trims.* The notes leave open what a lost replica starts from.
//! - *What is forgotten about retries is refused.* A table of clients and operations is bounded. A retry that it may have forgotten has no
//!   effect, and its outcome is reported as unknown.
//! - *The mirror copies entries in batches*, with the positions of the primary, and its replica takes only what comes next.
//! - *A procedure takes the place of a transaction that aborts too often*: replicas carry it out at its position in the log.
//!
//! # Not offered yet
//!
//! - No node uses this crate, and no door offers it: the applications are clients. With the feature `client`, they run over a log of a
//!   cluster, whatever Loglets are under it. `atoll-experiments apps` has a program for each. Such a log trims prefixes only.
//! - Compaction of the logs of mirrors, transactions and services: they can write checkpoints, but nothing trims them.
//! - Clients and map replicas are in one process. Back-off after conflicts is left to the caller.

#[cfg(feature = "client")]
pub mod client_log;
pub mod corfu;
pub mod counted;
pub mod entry;
mod gather;
pub mod history;
pub mod market;
#[cfg(feature = "testing")]
pub mod memory;
pub mod mirror;
pub mod mutants;
pub mod player;
pub mod sessions;
pub mod sharded_store;
pub mod shared_log;
pub mod smr;
pub mod store;
pub mod streams;
pub mod transactions;

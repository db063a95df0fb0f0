//! ZooKeeperLoglet: a log in an Apache ZooKeeper ensemble, or behind Atoll's own ZooKeeper door on another cluster (Delos, OSDI'20 §4.2,
//! the paper's ZKLoglet; virtuallog §2). No node of the cluster holds an entry. A log that is in ZooKeeper can move to nodes of Atoll, and
//! back, while it is used.
//!
//! | paper | file |
//! | --- | --- |
//! | what is in ZooKeeper | `layout.rs` |
//! | append | `append.rs`; `names.rs` finds operations that are in the log already |
//! | checkTail, seal | `loglet.rs` |
//! | readNext | `read.rs` |
//! | prefixTrim; deletion | `trim.rs` |
//! | (copies for reconfigModify) | `provider.rs` |
//! | the MetaStore on ZooKeeper (§3.4) | `register.rs` |
//! | what the protocol needs of an ensemble; a session with a real one | `ensemble.rs`, `session.rs` |
//! | invariants | `invariants.rs` |
//!
//! # Why it is correct
//!
//! All operations on a loglet meet in three znodes. *Seal* is at version 0 while the loglet is open. *Tail* holds the first offset without
//! an entry, and its version is the number of batches. *Home* is at version 0 until the loglet is deleted. An append is one atomic write:
//!
//! ```text
//! check  seal  is at version 0
//! set    tail  to the offset behind the batch, if it is at the version v that the handle knows
//! create e/B/v with the entries (and e/B, if v is the first batch of bucket B)
//! ```
//!
//! So batch v exists if and only if the tail has passed version v, each batch begins where the one before it ends, and no batch is created
//! after the seal has changed. ZooKeeper orders all writes, so each case below has one of two orders:
//!
//! | case | what happens |
//! | --- | --- |
//! | append and seal at the same time | the write before the seal succeeds, and its entries are below the tail that anybody reads after the seal; the write after it fails as a whole: `Sealed`, nothing was appended |
//! | two appends at the same tail | the second one fails on the tail's version; its handle reads what the other one appended and tries again behind it |
//! | two sealers | both set the seal; the first one counts, and both find the same tail: no append is between them |
//! | a tail is checked during appends | a write goes ahead of the reads on the same session, so they are not older than the check; the seal is read before the tail (vlog-V1), so (open, t) has t at most the sealed tail: the tail never falls, and there are no zombies |
//! | the connection is lost during an append | unknown: the handle looks behind another write and reads the batches since; an attempt at version v can only be batch v, and that is the handle's if author and serial number say so: then it succeeded. If another batch is there, or the loglet is sealed below v, it can never happen. Otherwise the handle tries again at the same version: ZooKeeper does at most one of the two |
//! | the lost write arrives later | as above: it needs version v of the tail, which only one write gets |
//! | the handle gives up, or dies | `Unknown`: the virtual log searches for the records (vlog-V2); if the write arrives later, a later append of this handle fails on the version and reads it |
//! | the session expires | nothing is ephemeral, so nothing is lost; requests under way are as after a lost connection, and a new session begins |
//! | the same operation through two nodes | a handle appends only at a tail up to which it knows all names; what is there keeps its offset, and what may be below the part that it knows is `Forgotten` (X16) |
//! | two trims | the trim is raised with its version, so it never falls; whoever comes later deletes what is left over |
//! | a deleted loglet | home stays as a tombstone, and its version is checked wherever a loglet could be created, sealed or found open (vlog-L7, vlog-V6) |
//! | another ensemble answers, or this one has lost its data | a loglet is created only where the znode with the token of its plan is: nothing is created, appended or found empty there (`Elsewhere`). A later plan for the same place checks the token, too |
//! | a read from a server that lags behind | the batch seems to be missing: the handle looks behind a write, after which this session has everything, and reads again |
//!
//! # Departures from the paper, and why
//!
//! The paper says only that its ZKLoglet keeps the log in ZooKeeper.
//!
//! - *One write at a time for each handle.* What arrives meanwhile goes into the next batch. A second write under way would have to depend
//!   on the first one: not only on the version that it makes, because another handle's write may make the same version.
//! - *A batch of entries in each znode.* An entry in each would cost ZooKeeper a transaction and a znode in memory for each. The largest
//!   batch fits into one packet of a server with default settings (`jute.maxbuffer`).
//! - *Numbers that the writer chooses, not sequential znodes*: ZooKeeper counts deletions, too, so its numbers have gaps, and offsets must
//!   not (vlog-V13).
//! - *A check of the tail is a write.* A `sync` does not ask a quorum, so a server behind a leader that was replaced may answer from the
//!   past.
//!
//! # Limits
//!
//! - The znodes are open to all clients of the ensemble, and connections are not encrypted. Protect the ensemble by its network.
//! - ZooKeeper keeps all data in memory: trim, and move on before the log is large. A loglet has at most 2^31 − 2 batches.
//! - Handles on several nodes that append at the same time are in each other's way: each conflict costs two round trips, and the batches
//!   grow. They take turns, so each gets its share (`append.rs`).
//! - A loglet that lost the race to be installed stays in the ensemble, almost empty (vlog-V8). Nothing lists the loglets of an ensemble.

mod append;
mod config;
pub mod ensemble;
mod invariants;
mod layout;
mod loglet;
pub mod mutants;
mod names;
mod plugin;
mod provider;
mod read;
mod register;
mod session;
#[cfg(feature = "testing")]
pub mod testing;
mod trim;

pub use config::ZooKeeperConfig;
pub use layout::{BucketNode, TailNode, TrimNode};
pub use loglet::{ZooKeeperLoglet, ZooKeeperOptions};
pub use plugin::ZooKeeperPlugin;
pub use provider::{KIND, OPTIONS, USUAL_ROOT, ZooKeeperProvider};
pub use register::ZooKeeperRegisters;

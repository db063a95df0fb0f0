//! Scalog (NSDI'20, "Scalog: Seamless Reconfiguration and Total Order in a Scalable Shared Log"): records are replicated in small shards
//! first, and ordered afterwards, by cuts over counts.
//!
//! | paper | here |
//! | --- | --- |
//! | storage server (§3, Figure 2): segments, FIFO replication inside a shard, reports | `server/` |
//! | aggregator (§3.2, a tree) | `aggregator.rs` |
//! | ordering layer (§3.2): cuts from the minimum of each shard | `orderer.rs`, `reported.rs` |
//! | (fewer reports while cuts come late) | `pace.rs` |
//! | cuts and global sequence numbers (§3.2) | `order.rs` |
//! | (the beginning of an ordering log that was trimmed) | `snapshot.rs` |
//! | the ordering layer's own log | `ordering.rs` |
//! | append, appendToShard, readRecord, subscribe, trim, setShardPolicy (§3.1) | `loglet/client.rs`, `loglet/policy.rs` |
//! | the same as a Loglet | `loglet/append.rs`, `loglet/shards.rs`, `loglet/read.rs`, `loglet/tail.rs` |
//! | adding and finalizing shards (§4) | `order.rs`, `loglet/shards.rs`; of shards that are stuck: `orderer.rs` |
//! | (seal, tail) | `loglet/tail.rs` |
//! | (placement) | `config.rs`, `plan.rs` |
//! | (when another Loglet must follow) | `reasons.rs` |
//!
//! # Departures from the paper and the notes, and why
//!
//! - *The ordering log carries minima, not cuts.* The cut and the numbers are computed when an entry is applied (scalog-S2, S3). Any number
//!   of orderers may therefore propose at the same time, and there is no leader to elect.
//! - *Servers and clients read the ordering log themselves*, instead of getting its entries from the ordering layer. Its log is replicated
//!   and readable anyway, and whoever misses an entry reads it by its place (scalog-S7).
//! - *A primary replicates what is on its own disk.* An append waits for two syncs, one after the other. In return, a primary that was
//!   restarted has everything that it ever sent, and gives no place away twice (scalog-S12).
//! - *A client's shard follows from its number*, so that a retry through another node finds the first attempt (scalog-S15). A client moves
//!   only when its shard ends. Appends to a shard of the caller's choice are separate (`loglet/shards.rs`).
//! - *The numbers of records are not journaled.* A server that was restarted reads the ordering log from its beginning. So an entry of
//!   that log is kept until all records that it and the entries before it order were given up (scalog-S8). Then the log begins with a
//!   snapshot of the state of the order, which is an entry itself.
//! - *Aggregators forward the counts of each server*, also where they know all servers of a shard, because a minimum over part of a shard
//!   would be wrong after a restart (scalog-S6).
//! - *Servers report less often while cuts come late.* A server has few reports under way that no cut covers (`pace.rs`), and an orderer
//!   has few cuts under way. So an ordering layer with more to do than it can makes larger, rarer cuts. The paper's servers report at a
//!   fixed interval.
//! - *keeps_order is false*: the records of two segments are ordered by cuts.
//! - *The ordering log is a single Loglet on a node* (`provider.rs`, `KindLogs`), not a virtual log. Without its sequencer nothing is
//!   acknowledged. Then a seal of the whole seals the ordering log itself, and the virtual log above continues with another Scalog Loglet.
//!   `ordering.rs` says why that is safe although the sealed tails of a native Loglet may differ.
//!
//! # Not offered yet
//!
//! - Virtual logs as ordering logs, which [`ScalogPlugin::over`] takes: nodes use single native Loglets.
//! - Shards for the paper's applications (`atoll-log-apps`): on a cluster's log, they see every record in shard 0.
//! - Copies of the records of a shard that has ended and lost a server.

pub mod aggregator;
pub mod config;
mod invariants;
pub mod loglet;
pub mod message;
pub mod mutants;
pub mod order;
pub mod orderer;
pub mod ordering;
pub mod pace;
mod plan;
mod plugin;
mod provider;
mod reasons;
pub mod reported;
pub mod roles;
pub mod server;
pub mod snapshot;
#[cfg(feature = "testing")]
pub mod testing;

pub use aggregator::Aggregator;
pub use config::{OrderingSpec, ScalogConfig, Server, ShardError, ShardSpec};
pub use loglet::{
    ChangeError, ChooseShard, LiveShard, PolicyAppendError, ScalogClient, ScalogLoglet, ScalogOptions,
    ShardPolicy, Subscription,
};
pub use orderer::{Orderer, OrdererOptions};
pub use ordering::OrderingLogs;
pub use plugin::ScalogPlugin;
pub use provider::{AGGREGATOR_ROLE, KIND, KindLogs, ORDERER_ROLE, STORAGE_ROLE, ScalogProvider};
pub use server::{ServerOptions, StorageServer};

//! Bizur: a keyspace without a log. Each bucket of keys is a replicated register of its own, which the elected leader of its shard writes.
//!
//! Source: Hoch, Ben-Yehuda, Lewis and Vigder, "Bizur: A Key-value Consensus Algorithm for Scalable File-systems" (2017), and the protocol
//! notes `bizur` (§, B and Z numbers below refer to them). Operations on different buckets never wait for each other, and there is nothing
//! to replay, to truncate or to compact. A new leader recovers each bucket on its own, when it is first needed and in the background.
//!
//! | the paper's term | our term |
//! | --- | --- |
//! | server | node with the role [`roles::REPLICA`] |
//! | instance, cluster | shard: its replicas, its buckets and its leader |
//! | elect_id | [`ElectId`]: round and candidate |
//! | voted_elect_id | the vote of a replica |
//! | bucket.ver | [`Ver`]: election and counter |
//! | set, delete, conditional forms | writes of the [`Keyspace`](atoll_contract::Keyspace) trait |
//!
//! | paper | what | code |
//! | --- | --- | --- |
//! | Algorithm 1 | election | `leader/mod.rs` (candidate), `node.rs` (voter) |
//! | Algorithm 2 | replicated write | `leader/serve.rs`, `leader/rounds.rs` (leader), `bundle.rs` (messages), `shard.rs` (replica) |
//! | Algorithm 3 | replicated read, confirmation | `leader/rounds.rs`, `shard.rs` |
//! | Algorithm 4 | recovery of a bucket | `leader/serve.rs` (which buckets), `leader/rounds.rs` |
//! | Algorithm 5 | get, set, delete, iterate | `leader/serve.rs`, `bucket.rs`; the client in `client.rs`, `search.rs` |
//! | §7 of the notes | watches of keys | `leader/watches.rs`, `client.rs` |
//! | §2.6, §6 of the notes | reconfiguration | `mover.rs` (the steps), `moves.rs` (replicas), `leader/rounds.rs` (copies), `groups.rs` (layouts) |
//! | §5 of the notes | durable and in memory, identities | `shard.rs`, `node.rs`, `checkpoint.rs` |
//! | §8 of the notes | invariants | `invariants.rs`; the rest from outside of the nodes, `testing/oracle.rs` |
//!
//! # Departures
//!
//! - The mistakes of the paper's pseudocode that the notes list (bizur-B1–B15) are corrected. In short: replicas compare whole versions,
//!   elections are named after their candidate and are durable, a leader knows which buckets a majority has recovered, and a request is
//!   answered only once a majority has confirmed the leader after the request arrived.
//! - *Exactly once* (bizur-B10): a bucket remembers the outcomes of its last [`REMEMBERED_WRITES`] writes. A write carries a floor, so one
//!   whose outcome may have been forgotten is refused, not repeated (`bucket.rs`). A first attempt has no floor of its caller. So a bucket
//!   also remembers its last [`REMEMBERED_REPEATS`] repeats: an attempt that was held up finds that its repeat was done meanwhile.
//! - A write that a majority of the replicas has no room for is undone: its leader writes the old content under a newer version before it
//!   refuses the client. The leader keeps its term.
//! - A read needs no turn in the queue of its bucket. It is answered from the committed content once a round that was sent after its
//!   arrival is acknowledged. That is the moment at which it takes effect.
//! - Reconfiguration (§6): the register of the keyspace names an instance before it exists, and it exists only once a majority of the one
//!   before is sealed. An instance copies what it has never written itself, so no bucket needs a flag. A sealed replica refuses recoveries,
//!   too: the next instance takes the highest version of a sealed majority, and decides among versions that nobody acknowledged.
//! - Leases are not fields of a bucket (§7 of the notes). They are values of keys, which the contract changes by conditional writes, in the
//!   same way for every engine.
//!
//! # Not offered yet
//!
//! - A change of the number of buckets, which would be a move with another hash (§7).
//! - Storage in place. The durable variant keeps its facts in the journal; `Shard::keep` is the seam.
//! - A leader does not return to its preferred node after that node has been away.
//! - Datagrams: messages travel on the connections between nodes.

mod bucket;
mod bundle;
mod checkpoint;
mod client;
mod elect;
mod groups;
mod invariants;
mod leader;
pub mod message;
mod mover;
mod moves;
pub mod mutants;
mod node;
mod plugin;
mod provider;
pub mod roles;
mod search;
mod shard;
#[cfg(feature = "testing")]
mod testing;

pub use bucket::{
    Applied, Bucket, BucketWrite, MAX_BUCKET_BYTES, MAX_CONTENT_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES,
    Outcome, REMEMBERED_REPEATS, REMEMBERED_WRITES,
};
pub use checkpoint::facts_of;
pub use client::{BizurKeyspace, ClientOptions};
pub use elect::{ElectId, MAX_ROUND, Ver};
pub use leader::LeaderOptions;
pub use node::{BizurNode, NodeOptions};
pub use plugin::BizurPlugin;
pub use provider::{BizurProvider, ENGINE};
#[cfg(feature = "testing")]
pub use testing::groups_of;

//! LogServiceLoglet (the place of Delos' LogDeviceLoglet, OSDI'20 §4.2): a log in a replicated log service that others run, NATS with
//! JetStream. A loglet is a stream. No node of the cluster holds an entry, and none has a role.
//!
//! | paper (Delos Figure 2) | here |
//! | --- | --- |
//! | append | `append.rs`: the batches that wait become one message, published with a condition |
//! | checkTail → (tail, sealed) | `tail.rs`: a mark, and everything below it |
//! | readNext | `read.rs` |
//! | prefixTrim; deletion | `trim.rs`: a message that says so; a purge behind it |
//! | seal | `tail.rs`: a message without entries |
//! | (copies for reconfigModify, cold storage) | `copy.rs` |
//! | what a handle knows; how it follows the log | `known.rs`, `follow.rs` |
//! | the messages as bytes | `layout.rs` |
//! | what the protocol needs of a service; a real one, on threads of its own | `service.rs`, `nats/` |
//! | invariants | `invariants.rs`; from outside: the conformance suite, and the scenario `log-service` of the simulator |
//!
//! # Why it is correct
//!
//! The service gives the messages of a stream sequences, which only rise, also for the other subjects of the stream, and makes each durable
//! on a majority of the stream's servers before it confirms it. A publish on the subject of the log may *expect* that the newest message
//! there has some sequence. Of all publishes that expect the same, at most one succeeds: the leader compares before it proposes, a new
//! leader leads only once it has applied all that was proposed before, and an old one gets no majority. A server shows a message only once
//! it is durable, and in order. So what is there is right, and what is missing proves nothing.
//!
//! An appender expects the newest message that it knows, and so knows everything below the one that it publishes: where its entries begin,
//! which operations are in the log already, that there is no seal, and the highest trim. Its message says what it knew (service-S1).
//!
//! | case | what happens |
//! | --- | --- |
//! | two appends behind one message | one publish succeeds. The other is refused; its appender reads on, and plans anew what is still new |
//! | an append and a seal | the seal has no condition, so it always gets in. An append with a lower sequence counts, and everybody who knows the seal knows it; a later one was refused, because its appender expected the message before the seal (service-S2) |
//! | two sealers | the first seal counts. The second one has the same entries below it |
//! | a tail is checked | the checker publishes a mark and follows the log up to it. The mark is durable on a majority, so every append that was acknowledged before has a lower sequence (service-S3, vlog-L4). Seal and tail come from the same messages (vlog-V1) |
//! | an old leader answers reads | it shows messages that are right, and no newer ones. A tail needs a mark, which it cannot make durable |
//! | an old leader gets an append | it refuses it, or cannot confirm it. Its proposals are dropped when it learns of the new leader |
//! | the answer to an append is lost | unknown. The appender reads on: its own stamp says that it succeeded, another message at the expected place that it never can (service-S4). As long as nobody has the place, the same message is published again: at most one of the attempts succeeds |
//! | no answer until the deadline, or the handle dies | `Unknown`: the virtual log searches for the records (vlog-V2). A late publish still expects the same message |
//! | the answer to a seal, a trim or a mark is lost | it is published again. Twice says the same as once, also late |
//! | the leader changes in the middle of a publish | as after a lost answer |
//! | the same operation through two nodes | what is in the log keeps its offset; what may be below the part that the appender knows is `Forgotten` (service-S7, X16) |
//! | two trims | each is a message; the highest one counts. A late purge deletes no more than its trim allows, and never the newest message of entries (service-S5) |
//! | a deleted loglet | its stream is gone. A stream gets its random name from one request, which was answered before a chain names it, so none with that name comes back, and a missing stream is a deleted one (service-S6, vlog-L7, vlog-V6) |
//! | somebody removes a message, or alters the stream | each message of entries names the one before it, and each has a checksum. Handles look at the stream's configuration when they begin |
//!
//! # Why the seal is a message
//!
//! JetStream can seal a stream by itself (`sealed` in its configuration). The configuration goes through another group of servers than the
//! messages, and reaches the stream's leader later. An append that the leader confirms in between has no order with the seal. A message of
//! the log has one.
//!
//! # Departures from the paper, and why
//!
//! - *One message of a handle is on its way at a time*, so the entries of a handle stay in order (vlog-L8). A message has up to a megabyte
//!   of entries, and what arrives meanwhile goes into the next one.
//! - *A check of the tail is a write.* JetStream has no read that asks a majority. A mark replaces the one before it, so a stream has one.
//!
//! # Limits
//!
//! - What an append costs depends on the servers' `sync_interval`: with `always`, a message is on the disks of a majority when it is
//!   confirmed; by default, in their memory, and a loss of power of all of them loses up to two minutes.
//! - Handles on several nodes that append at the same time are in each other's way. After an append, a handle that has met others lately
//!   lets them go first for some milliseconds.
//! - A plan creates a stream. One that no chain names, because the plan or the move failed, is deleted by the node that has planned it
//!   (vlog-V8). If that node dies first, or reaches no service for a minute, the stream stays, without entries. So does the stream of a
//!   trimmed segment that could not be deleted for that long. Nodes never list streams: others may have names with the same prefix.
//! - Decentralized credentials of NATS (files with keys and JWTs) are not switched on.

mod append;
pub mod config;
mod copy;
mod follow;
mod invariants;
mod known;
mod layout;
mod loglet;
pub mod mutants;
mod nats;
mod plugin;
mod provider;
mod read;
pub mod service;
mod tail;
#[cfg(feature = "testing")]
pub mod testing;
mod trim;

pub use config::LogServiceConfig;
pub use loglet::{LogServiceLoglet, LogServiceOptions};
pub use plugin::LogServicePlugin;
pub use provider::{KIND, LogServiceProvider, OPTIONS, USUAL_PREFIX};

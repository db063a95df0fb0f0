//! ObjectLoglet (the place of Delos' BackupLoglet, OSDI'20 §4.2): a log in an object store. Entries, seal and trims are objects. No node
//! has a role: every node appends and reads by itself, so a log survives all nodes, and needs none of their disks.
//!
//! | paper (Delos Figure 2) | here |
//! | --- | --- |
//! | append | `append.rs`: the batches that wait become one object, which takes the next index |
//! | checkTail → (tail, sealed) | `tail.rs`: the first index without entries |
//! | readNext | `read.rs` |
//! | prefixTrim | `trim.rs`: a row of trims; whole blocks of objects are deleted behind them |
//! | seal | `seal.rs`: an object without entries takes the next index |
//! | (deletion, vlog-L7) | `delete.rs` |
//! | (copies for reconfigModify, cold storage) | `copy.rs` |
//! | the objects: names, bytes, what counts | `names.rs`, `object.rs`, `shelf.rs` |
//! | the MetaStore in an object store (§3.4) | `register.rs` |
//! | what a handle knows | `known.rs` |
//! | the store, on threads of its own | the crate `atoll-object-store` |
//! | invariants | `invariants.rs`; from outside: the conformance suite, `tests/protocol/faults.rs` |
//!
//! # Why it is correct
//!
//! The store promises two things: of all conditional puts to one name, at most one succeeds; and a read that begins after a put was
//! answered finds the object, or a later deletion. Lists are never asked for, so it does not matter how old they are. The indexes of the
//! log are like CORFU's write-once addresses, except that one holds a run of entries. An appender knows the end of the log before it
//! takes an index, so an object proves that all lower indexes are taken, and its head says where its entries begin (object-O2). From that
//! follow:
//!
//! - *The order is that of the indexes.* An append that begins after another one was acknowledged takes a higher index (vlog-L1).
//! - *A seal is exact.* It takes the next index, so every append that is acknowledged has a lower one, and none can follow: an appender
//!   that meets it stops. All sealed tails are equal (vlog-L3, vlog-L5).
//! - *The tail is the first index without entries.* Every index that was acknowledged before the check is taken (vlog-L4).
//! - *An operation has one offset.* An appender has read all objects between the floor of a retry and the index that it takes, or answers
//!   Forgotten (object-O6, vlog-V2, X16).
//!
//! Deletions would break the first promise: a name that is free again takes another put, from a node that was paused, or that has known
//! nothing new for hours. So indexes are deleted in blocks, and the mark of a block, which is never deleted, says *deleted* before its
//! first object goes. **What is seen or put at an index counts only if the mark of its block does not say *deleted* afterwards**
//! (object-O3). This costs one small read per object, and no clock.
//!
//! | case | what happens |
//! | --- | --- |
//! | two appends for one index | one put succeeds. The other appender reads the object, and takes the next index with what is still new |
//! | an append and a seal | the same. An append that loses to the seal answers Sealed |
//! | two sealers | the one that loses finds the seal, and is done |
//! | a sealer loses again and again | it asks for the seal in the mark of the block. Appenders read that mark after each put anyway, and then seal themselves |
//! | the answer to a put is lost | the index is read back. The stamp of the object (handle, number) tells whether it is this one. As long as nothing is there, the put is repeated at the same index: one of the attempts succeeds, or somebody else's. Only then is the next index tried, because no attempt can succeed any more |
//! | no answer until the deadline | the append answers Unknown. Its put may still succeed, at that index only |
//! | the store says that there is an object, and there is none (S3, while two puts meet) | the same as a lost answer: nobody continues before an object was seen |
//! | the answer to the put of a seal is lost | the next attempt looks first, and finds it. A late one seals a log that somebody wanted to seal |
//! | a put arrives after its index was taken and deleted | it succeeds, and its block is marked: the append answers Unknown, and nobody else sees the object (object-O3) |
//! | a node knows less than what was deleted | every look at a deleted block says so; it finds the first block that is not deleted by bisection over the marks |
//! | a Loglet is deleted | the same, and the note `gone` says why: Gone, on every node, permanently (vlog-L7) |
//! | trims race | each is an object with the next number in a row, so the trim never falls |
//! | a node sees another store, for example an empty directory where nothing is mounted | it does not find the object that the plan created, and answers nothing |
//!
//! # What it costs
//!
//! A node puts one object per `interval_ms`, of at most `batch_bytes` of entries before compression, if it has something to append; a lone
//! append does not wait. Requests, where *p* is the price of 1000 puts and *g* that of 1000 reads (on S3, a put costs as much as 12 reads):
//!
//! | operation | puts | reads |
//! | --- | --- | --- |
//! | an object of entries, without contention | 1 | 1 (the mark) |
//! | an index that is lost to another node | 1 | 2 |
//! | checkTail | 0 | 3 (index, mark, trims); 2 more for each new object |
//! | a wait for the tail on a node | 0 | 1 every 20 to 500 ms, 2 to 50 per second |
//! | reading an object that is not in memory | 0 | 2. A reader of many entries fetches several objects of a block at once, with one mark: 16 at most, and no more than fit into half of `cache_bytes` |
//! | seal | 1 | 4 |
//! | prefixTrim | 1 | 4; for each block that is deleted, 1 put, 2 reads and the deletions |
//!
//! So a busy node makes at most `1000 / interval_ms` puts and as many reads per second: with the default of 50 ms, 20 each. A gigabyte of
//! entries needs at least `2^30 / batch_bytes` of both: 256 with the default of 4 MiB. What is stored is the compressed size, and 44 bytes
//! for each block and trim.
//!
//! # Departures from the paper, and why
//!
//! - *It can be active.* The paper's BackupLoglet holds only cold segments. Here the conditional put makes a store order appends, too.
//! - *No role.* A single writer would save the puts that are lost to others, and the reads that follow. But it would be a node that can die
//!   and has to be replaced, and the others would have to reach it. A replica reads all objects anyway, and they stay in memory for it.
//! - *One object of a handle is on its way at a time.* So the entries of a handle stay in order (vlog-L8), and a lost object never leaves a
//!   gap. Throughput comes from the size of objects.
//! - *Marks and the note of a deletion stay.* They are what makes late puts harmless.

mod append;
pub mod config;
mod copy;
mod delete;
mod invariants;
mod known;
mod loglet;
pub mod mutants;
mod names;
mod object;
mod plugin;
mod provider;
mod read;
mod register;
mod seal;
mod shelf;
mod tail;
#[cfg(feature = "testing")]
pub mod testing;
mod trim;

pub use atoll_object_store as store;
pub use config::ObjectConfig;
pub use loglet::{ObjectLoglet, ObjectOptions};
pub use plugin::ObjectPlugin;
pub use provider::{KIND, ObjectProvider};
pub use register::ObjectRegisters;

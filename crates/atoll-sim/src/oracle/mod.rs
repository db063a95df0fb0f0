//! Oracles check the invariants from outside of the product. They see the requests and answers of clients, frames on the wire and records
//! on disks. They share no code with the product except the message and record types. An oracle that reads the messages and records of one
//! protocol belongs to that protocol: `testing/oracle.rs` in its folder.
//!
//! | file | what it checks |
//! | --- | --- |
//! | `log.rs` | logs as clients see them |
//! | `register.rs` | registers as clients see them |
//! | `plugins.rs` | what the oracles of the protocols check |
//! | `chain.rs` | chains of virtual logs, as the registers choose them |
//! | `completion.rs` | reconfigurations that were started, vlog-VL8 |
//! | `database.rs` | the database as its clients and doors see it |
//! | `histories.rs` | what the replicas of the database have applied, compared with each other |
//! | `tables.rs` | tables as their clients see them, compared with the oracle's own rows |
//! | `zookeeper/` | ZooKeeper as its clients see it, compared with the oracle's own tree |
//! | `wire.rs` | feeds `plugins.rs` and `chain.rs` |

pub mod chain;
pub mod completion;
pub mod database;
pub mod histories;
pub mod log;
pub mod plugins;
pub mod register;
pub mod tables;
pub mod wire;
pub mod zookeeper;

/// Counts the answers to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Acknowledged writes. A write counts once, however often it was sent.
    pub writes: u64,
    /// All other answers: reads, tail checks, refusals, repeated acknowledgements.
    pub reads: u64,
}

impl Answered {
    /// Counts one answer.
    pub fn one(is_write: bool) -> Self {
        Answered { writes: is_write.into(), reads: (!is_write).into() }
    }

    /// Returns the number of all answers.
    pub fn sum(self) -> u64 {
        self.writes + self.reads
    }
}

impl std::ops::AddAssign for Answered {
    fn add_assign(&mut self, more: Self) {
        self.writes += more.writes;
        self.reads += more.reads;
    }
}

//! Oracles: the invariants, checked from outside of the product. Oracles see what clients asked and got, frames on the wire and
//! records on disks, and share no code with the judged code except the message and record types.
//!
//! | file | what it judges |
//! | --- | --- |
//! | `log.rs` | logs as clients see them |
//! | `register.rs` | registers as clients see them |
//! | `native.rs` | NativeLoglets as the wire and the disks show them |
//! | `gaps.rs` | what servers of NativeLoglets lack, native-N7 |
//! | `rmw.rs` | RMWPaxos as the wire and the disks show it |
//! | `chain.rs` | chains of virtual logs as their registers choose them |
//! | `completion.rs` | reconfigurations that were begun, vlog-VL8 |
//! | `database.rs` | the database as its clients and doors see it |
//! | `tables.rs` | tables as their clients see them, against rows of our own |
//! | `zookeeper/` | ZooKeeper as its clients see it, against a tree of our own |
//! | `wire.rs` | feeds `native.rs`, `rmw.rs` and `chain.rs` |

pub mod chain;
pub mod completion;
pub mod database;
mod gaps;
pub mod log;
pub mod native;
pub mod register;
pub mod rmw;
pub mod tables;
pub mod wire;
pub mod zookeeper;

/// What clients were answered: only the first field counts completed writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Writes that were acknowledged, each once however often it was sent.
    pub writes: u64,
    /// Everything else: reads, tails, refusals, repeated answers.
    pub reads: u64,
}

impl Answered {
    /// One answer.
    pub fn one(is_write: bool) -> Self {
        Answered { writes: is_write.into(), reads: (!is_write).into() }
    }

    /// All of them.
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

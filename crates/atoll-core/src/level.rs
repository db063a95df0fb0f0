//! Feature levels: what all members of a cluster can read, and so what each of them may write (contracts X28).
//!
//! A program can read a range of levels. Every member announces its range. The *active* level of the cluster is one that all members can
//! read. It rises when an operator finishes an upgrade, and never falls. A node writes a kind of entry, command, record, snapshot or
//! message only if the active level includes it: the ability to read a kind ships first. [`since`] lists which kind came with which level.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use bytes::BytesMut;

use crate::codec::{Decode, DecodeError, Encode, Reader};
use crate::mutants;
use crate::testing::mutant;

/// What the members of a cluster can read. Levels rise by one with each release that writes something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Level(pub u16);

impl Level {
    /// The level of programs that predate levels and announce none.
    pub const FIRST: Level = Level(1);
    /// The highest level of this program.
    pub const CURRENT: Level = Level(2);
    /// The level after [`Level::CURRENT`]. Only test builds read it: what they write at this level stands for what a later release may add.
    pub const NEXT: Level = Level(Level::CURRENT.0 + 1);
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Encode for Level {
    fn encode(&self, out: &mut BytesMut) {
        self.0.encode(out);
    }
}

impl Decode for Level {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Level(u16::decode(from)?))
    }
}

/// The level from which each kind may be written. Add a line here with every new kind of entry, command, record, snapshot or message.
pub mod since {
    use super::Level;

    /// Nodes keep the level in their journals, as records of a role of its own.
    pub const KEPT_LEVEL: Level = Level(2);
    /// Nodes send only heartbeats with health and reach. Below this level, they also send the original kind.
    pub const WHOLE_HEARTBEATS: Level = Level(2);
    /// The handshake of a connection states how far the journal has come.
    pub const WITNESS: Level = Level(2);
    /// Chains of logs refer to index pages.
    pub const INDEX_PAGES: Level = Level(2);
    /// Chains say which single entries operators have excised or replaced, and which one is held for that.
    pub const SURGERY: Level = Level(2);
    /// Chains can say that their log was deleted.
    pub const DELETED_LOGS: Level = Level(2);
    /// Commands of ZooKeeper's tree end a session step by step, and what a transaction may read and replace is bounded.
    pub const ENDS_IN_STEPS: Level = Level(2);
    /// Commands and records of ZooKeeper's sessions have the hash of the password instead of it.
    pub const HASHED_PASSWORDS: Level = Level(2);
    /// Commands of the database are longer than an entry, which has a part of one.
    pub const LONG_COMMANDS: Level = Level(2);
    /// The database has an application of grants and tokens.
    pub const AUTHORISATION: Level = Level(2);
    /// An append states a lower bound for the offsets of its records. It is the last field of the messages to sequencers.
    pub const NOT_BELOW: Level = Level(2);
    /// Chains name Loglets of kind striped, and logs have pads.
    pub const STRIPED: Level = Level(2);
    /// Registers hold layouts of keyspaces, and nodes have replicas of them.
    pub const KEYSPACES: Level = Level(2);
    /// Chains of logs move to registers outside of the cluster, and nodes ask each other what they find there.
    pub const REGISTER_PLACES: Level = Level(2);
    /// A LogServer can be asked for the status of specific Loglets.
    pub const STATUS_OF: Level = Level(2);
    /// A LogServer can be asked for the next entries, once there are some.
    pub const READ_NEXT: Level = Level(2);
}

crate::record! {
    /// The range of levels that a program can read, both ends included.
    pub struct LevelRange {
        /// The lowest level. Below it, this program cannot restrict itself to what the others can read.
        pub lowest: Level,
        /// The highest level. Above it, this program cannot read what the others write.
        pub highest: Level,
    }
}

impl Copy for LevelRange {}

impl LevelRange {
    /// The range of this program.
    pub const OURS: LevelRange = LevelRange { lowest: Level::FIRST, highest: Level::CURRENT };
    /// The range of a member that has announced none: its program predates levels.
    pub const UNANNOUNCED: LevelRange = LevelRange { lowest: Level::FIRST, highest: Level::FIRST };

    /// Checks whether a program with this range may be a member at this active level.
    pub fn check(self, active: Level) -> Result<(), LevelError> {
        match active {
            _ if active > self.highest => Err(LevelError::TooOld { reads: self, active }),
            _ if active < self.lowest => Err(LevelError::TooNew { reads: self, active }),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for LevelRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.lowest, self.highest)
    }
}

/// Why a program cannot be a member. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// The other members may write what the program cannot read.
    #[error(
        "this program is too old: it reads feature levels {reads}, and the cluster is at level {active} since its upgrade was finished; start this node with a program that reads level {active}"
    )]
    TooOld {
        /// The range of the program.
        reads: LevelRange,
        /// The active level of the cluster.
        active: Level,
    },
    /// The program can no longer write in a form that the other members can read.
    #[error(
        "this program is too new: it reads feature levels {reads}, and the cluster is at level {active}; start this node with the program that the others run, run `atoll cluster upgrade`, then update again"
    )]
    TooNew {
        /// The range of the program.
        reads: LevelRange,
        /// The active level of the cluster.
        active: Level,
    },
}

#[derive(Debug)]
struct Inner {
    reads: LevelRange,
    active: AtomicU16,
    settled: AtomicBool,
}

/// The feature levels as one node knows them. Cheap to clone; all clones share one state. Query it at the moment of writing: the level
/// never falls, so a kind that was allowed once stays allowed.
#[derive(Clone, Debug)]
pub struct Levels(Arc<Inner>);

impl Levels {
    /// Returns the levels of a program that can read this range. The active level is the first one until the node learns of another.
    /// `settled`: see [`Levels::is_settled`].
    pub fn new(reads: LevelRange, settled: bool) -> Self {
        let (active, settled) = (AtomicU16::new(Level::FIRST.0), AtomicBool::new(settled));
        Levels(Arc::new(Inner { reads, active, settled }))
    }

    /// Returns the range that this program can read.
    pub fn reads(&self) -> LevelRange {
        self.0.reads
    }

    /// Returns the active level of the cluster as far as this node knows. The real one may already be higher.
    pub fn active(&self) -> Level {
        if mutant(mutants::LEVELS_WRITE_WHAT_THEY_READ) {
            return self.0.reads.highest;
        }
        Level(self.0.active.load(Ordering::Acquire))
    }

    /// Returns whether a kind that came with this level may be written now.
    pub fn allows(&self, since: Level) -> bool {
        self.active() >= since
    }

    /// Raises the active level to `active`; a lower level changes nothing. Returns true if the level has risen.
    ///
    /// # Errors
    /// Fails if this program cannot be a member at that level. Nothing is changed.
    pub fn learn(&self, active: Level) -> Result<bool, LevelError> {
        self.0.reads.check(active)?;
        Ok(self.0.active.fetch_max(active.0, Ordering::AcqRel) < active.0)
    }

    /// Returns true once the cluster knows this program's range and the range fits. Until then, a node neither reads nor writes anything
    /// replicated.
    pub fn is_settled(&self) -> bool {
        self.0.settled.load(Ordering::Acquire)
    }

    /// Marks the range as known to the cluster; see [`Levels::is_settled`].
    pub fn settle(&self) {
        self.0.settled.store(true, Ordering::Release);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_level_rises_only_and_only_within_what_is_read() {
        let reads = LevelRange { lowest: Level(2), highest: Level(3) };
        let levels = Levels::new(reads, true);
        assert_eq!(levels.learn(Level(4)), Err(LevelError::TooOld { reads, active: Level(4) }));
        assert_eq!(levels.learn(Level(1)), Err(LevelError::TooNew { reads, active: Level(1) }));
        assert_eq!(levels.active(), Level::FIRST);
        assert_eq!(levels.learn(Level(3)), Ok(true));
        assert_eq!(levels.learn(Level(2)), Ok(false));
        assert_eq!(levels.active(), Level(3));
        assert!(levels.allows(Level(3)) && !levels.allows(Level(4)));
    }

    #[test]
    fn a_refusal_names_both_levels() {
        let words = LevelRange::UNANNOUNCED.check(Level(7)).unwrap_err().to_string();
        assert!(words.contains("1 to 1") && words.contains("level 7"), "{words}");
    }
}

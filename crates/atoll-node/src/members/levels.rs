//! The table of feature levels, and the role that keeps the active level across restarts and reports to peers what this program can read.
//! The table has a register of its own, because programs that do not know levels read the register of the members.

use std::collections::BTreeMap;

use atoll_core::level::since;
use atoll_core::{
    Caller, Decode, DecodeError, Effects, Encode, Frame, Level, LevelRange, Levels, Loc, Lsn, Message,
    NodeId, Reader, RecordKind, Refused, Role, Stored, Tick,
};
use bytes::{Bytes, BytesMut};

use super::table::{MAX_MEMBERS, MemberTable};

/// The register that holds the table.
pub const REGISTER: &str = "cluster/levels";
const FORMAT: u8 = 1;

/// The levels that the members have announced, and the active level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LevelTable {
    /// The version of its register; 0 if it was never written.
    pub version: u64,
    /// The active level, which says what may be written. It never falls.
    pub active: Level,
    /// Whether the cluster is new and not all of its first members have joined. Once they have, the active level becomes the highest that
    /// all of them can read.
    pub founding: bool,
    /// What the program of each member could read when the member last started.
    pub announced: BTreeMap<NodeId, LevelRange>,
}

impl LevelTable {
    /// Returns the table of a cluster whose register was never written.
    pub fn none() -> Self {
        LevelTable { version: 0, active: Level::FIRST, founding: false, announced: BTreeMap::new() }
    }

    /// Returns what a member can read, as far as is known.
    pub fn range_of(&self, node: NodeId) -> LevelRange {
        self.announced.get(&node).copied().unwrap_or(LevelRange::UNANNOUNCED)
    }

    /// Returns the highest level that all members can read, but at least the active one. A member that has not joined yet counts only if it
    /// has announced a range. It announces one before it joins, and is refused if the range does not include the active level.
    pub fn highest_of_all(&self, members: &MemberTable) -> Level {
        let counts = |node: &NodeId| members.nodes[node].has_joined() || self.announced.contains_key(node);
        let highest = members.nodes.keys().filter(|n| counts(n)).map(|n| self.range_of(*n).highest).min();
        highest.unwrap_or(self.active).max(self.active)
    }

    /// Encodes the table as the value of its register.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        FORMAT.encode(&mut out);
        self.active.encode(&mut out);
        self.founding.encode(&mut out);
        self.announced.encode(&mut out);
        out.freeze()
    }

    /// Decodes the value of the register. Bytes after these fields belong to a later version and are ignored.
    pub fn decode(version: u64, value: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(value);
        let format = u8::decode(&mut from)?;
        if format != FORMAT {
            return Err(DecodeError::Invalid {
                what: "level table format",
                value: format.into(),
                allowed: "1",
            });
        }
        let table = LevelTable {
            version,
            active: Level::decode(&mut from)?,
            founding: bool::decode(&mut from)?,
            announced: BTreeMap::decode(&mut from)?,
        };
        if table.announced.len() > MAX_MEMBERS {
            let value = table.announced.len() as u64;
            return Err(DecodeError::Invalid { what: "level table", value, allowed: "at most 64 members" });
        }
        Ok(table)
    }
}

atoll_core::message! {
    /// Makes the role store this active level. The node sends it to itself.
    pub struct KeepLevel = 14 {
        /// The active level of the cluster.
        pub active: Level,
    }
}

atoll_core::message! {
    /// The level is durable on this node.
    pub struct LevelKept = 15 {}
}
atoll_core::rpc!(KeepLevel => LevelKept, crate::members::roles::LEVELS, Control);

atoll_core::message! {
    /// Asks a node what its program can read. A program that does not know levels refuses the message.
    pub struct AskLevels = 16 {}
}

atoll_core::message! {
    /// The answer to [`AskLevels`].
    pub struct MemberLevels = 17 {
        /// What the program of this node can read.
        pub reads: LevelRange,
        /// The active level, as far as this node knows it.
        pub active: Level,
    }
}
atoll_core::rpc!(AskLevels => MemberLevels, crate::members::roles::LEVELS, Control);

/// The role of levels. See the module documentation. It writes nothing while the first level is active, because until then a program that
/// does not know levels may open the data directory.
#[derive(Debug)]
pub struct LevelRole {
    levels: Levels,
    kept: Level,
}

impl LevelRole {
    /// Creates the role over the node's levels.
    pub fn new(levels: Levels) -> Self {
        LevelRole { levels, kept: Level::FIRST }
    }

    fn keep(&mut self, m: &KeepLevel, out: &mut Effects) -> Lsn {
        if m.active <= self.kept || m.active < since::KEPT_LEVEL {
            return out.durable();
        }
        self.kept = m.active;
        out.journal(RecordKind::Fact, m.to_bytes(), Bytes::new())
    }

    fn take(&mut self, bytes: Bytes) -> Result<(), DecodeError> {
        let m = KeepLevel::decode(&mut Reader::new(bytes))?;
        self.levels.learn(m.active)?;
        self.kept = self.kept.max(m.active);
        Ok(())
    }
}

impl Role for LevelRole {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        match frame.kind {
            AskLevels::KIND => {
                let reply = MemberLevels { reads: self.levels.reads(), active: self.levels.active() };
                out.reply(from, reply, Lsn::NONE);
            }
            KeepLevel::KIND if from.node == out.node() => match KeepLevel::from_frame(frame) {
                Ok(m) => {
                    let lsn = self.keep(&m, out);
                    out.reply(from, LevelKept {}, lsn);
                }
                Err(e) => out.reply(from, Refused { reason: e.to_string() }, Lsn::NONE),
            },
            kind => {
                let reason = format!("the role of levels accepts no message of kind {kind}");
                out.reply(from, Refused { reason }, Lsn::NONE);
            }
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(match self.kept >= since::KEPT_LEVEL {
            true => KeepLevel { active: self.kept }.to_bytes(),
            false => Bytes::new(),
        })
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.take(checkpoint)
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.take(stored.record.head)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::Member;
    use atoll_core::StorageId;

    fn range(lowest: u16, highest: u16) -> LevelRange {
        LevelRange { lowest: Level(lowest), highest: Level(highest) }
    }

    #[test]
    fn fields_of_a_later_version_are_left_alone() {
        let table = LevelTable {
            version: 3,
            active: Level(2),
            founding: true,
            announced: [(NodeId(1), range(1, 2))].into(),
        };
        let mut value = table.encode().to_vec();
        value.extend([7; 9]);
        assert_eq!(LevelTable::decode(3, value.into()), Ok(table));
    }

    #[test]
    fn a_member_that_announced_nothing_holds_the_level_down() {
        let member = |storage| Member { storage: StorageId(storage), ..Member::to_come("a:1".to_owned()) };
        let members = |rows: &[(u32, u128)]| MemberTable {
            version: 1,
            nodes: rows.iter().map(|(n, s)| (NodeId(*n), member(*s))).collect(),
            ..MemberTable::default()
        };
        let announced = [(NodeId(1), range(1, 3)), (NodeId(2), range(1, 2)), (NodeId(9), range(1, 1))];
        let table = LevelTable { announced: announced.into(), ..LevelTable::none() };
        assert_eq!(table.highest_of_all(&members(&[(1, 11), (2, 22)])), Level(2), "9 is no member");
        assert_eq!(table.highest_of_all(&members(&[(1, 11), (2, 22), (3, 33)])), Level(1));
        assert_eq!(table.highest_of_all(&members(&[(1, 11), (3, 0)])), Level(3), "3 has not joined");
        assert_eq!(table.highest_of_all(&members(&[(1, 11), (2, 0)])), Level(2), "2 is about to join");
    }
}

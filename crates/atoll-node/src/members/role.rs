//! The role that answers who this node is, and keeps the newest table of members across restarts. A restarted node therefore finds the
//! other members even if their addresses have changed.

use atoll_contract::register::Version;
use atoll_core::{
    Caller, Decode, DecodeError, Effects, Encode, Frame, Identify, Loc, Lsn, Message, Reader, RecordKind,
    Refused, Role, Stored, Tick,
};
use bytes::{Bytes, BytesMut};

use super::Members;
use super::table::MemberTable;

atoll_core::message! {
    /// Makes the member role store this table. The node sends it to itself.
    pub struct KeepTable = 10 {
        /// The version of the register.
        pub version: u64,
        /// The register's value.
        pub value: Bytes,
    }
}

atoll_core::message! {
    /// The table is durable on this node.
    pub struct Kept = 11 {}
}
atoll_core::rpc!(KeepTable => Kept, atoll_core::roles::MEMBER, Control);

atoll_core::message! {
    /// Asks for the table of members. A node that knows only some of the members sends it.
    pub struct AskTable = 12 {}
}

atoll_core::message! {
    /// The table, as this node knows it. It may be out of date.
    pub struct TableCopy = 13 {
        /// The version of the register; 0 if the node knows only its configuration file.
        pub version: u64,
        /// The register's value.
        pub value: Bytes,
    }
}
atoll_core::rpc!(AskTable => TableCopy, atoll_core::roles::MEMBER, Control);

atoll_core::message! {
    /// Tells a member that the sender has extended a log because of a failure. Appends that wait for a dead node cannot learn this from
    /// the old segment. The message is only a hint: if it is lost, the member finds the new segment later. It needs no feature level,
    /// because an older program drops it.
    pub struct LogExtended = 14 {
        /// The name of the log.
        pub log: String,
        /// The version of its chain.
        pub version: u64,
    }
}

/// The member role. See the module documentation.
#[derive(Debug)]
pub struct MemberRole {
    members: Members,
    kept: MemberTable,
}

impl MemberRole {
    /// Creates the role over the node's view.
    pub fn new(members: Members) -> Self {
        MemberRole { members, kept: MemberTable::default() }
    }

    fn take(&mut self, table: MemberTable) {
        if table.version > self.kept.version {
            self.kept = table.clone();
            self.members.adopt(table);
        }
    }

    fn keep(&mut self, m: KeepTable, out: &mut Effects) -> Result<Lsn, DecodeError> {
        let table = MemberTable::decode(m.version, m.value.clone())?;
        if table.version <= self.kept.version {
            return Ok(out.durable());
        }
        self.take(table);
        Ok(out.journal(RecordKind::Fact, m.to_bytes(), Bytes::new()))
    }
}

impl Role for MemberRole {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        match frame.kind {
            Identify::KIND => out.reply(from, self.members.identity(), Lsn::NONE),
            AskTable::KIND => {
                let table = self.members.table();
                out.reply(from, TableCopy { version: table.version, value: table.encode() }, Lsn::NONE);
            }
            KeepTable::KIND => match KeepTable::from_frame(frame).and_then(|m| self.keep(m, out)) {
                Ok(lsn) => out.reply(from, Kept {}, lsn),
                Err(e) => out.reply(from, Refused { reason: e.to_string() }, Lsn::NONE),
            },
            LogExtended::KIND => {
                if let Ok(news) = LogExtended::from_frame(frame) {
                    self.members.heard_of_chain(news.log, Version(news.version));
                }
            }
            kind => {
                let reason = format!("the member role accepts no message of kind {kind}");
                out.reply(from, Refused { reason }, Lsn::NONE);
            }
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn on_space(&mut self, now: Tick, space: atoll_core::Space, _out: &mut Effects) {
        match space {
            atoll_core::Space::Closed => self.members.fail(now),
            space => self.members.set_full(now, space == atoll_core::Space::FactsOnly),
        }
    }

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        let mut out = BytesMut::new();
        KeepTable { version: self.kept.version, value: self.kept.encode() }.encode(&mut out);
        Some(out.freeze())
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        let m = KeepTable::from_bytes(checkpoint)?;
        self.take(MemberTable::decode(m.version, m.value)?);
        Ok(())
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let mut from = Reader::new(stored.record.head);
        let m = KeepTable::decode(&mut from)?;
        self.take(MemberTable::decode(m.version, m.value)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::MAX_TOLD_CHAINS;
    use crate::members::table::Member;
    use atoll_core::{Identity, Incarnation, NodeId, StorageId};

    fn role() -> MemberRole {
        let me = Identity {
            node: NodeId(1),
            incarnation: Incarnation(1),
            storage: StorageId(1),
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        };
        let row = (NodeId(1), Member::to_come("a:1".to_owned()));
        let table = MemberTable { version: 1, nodes: [row].into(), ..MemberTable::default() };
        MemberRole::new(Members::new(me, table))
    }

    fn tell(role: &mut MemberRole, log: &str, version: u64) {
        let mut out = Effects::detached(NodeId(1), atoll_core::roles::MEMBER, Lsn::NONE);
        let news = LogExtended { log: log.to_owned(), version };
        let from = Caller { node: NodeId(2), request: None, class: atoll_core::Class::Control };
        role.on_frame(Tick(0), from, news.into_frame(atoll_core::roles::MEMBER), &mut out);
        assert!(out.take_frames().is_empty(), "nobody waits for an answer");
    }

    #[test]
    fn the_newest_version_of_a_chain_is_told_once() {
        let mut role = role();
        let seen = role.members.changed.count();
        [7, 9, 8].into_iter().for_each(|version| tell(&mut role, "a", version));
        assert_ne!(role.members.changed.count(), seen, "the guardian is woken");
        assert_eq!(role.members.take_told_chains(), [("a".to_owned(), Version(9))].into());
        assert!(role.members.take_told_chains().is_empty());
    }

    #[test]
    fn news_of_too_many_logs_or_of_none_is_dropped() {
        let mut role = role();
        (0..MAX_TOLD_CHAINS + 5).for_each(|n| tell(&mut role, &format!("log{n}"), 1));
        tell(&mut role, "log0", 2);
        let told = role.members.take_told_chains();
        assert_eq!((told.len(), told["log0"]), (MAX_TOLD_CHAINS, Version(2)));
        tell(&mut role, &"a".repeat(1000), 1);
        assert!(role.members.take_told_chains().is_empty(), "no log has such a name");
    }
}

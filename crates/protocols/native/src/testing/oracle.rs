//! Checks native Loglets from outside the nodes, using only frames and synced journal records: which disks have which copies, what servers
//! report about themselves, and what is acknowledged. Of the protocol, the oracle uses only the messages, the configuration and the number
//! of the server's role.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | native-N1 | all synced copies of an offset, and all copies that are served, have the same digest |
//! | native-N2, native-N6 | a server's answer shows at least what the server had reported before the request was sent |
//! | native-N3, vlog-VL6 | acknowledged offsets are below every sealed tail that is returned and every stop that is installed |
//! | native-N4 | no open tail is above a sealed tail, and everything below an open tail is on a majority |
//! | native-N5 | everything below a sealed tail or stop is on a majority |
//! | native-N7 | in `gaps.rs` |
//! | native-N9 | no message carries a known tail above what is on a majority |
//! | native-T8 | copies are kept only in data directories that the configuration names |
//! | vlog-VL10 | after a tombstone, the disk stores nothing more of that Loglet |

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::testing::{OnWire, Oracle, Violations, Who};
use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{
    Decode, Exchange, Frame, Lsn, Message, NodeId, Reader, Record, RecordKind, RoleKind, StorageId,
};

use super::gaps::{Gaps, Head};
use super::ghost::{Ghost, Server, entries};
use crate::config::NativeConfig;
use crate::message as msg;
use crate::roles::LOG_SERVER;

#[derive(Clone, Copy, Debug)]
struct Asked {
    loglet: LogletId,
    storage: StorageId,
    said: Server,
}

/// A request in flight: sender, its life, receiver, number.
type Request = (NodeId, u64, NodeId, u64);

/// All native Loglets of a run.
#[derive(Debug, Default)]
pub(super) struct NativeOracle {
    loglets: BTreeMap<LogletId, Ghost>,
    asked: BTreeMap<Request, Asked>,
    storages: BTreeMap<NodeId, StorageId>,
    gaps: Gaps,
}

impl Oracle for NativeOracle {
    fn booted(&mut self, who: &Who) {
        self.storages.insert(who.node, who.storage);
    }

    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        match wire.envelope.exchange {
            Exchange::Request(number) => {
                let life = wire.from.life;
                self.request((wire.from.node, life, wire.to, number), wire.frame(), verdict);
            }
            Exchange::Reply(number) => {
                let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
                if let Some(asked) = self.asked.remove(&key) {
                    self.reply(&wire.from, asked, wire.frame(), verdict);
                }
            }
            Exchange::Post => self.post(&wire.from, wire.to, wire.frame(), verdict),
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == LOG_SERVER) {
            let read = match record.kind {
                RecordKind::Entry => self.synced_entries(who, record, verdict),
                RecordKind::Fact => self.synced_fact(who, record, verdict),
            };
            if read.is_none() {
                verdict.fail("HARNESS: a record of the LogServer does not decode as the oracle knows it");
            }
        }
    }

    fn found(&mut self, who: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        if role == LOG_SERVER && !state.is_empty() && self.found_facts(who, state).is_none() {
            verdict.fail("HARNESS: a LogServer's checkpoint does not decode as the oracle knows it");
        }
    }

    fn chained(&mut self, loglet: LogletId, config: &Bytes) {
        self.learn(loglet, config);
        self.loglets.entry(loglet).or_default().chained = true;
    }

    fn tail_reported(&mut self, loglet: LogletId, at: Offset, sealed: bool, verdict: &mut Violations) {
        let ghost = self.loglets.entry(loglet).or_default();
        let at = at.0;
        if at > ghost.committed {
            let committed = ghost.committed;
            verdict.fail(format!(
                "N4/N5 tail above majority: loglet {loglet}: a tail of {at} (sealed: {sealed}), {committed} are on a majority"
            ));
        }
        if sealed {
            if at < ghost.acked {
                let acked = ghost.acked;
                verdict.fail(format!(
                    "native-N3 sealed below an ack: loglet {loglet}: sealed tail {at}, acknowledged below {acked}"
                ));
            }
            if at < ghost.open_tail {
                let open = ghost.open_tail;
                verdict.fail(format!(
                    "native-N4 sealed below an open tail: loglet {loglet}: sealed tail {at}, open tail {open} was told"
                ));
            }
            ghost.sealed_tail = Some(ghost.sealed_tail.map_or(at, |t| t.min(at)));
        } else {
            if let Some(tail) = ghost.sealed_tail
                && at > tail
            {
                verdict.fail(format!(
                    "native-N4 open above a sealed tail: loglet {loglet}: open tail {at}, sealed tail {tail} was told"
                ));
            }
            ghost.open_tail = ghost.open_tail.max(at);
        }
    }

    /// A stop must satisfy the same conditions as a sealed tail, and the Loglet must be sealed on a majority.
    fn installed(&mut self, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get(&loglet) else { return };
        let Some(config) = &ghost.config else { return };
        if ghost.sealed_servers() < config.quorum() {
            verdict.fail(format!(
                "vlog-VL1 installed without seal: loglet {loglet}: a stop at {stop} is in the chain, {} of {} servers are sealed",
                ghost.sealed_servers(),
                config.servers.len()
            ));
        }
        // Open tails are not compared with the stop here, because `tail_reported` checks each tail when it is returned (vlog-L4).
        let (acked, committed) = (ghost.acked, ghost.committed);
        if stop.0 < acked {
            verdict.fail(format!(
                "VL6/N3 stop below an ack: loglet {loglet}: stop {stop}, acknowledged below {acked}"
            ));
        }
        if stop.0 > committed {
            verdict.fail(format!(
                "native-N5 stop above majority: loglet {loglet}: stop {stop}, {committed} are on a majority"
            ));
        }
        if let Some(ghost) = self.loglets.get_mut(&loglet) {
            ghost.sealed_tail = Some(ghost.sealed_tail.map_or(stop.0, |t| t.min(stop.0)));
        }
    }

    fn sealed_on(&self, loglet: LogletId) -> Vec<NodeId> {
        self.loglets.get(&loglet).map_or(Vec::new(), |ghost| ghost.sealed_on().collect())
    }

    /// Returns how many Loglets are sealed on a majority and belong to no chain.
    fn reconfigurations(&self) -> u64 {
        let sealed =
            |g: &&Ghost| !g.chained && g.config.as_ref().is_some_and(|c| g.sealed_servers() >= c.quorum());
        self.loglets.values().filter(sealed).count() as u64
    }
}

impl NativeOracle {
    /// Returns whether a configuration of the Loglet was seen.
    fn knows(&self, loglet: LogletId) -> bool {
        self.loglets.get(&loglet).is_some_and(|g| g.config.is_some())
    }

    /// Notes the configuration of a Loglet.
    fn learn(&mut self, loglet: LogletId, config: &Bytes) {
        if config.is_empty() {
            return;
        }
        let ghost = self.loglets.entry(loglet).or_default();
        if ghost.config.is_none() {
            ghost.config = NativeConfig::from_bytes(config.clone()).ok();
            match ghost.config.as_ref().map_or(0, |c| c.servers.len()) {
                1 => hit("sim.native.one_server"),
                3 => hit("sim.native.three_servers"),
                5 => hit("sim.native.five_servers"),
                _ => {}
            }
            ghost.advance();
        }
    }

    fn found_facts(&mut self, who: &Who, state: &Bytes) -> Option<()> {
        let mut from = Reader::new(state.clone());
        u8::decode(&mut from).ok()?;
        for _ in 0..u32::decode(&mut from).ok()? {
            let loglet = LogletId::decode(&mut from).ok()?;
            let config = Bytes::decode(&mut from).ok()?;
            let sealed = bool::decode(&mut from).ok()?;
            for _ in 0..3 {
                Offset::decode(&mut from).ok()?;
            }
            let _settled = bool::decode(&mut from).ok()?;
            self.learn(loglet, &config);
            let server = self.loglets.entry(loglet).or_default().servers.entry(who.storage).or_default();
            server.sealed_fact |= sealed;
        }
        for loglet in Vec::<LogletId>::decode(&mut from).ok()? {
            let server = self.loglets.entry(loglet).or_default().servers.entry(who.storage).or_default();
            server.tombstone = true;
        }
        from.finish("checkpoint").ok()
    }

    fn synced_entries(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let head = Head::read(record).ok()?;
        let (loglet, first) = (head.loglet, head.first);
        self.gaps.on_disk(who, &head, verdict);
        let ghost = self.loglets.entry(loglet).or_default();
        if let Some(config) = &ghost.config
            && config.storage_of(who.node) != Some(who.storage)
        {
            verdict.fail(format!(
                "native-T8 foreign disk: node {} keeps entries of loglet {loglet} in a data directory that it does not name",
                who.node
            ));
        }
        if ghost.servers.get(&who.storage).is_some_and(|s| s.tombstone) {
            verdict.fail(format!(
                "vlog-VL10 revived: loglet {loglet} was deleted on node {} and stores again",
                who.node
            ));
        }
        let bit = ghost.disk(who.storage);
        for (at, bytes) in entries(first, &record.payload) {
            ghost.holds(loglet, at, bytes, "a copy on disk", verdict);
            if let Some(mask) = ghost.copies.get_mut(at as usize) {
                *mask |= bit;
            }
        }
        ghost.advance();
        Some(())
    }

    fn synced_fact(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let mut from = Reader::new(record.head.clone());
        let tag = u8::decode(&mut from).ok()?;
        let loglet = LogletId::decode(&mut from).ok()?;
        if tag == 0 {
            let config = Bytes::decode(&mut from).ok()?;
            self.learn(loglet, &config);
        }
        let ghost = self.loglets.entry(loglet).or_default();
        let server = ghost.servers.entry(who.storage).or_default();
        match tag {
            0 if server.tombstone => {
                verdict.fail(format!(
                    "vlog-VL10 revived: loglet {loglet} was deleted on node {} and is made again",
                    who.node
                ));
            }
            1 => server.sealed_fact = true,
            3 => server.tombstone = true,
            _ => {}
        }
        Some(())
    }

    fn request(&mut self, key: Request, frame: &Frame, verdict: &mut Violations) {
        macro_rules! parse {
            ($type:ty) => {
                match <$type>::from_frame(frame.clone()) {
                    Ok(m) => m,
                    Err(_) => return,
                }
            };
        }
        let loglet = match frame.kind {
            msg::Append::KIND => {
                let m = parse!(msg::Append);
                self.learn(m.loglet, &m.config);
                m.loglet
            }
            msg::Seal::KIND => {
                let m = parse!(msg::Seal);
                self.learn(m.loglet, &m.config);
                m.loglet
            }
            msg::Info::KIND => {
                let m = parse!(msg::Info);
                self.learn(m.loglet, &m.config);
                m.loglet
            }
            msg::Delete::KIND => {
                let loglet = parse!(msg::Delete).loglet;
                if let Some(storage) = self.storages.get(&key.2) {
                    let servers = &mut self.loglets.entry(loglet).or_default().servers;
                    servers.entry(*storage).or_default().deleting = true;
                }
                return;
            }
            msg::Wait::KIND => parse!(msg::Wait).loglet,
            msg::Trim::KIND => {
                let m = parse!(msg::Trim);
                self.gaps.notified(m.loglet, key.2, m.to);
                m.loglet
            }
            msg::BackFill::KIND => {
                let m = parse!(msg::BackFill);
                self.notified(m.loglet, key.2, m.upto, "BackFill", verdict);
                m.loglet
            }
            msg::Read::KIND => parse!(msg::Read).loglet,
            msg::ReadNext::KIND => parse!(msg::ReadNext).loglet,
            msg::Repair::KIND => {
                let m = parse!(msg::Repair);
                self.learn(m.loglet, &m.config);
                self.notified(m.loglet, key.2, m.known_tail, "Repair", verdict);
                m.loglet
            }
            _ => return,
        };
        let Some(storage) = self.storages.get(&key.2).copied() else { return };
        let said = self.loglets.entry(loglet).or_default().servers.entry(storage).or_default();
        let asked = Asked { loglet, storage, said: *said };
        self.asked.insert(key, asked);
    }

    fn reply(&mut self, who: &Who, asked: Asked, frame: &Frame, verdict: &mut Violations) {
        match frame.kind {
            msg::Appended::KIND => {
                let Ok(m) = msg::Appended::from_frame(frame.clone()) else { return };
                self.known_tail(asked.loglet, m.known_tail, "Appended", verdict);
                if let msg::Ordered::Committed { runs } = m.outcome {
                    for (first, count) in runs {
                        self.acked(asked.loglet, first.0 + u64::from(count), verdict);
                    }
                }
            }
            msg::Answer::KIND => {
                let Ok(m) = msg::Answer::from_frame(frame.clone()) else { return };
                self.state(who, asked, &m.verdict, &m.state, verdict);
            }
            msg::Entries::KIND => {
                let Ok(m) = msg::Entries::from_frame(frame.clone()) else { return };
                self.state(who, asked, &m.verdict, &m.state, verdict);
                let mut first = m.first;
                let ghost = self.loglets.entry(asked.loglet).or_default();
                for (batch, count) in m.batches.iter().zip(&m.counts) {
                    for (at, bytes) in entries(first, batch) {
                        ghost.holds(asked.loglet, at, bytes, "a copy that was served", verdict);
                    }
                    first = first.plus(u64::from(*count));
                }
            }
            _ => {}
        }
    }

    fn post(&mut self, who: &Who, to: NodeId, frame: &Frame, verdict: &mut Violations) {
        match frame.kind {
            msg::Store::KIND => {
                let Ok(m) = msg::Store::from_frame(frame.clone()) else { return };
                self.learn(m.loglet, &m.config);
                self.notified(m.loglet, to, m.known_tail, "Store", verdict);
            }
            msg::Advance::KIND => {
                let Ok(m) = msg::Advance::from_frame(frame.clone()) else { return };
                self.notified(m.loglet, to, m.known_tail, "Advance", verdict);
            }
            msg::Repair::KIND => {
                let Ok(m) = msg::Repair::from_frame(frame.clone()) else { return };
                self.notified(m.loglet, to, m.known_tail, "Repair", verdict);
            }
            msg::BackFill::KIND => {
                let Ok(m) = msg::BackFill::from_frame(frame.clone()) else { return };
                self.notified(m.loglet, to, m.upto, "BackFill", verdict);
            }
            msg::Trim::KIND => {
                let Ok(m) = msg::Trim::from_frame(frame.clone()) else { return };
                self.gaps.notified(m.loglet, to, m.to);
            }
            msg::StoredUpTo::KIND => {
                let Ok(m) = msg::StoredUpTo::from_frame(frame.clone()) else { return };
                self.known_tail(m.loglet, m.state.known_tail, "StoredUpTo", verdict);
                if stands_for_nothing(&m.verdict) {
                    return;
                }
                self.gaps.says(who, m.loglet, m.state.local_tail, verdict);
                let ghost = self.loglets.entry(m.loglet).or_default();
                let server = ghost.servers.entry(who.storage).or_default();
                server.local_tail = server.local_tail.max(m.state.local_tail.0);
                server.said_sealed |= m.state.sealed;
            }
            _ => {}
        }
    }

    /// Checks and notes the known tail in a message to a server.
    fn notified(
        &mut self,
        loglet: LogletId,
        server: NodeId,
        at: Offset,
        what: &str,
        verdict: &mut Violations,
    ) {
        self.known_tail(loglet, at, what, verdict);
        self.gaps.notified(loglet, server, at);
    }

    /// native-N9: what a message reports as committed is on a majority.
    fn known_tail(&mut self, loglet: LogletId, at: Offset, what: &str, verdict: &mut Violations) {
        let ghost = self.loglets.entry(loglet).or_default();
        if ghost.config.is_some() && at.0 > ghost.committed {
            let committed = ghost.committed;
            verdict.fail(format!(
                "native-N9 known tail above majority: loglet {loglet}: {what} carries {at}, {committed} are on a majority"
            ));
        }
    }

    fn acked(&mut self, loglet: LogletId, end: u64, verdict: &mut Violations) {
        let ghost = self.loglets.entry(loglet).or_default();
        if ghost.config.is_some() && end > ghost.committed {
            let committed = ghost.committed;
            verdict.fail(format!(
                "vlog-L1 acknowledged too early: loglet {loglet}: below {end} acknowledged, {committed} are on a majority"
            ));
        }
        if let Some(tail) = ghost.sealed_tail
            && end > tail
        {
            verdict.fail(format!(
                "native-N3 acknowledged beyond a sealed tail: loglet {loglet}: below {end} acknowledged, sealed tail {tail}"
            ));
        }
        ghost.acked = ghost.acked.max(end);
    }

    /// native-N2, native-N6: a server's answer shows at least what the server had reported before the request was sent.
    fn state(
        &mut self,
        who: &Who,
        asked: Asked,
        what: &msg::Verdict,
        state: &msg::ServerState,
        verdict: &mut Violations,
    ) {
        self.known_tail(asked.loglet, state.known_tail, "an answer", verdict);
        let ghost = self.loglets.entry(asked.loglet).or_default();
        let deleting = ghost.servers.get(&who.storage).is_some_and(|s| s.deleting);
        if who.storage != asked.storage || stands_for_nothing(what) || deleting {
            return;
        }
        // Local Loglets answer with the same message, but have no other copies.
        if self.knows(asked.loglet) {
            self.gaps.says(who, asked.loglet, state.local_tail, verdict);
        }
        if state.local_tail.0 < asked.said.local_tail {
            verdict.fail(format!(
                "native-N2 local tail back: loglet {} on node {}: {}, had said {}",
                asked.loglet, who.node, state.local_tail, asked.said.local_tail
            ));
        }
        if asked.said.said_sealed && !state.sealed {
            verdict.fail(format!(
                "native-N2 seal bit cleared: loglet {} on node {} had said that it is sealed",
                asked.loglet, who.node
            ));
        }
        let ghost = self.loglets.entry(asked.loglet).or_default();
        let server = ghost.servers.entry(who.storage).or_default();
        server.local_tail = server.local_tail.max(state.local_tail.0);
        server.said_sealed |= state.sealed;
    }
}

/// Returns whether an answer says that the server does not serve the Loglet. The state in such an answer is meaningless.
fn stands_for_nothing(verdict: &msg::Verdict) -> bool {
    matches!(
        verdict,
        msg::Verdict::Unconfigured {}
            | msg::Verdict::Gone {}
            | msg::Verdict::WrongIdentity {}
            | msg::Verdict::WrongSequencer {}
            | msg::Verdict::Busy {}
            | msg::Verdict::StorageFailed {}
    )
}
